/**
 * @file Trains the GPT of example 01 in pipeline stages. Every rank is a thread that holds some of the stages; microbatches
 * of each batch pass through them in the order of a schedule. At the end: a fable, a report of what every rank did, a trace.
 *
 * Run: npm start                        (about a minute on two cores; --help shows the options)
 *      npm start -- --schedule ZBVZeroBubble --ranks 2 --steps 50
 *      npx pipewright run -n 4 --studio examples/dist/02-train-gpt-pipeline/train.js      (a process for each rank, watched)
 */
import { writeSync } from 'node:fs';
import { isMainThread } from 'node:worker_threads';
import { distributed, nn, optim, scope, softmax, stack, type Tensor, tensor } from '@pipewright/torch';
import {
  type CheckpointSave,
  comparePlan,
  DataLoader,
  formatComparison,
  LaunchError,
  launch,
  loadCheckpoint,
  PipelineRuntime,
  PipelineStage,
  Recorder,
  saveCheckpoint,
} from 'pipewright';
import { isRank } from 'pipewright/launch';
import { Fables } from './fables.ts';
import { GptStage } from './gpt-stage.ts';
import { type Options, readOptions, scheduleOf } from './options.ts';

/** What every rank runs. */
export function main(options: Options = readOptions()): void {
  const { steps, batch, context, device, seed, layers, heads, width } = options;
  const group = distributed.initProcessGroup();
  const fables = new Fables(context);
  const say = (text: string): void => void writeSync(1, text); // at once, though this thread's event loop does not turn

  // 1. The stages of this rank: pieces of the model, where the schedule puts them.
  const schedule = scheduleOf(options);
  const config = { vocabulary: fables.characters.length, context, layers, heads, width, dropout: 0.1 };
  const random = new nn.NamedRandom({ seed }); // initial values and dropout by name: the same in all layouts
  const stages = schedule.stagesOf(group.rank).map((index) => {
    const part = new GptStage(config, index, schedule.stages, options.planned?.units ?? null);
    random.initialize(part, { names: part.names });
    const checkpoint = options.planned?.recompute[index] === true;
    return new PipelineStage(part, index, schedule.stages, { device, checkpoint, names: part.names });
  });
  const isLast = stages.some((stage) => stage.isLast);

  // 2. The runtime runs the schedule on the stages, and records it.
  const recorder = new Recorder({ tokensPerStep: batch * context });
  const runtime = new PipelineRuntime(stages, schedule, { lossFn, random, record: recorder });

  // 3. Every rank trains its own parameters: weight decay for matrices, a warm-up, then a cosine.
  const parameters = stages.flatMap((stage) => stage.module.parameters());
  const optimizer = new optim.AdamW(
    [
      { params: parameters.filter((parameter) => parameter.dim() > 1), weightDecay: 0.1 },
      { params: parameters.filter((parameter) => parameter.dim() <= 1), weightDecay: 0 },
    ],
    { lr: options.lr, betas: [0.9, 0.99] },
  );
  const warmup = Math.min(20, steps);
  const rate = new optim.LambdaLR(optimizer, (step) =>
    step < warmup
      ? (step + 1) / warmup
      : 0.55 + 0.45 * Math.cos((Math.PI * (step - warmup)) / Math.max(1, steps - warmup)),
  );

  // 4. Batches depend on the seed only, so all ranks have the same: inputs are used where the first stage is, targets where the
  // last one is and losses come out.
  const loader = new DataLoader<[Tensor, Tensor]>(fables, { batchSize: batch, shuffle: true, seed, fillLast: true });

  // 5. What a run needs to go on, on other ranks too. A save copies the state; a thread writes it while training goes on.
  const state = { stages, optimizer, scheduler: rate, loader, generators: { random } };
  const begin = options.resume ? loadCheckpoint(options.checkpoints, state).step : 0;
  let save: CheckpointSave | null = null;
  const started = performance.now();
  for (let step = begin + 1; step <= steps; step++) {
    scope(() => {
      const [x, y] = loader.nextBatch();
      const [inputs, targets] = [x.to({ device }), y.to({ device })];
      const losses: Tensor[] = [];
      optimizer.zeroGrad();
      runtime.step(inputs, { target: targets, losses, returnOutputs: false });
      runtime.clipGradNorm_(1); // of the whole model
      optimizer.step();
      rate.step();
      if (isLast) say(progress(step, stack(losses).mean().item()));
    });
    if (options['save-every'] > 0 && step % options['save-every'] === 0)
      save = saveCheckpoint(options.checkpoints, { ...state, step, schedule });
  }
  save?.wait();

  // 6. What every rank did meanwhile, gathered on rank 0; and what they have learned.
  const report = recorder.report({ color: options.live });
  const recording = recorder.gather();
  if (recording !== null && options.planned !== null)
    say(`\n${formatComparison(comparePlan(options.planned, recording))}\n`);
  const fable = write('The ', options.sample);
  if (group.rank === 0) say(`\nA sample:\n\n${fable}\n\n${report}\n`);
  const trace = recorder.writeTrace(options.trace);
  if (trace !== null) say(`A trace for ui.perfetto.dev is in ${trace}\n`);

  function progress(step: number, loss: number): string {
    const seconds = (performance.now() - started) / 1000;
    const rate = Math.round(((step - begin) * batch * context) / seconds).toLocaleString('en');
    const bubble = (100 * (recorder.lastStep?.waiting ?? 0)).toFixed(0);
    const left = ((seconds / (step - begin)) * (steps - step)).toFixed(0);
    const count = `${String(step).padStart(String(steps).length)}/${steps}`;
    const line = `step ${count}  loss ${loss.toFixed(3)}  ${rate} characters/s  bubble ${bubble}%  ${left} s left`;
    if (options.live) return `\r${line.padEnd(72)}`;
    return step === begin + 1 || step === steps || step % 20 === 0 ? `${line}\n` : '';
  }

  /** Writes on from `prompt`, a character at a time: the rank with the last stage picks it and tells the others. */
  function write(prompt: string, length: number): string {
    for (const { module } of stages) module.eval();
    const ids = fables.encode(prompt);
    while (ids.length < length) {
      const next = scope(() => {
        const window = tensor([ids.slice(-context)], { device }).expand([schedule.microbatches, -1]); // a row for each
        const logits = runtime.eval(window); // where the last stage is
        return logits === undefined ? 0 : softmax(logits.at(0, -1).div(0.8), -1).multinomial(1).item();
      });
      ids.push(group.broadcastObject<number>(next, schedule.stageToRank.at(-1) ?? 0));
    }
    return fables.decode(ids);
  }
}

function lossFn(logits: Tensor, targets: Tensor): Tensor {
  return nn.functional.crossEntropy(logits.flatten(0, 1), targets.flatten());
}

if (isMainThread && !isRank()) {
  const options = readOptions();
  const { schedule, ranks, stages, microbatches, layers, width, steps, device } = options;
  console.log(`GPT of ${layers} blocks, ${width} wide, in ${stages} stages on ${ranks} threads (${device})`);
  console.log(`${schedule}, ${microbatches} microbatches, ${steps} steps`);
  await launch({ ranks, mode: 'threads', script: new URL(import.meta.url), data: options }).done.catch(
    (error: unknown) => {
      console.error(`pipewright: ${error instanceof LaunchError ? error.report() : String(error)}`);
      process.exitCode = 1;
    },
  );
}
