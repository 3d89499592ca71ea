/**
 * @file Trains the GPT of example 02 on a mesh: pipeline stages along one dimension, and along the other ranks that train on
 * different rows and share the state of their stages. Every rank is a thread.
 *
 * Run: node examples/dist/05-train-gpt-mesh/train.js            (2 x 2 ranks, stages in shards)
 *      node examples/dist/05-train-gpt-mesh/train.js --data 4 --shard none --schedule ZBVZeroBubble --steps 50
 */
import { writeSync } from 'node:fs';
import { parseArgs } from 'node:util';
import { isMainThread } from 'node:worker_threads';
import { buildSchedule } from '@pipewright/schedule';
import { distributed, nn, optim, scope, stack, type Tensor } from '@pipewright/torch';
import {
  DataLoader,
  fullyShard,
  initDeviceMesh,
  LaunchError,
  launch,
  PipelineRuntime,
  PipelineStage,
  replicate,
  type ShardLevel,
} from 'pipewright';
import { Fables } from '../02-train-gpt-pipeline/fables.ts';
import { GptStage } from '../02-train-gpt-pipeline/gpt-stage.ts';

/** What every rank runs. */
export function main(options: Options): void {
  const { steps, batch, context, microbatches } = options;
  const group = distributed.initProcessGroup();
  const say = (text: string): void => void writeSync(1, text); // at once, though this thread's event loop does not turn

  // 1. All ranks as a mesh: who has which stages, and which rows.
  const mesh = initDeviceMesh('cpu', [options.pipeline, options.data], ['pp', 'dp']);
  const [pp, dp] = [mesh.getLocalRank('pp'), mesh.getLocalRank('dp')];
  const fables = new Fables(context);
  const loader = new DataLoader<[Tensor, Tensor]>(fables, {
    batchSize: batch / options.data,
    shuffle: true,
    fillLast: true,
    numReplicas: options.data, // every replica has rows of its own
    rank: dp,
  });
  if (group.rank === 0)
    say(`${String(mesh)}, ${options.shard === 'none' ? 'replicas' : `shards of ${options.shard}`}\n`);

  // 2. The stages of this rank: copies of what the other replicas have, or this rank's shards of them.
  const schedule = buildSchedule(options.schedule, { ranks: options.pipeline, microbatches });
  const config = {
    vocabulary: fables.characters.length,
    context,
    layers: 4,
    heads: 2,
    width: options.width,
    dropout: 0,
  };
  const random = new nn.NamedRandom({ seed: 1 }); // the same model in every layout
  const stages = schedule.stagesOf(pp).map((index) => {
    const module = new GptStage(config, index, schedule.stages);
    random.initialize(module, { names: module.names });
    if (options.shard === 'none') replicate(module, { mesh: mesh.get('dp') });
    else fullyShard(module, { mesh: mesh.get('dp'), level: options.shard, units: [...module.blocks] });
    return new PipelineStage(module, index, schedule.stages, { group: mesh.getGroup('pp') });
  });

  // 3. The optimizer has what this rank has: shards, where stages are sharded.
  const parameters = stages.flatMap((stage) => stage.module.parameters());
  const optimizer = new optim.AdamW(parameters, { lr: options.lr });
  const held = parameters.reduce((sum, parameter) => sum + parameter.numel(), 0);
  say(`rank ${group.rank} trains ${held.toLocaleString('en')} numbers\n`);

  // 4. Gradients are summed where the schedule says so; a step that is not finite is skipped by all ranks.
  const runtime = new PipelineRuntime(stages, schedule, { lossFn });
  for (let step = 1; step <= steps; step++)
    scope(() => {
      const [inputs, targets] = loader.nextBatch();
      const losses: Tensor[] = [];
      optimizer.zeroGrad();
      runtime.step(inputs, { target: targets, losses, returnOutputs: false });
      const { norm } = runtime.stepOptimizer(optimizer, { maxNorm: 1 });
      if (losses.length > 0 && dp === 0 && (step % 20 === 0 || step === 1 || step === steps))
        say(`step ${step}/${steps}  loss ${stack(losses).mean().item().toFixed(3)}  norm ${norm.toFixed(3)}\n`);
    });
}

function lossFn(logits: Tensor, targets: Tensor): Tensor {
  return nn.functional.crossEntropy(logits.flatten(0, 1), targets.flatten());
}

const numbers = { pipeline: 2, data: 2, steps: 100, batch: 16, context: 32, microbatches: 4, width: 64, lr: 3e-3 };
type Options = typeof numbers & { schedule: string; shard: ShardLevel | 'none' };

/** The options of the command line; plain data, because every rank gets a copy. */
function readOptions(): Options {
  const known = Object.fromEntries(
    [...Object.keys(numbers), 'schedule', 'shard'].map((name) => [name, { type: 'string' as const }]),
  );
  const options: Options = { ...numbers, schedule: '1F1B', shard: 'parameters' };
  for (const [name, value] of Object.entries(parseArgs({ options: known }).values)) {
    const text = String(value);
    if (name === 'schedule') options.schedule = text;
    else if (name === 'shard') options.shard = shardLevel(text);
    else if (isNumber(name)) options[name] = positive(name, text);
  }
  return options;
}

function isNumber(name: string): name is keyof typeof numbers {
  return Object.hasOwn(numbers, name);
}

function positive(name: string, text: string): number {
  if (Number(text) > 0) return Number(text);
  throw new Error(`--${name} is ${text}; give a number above 0`);
}

function shardLevel(text: string): Options['shard'] {
  for (const level of ['none', 'optimizer', 'gradients', 'parameters'] as const) if (level === text) return level;
  throw new Error(`--shard is ${text}; give none, optimizer, gradients or parameters`);
}

if (isMainThread) {
  const options = readOptions();
  const ranks = options.pipeline * options.data;
  await launch({ ranks, mode: 'threads', script: new URL(import.meta.url), data: options }).done.catch(
    (error: unknown) => {
      console.error(`pipewright: ${error instanceof LaunchError ? error.report() : String(error)}`);
      process.exitCode = 1;
    },
  );
}
