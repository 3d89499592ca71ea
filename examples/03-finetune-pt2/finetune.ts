/**
 * @file Fine-tunes a model that PyTorch exported (`torch.export.save`), in stages: a small GPT-2 learns the fables in ../data.
 * No Python is needed any more: the file has the model as a graph and its weights.
 *
 * Run: node examples/dist/03-finetune-pt2/finetune.js            (half a minute on two cores)
 *      node examples/dist/03-finetune-pt2/finetune.js --ranks 2 --schedule GPipe --steps 50 --file model.pt2
 */
import { existsSync, writeSync } from 'node:fs';
import { join } from 'node:path';
import { parseArgs } from 'node:util';
import { isMainThread } from 'node:worker_threads';
import { findSchedule, type ScheduleName } from '@pipewright/schedule';
import { distributed, nn, optim, scope, stack, type Tensor } from '@pipewright/torch';
import {
  DataLoader,
  describePipe,
  formatBytes,
  launch,
  loadPt2,
  PipelineRuntime,
  pipeline,
  placeholdersOf,
} from 'pipewright';
import { Fables } from '../02-train-gpt-pipeline/fables.ts';

interface Options {
  readonly file: string;
  readonly ranks: number;
  readonly schedule: ScheduleName;
  readonly steps: number;
  readonly rows: number;
  readonly microbatches: number;
  readonly lr: number;
}

/** What every rank runs. */
export function main({ file, ranks, schedule, steps, rows, microbatches, lr }: Options): void {
  const group = distributed.initProcessGroup();
  const say = (text: string): void => void writeSync(1, `${text}\n`); // at once, though this thread's event loop does not turn

  // 1. The exported model, cut into stages of about equal cost. Weights are mapped from the file, not read.
  const model = loadPt2(file);
  const pipe = pipeline(model, { stages: ranks });
  if (group.rank === 0)
    for (const { stage, layers, parameters, bytesOut } of describePipe(pipe).stages)
      say(
        `stage ${stage}: ${layers.join(' ')}, ${parameters.elements.toLocaleString('en')} parameters, sends ${formatBytes(bytesOut)}`,
      );

  // 2. This rank's stage. It knows what it gets from whom, and which of its weights another stage holds too.
  const stage = pipe.buildStage(group.rank, { group });
  const runtime = new PipelineRuntime(stage, schedule, { microbatches, lossFn });
  const optimizer = new optim.AdamW(stage.module.parameters(), { lr });

  // 3. Training, as with any stage.
  const { vocabulary, context } = sizesOf(model);
  const fables = new Fables(context);
  const loader = new DataLoader<[Tensor, Tensor]>(fables, { batchSize: rows, shuffle: true, seed: 1, fillLast: true });
  if (fables.characters.length > vocabulary)
    throw new Error(`the model knows ${vocabulary} characters, the fables have ${fables.characters.length}`);
  for (let step = 1; step <= steps; step++)
    scope(() => {
      const [inputs, targets] = loader.nextBatch();
      const losses: Tensor[] = [];
      optimizer.zeroGrad();
      runtime.step(inputs, { target: targets, losses, returnOutputs: false });
      optimizer.step();
      if (stage.isLast && (step === 1 || step % 20 === 0 || step === steps))
        say(`step ${String(step).padStart(4)}  loss ${stack(losses).mean().item().toFixed(3)}`);
    });
}

function lossFn(logits: Tensor, targets: Tensor): Tensor {
  return nn.functional.crossEntropy(logits.flatten(0, 1), targets.flatten());
}

/** Characters that the model knows, and characters of a row: from the shapes of its weights and inputs. */
function sizesOf(model: ReturnType<typeof loadPt2>): { vocabulary: number; context: number } {
  const [input] = placeholdersOf(model.graph);
  const context = input?.meta != null && 'shape' in input.meta ? Number(input.meta.shape[1]) : 0;
  const embedding = model.namedParameters().find(([name]) => /(wte|lm_head)\.weight$/.test(name));
  if (embedding === undefined || !(context > 0)) throw new Error('this is not a GPT-2 with rows of a fixed length');
  return { vocabulary: embedding[1].size(0), context };
}

/** The small GPT-2 of the tests; this file may run from dist. */
function findModel(): string {
  const path = join(import.meta.dirname, '../../testdata/models/gpt2_dyn.pt2');
  return existsSync(path) ? path : join(import.meta.dirname, '../../../testdata/models/gpt2_dyn.pt2');
}

if (isMainThread) {
  const { values } = parseArgs({
    options: {
      file: { type: 'string', default: findModel() },
      ranks: { type: 'string', default: '4' },
      schedule: { type: 'string', default: '1F1B' },
      steps: { type: 'string', default: '200' },
      rows: { type: 'string', default: '32' },
      microbatches: { type: 'string', default: '8' },
      lr: { type: 'string', default: '3e-3' },
    },
  });
  const { ranks, steps, rows, microbatches, lr } = values;
  const options: Options = {
    ...values,
    schedule: findSchedule(values.schedule).name,
    ranks: Number(ranks),
    steps: Number(steps),
    rows: Number(rows),
    microbatches: Number(microbatches),
    lr: Number(lr),
  };
  await launch({ ranks: options.ranks, mode: 'threads', script: new URL(import.meta.url), data: options }).done;
}
