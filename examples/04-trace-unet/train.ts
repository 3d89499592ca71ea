/**
 * @file Traces a U-Net written in TypeScript, cuts it into stages where we say, and trains it on threads. Its skip
 * connections go straight from the stage that makes a value to the one that needs it.
 *
 * Run: node examples/dist/04-trace-unet/train.js                 (half a minute on two cores)
 *      node examples/dist/04-trace-unet/train.js --schedule ZB1P --steps 50
 */
import { writeSync } from 'node:fs';
import { parseArgs } from 'node:util';
import { isMainThread } from 'node:worker_threads';
import { findSchedule, type ScheduleName } from '@pipewright/schedule';
import {
  distributed,
  Generator,
  manualSeed,
  nn,
  optim,
  randn,
  scope,
  stack,
  type Tensor,
  tensor,
} from '@pipewright/torch';
import { launch, PipelineRuntime, pipeline, SplitPoint } from 'pipewright';
import { Unet } from './unet.ts';

const [size, ranks, microbatches, rows] = [16, 4, 8, 32];

interface Options {
  readonly schedule: ScheduleName;
  readonly steps: number;
}

/** What every rank runs. */
export function main({ schedule, steps }: Options): void {
  const group = distributed.initProcessGroup();
  const say = (text: string): void => void writeSync(1, `${text}\n`);
  manualSeed(1); // all ranks make the same model
  const model = new Unet();

  // 1. One example is enough: the graph works at every batch size, and the model itself is not changed.
  const pipe = pipeline(model, {
    mbArgs: [randn(2, 1, size, size)],
    splitSpec: { down2: SplitPoint.BEGINNING, bottom: SplitPoint.BEGINNING, up2: SplitPoint.END },
  });
  if (group.rank === 0)
    say(
      `stages exchange values along ${pipe
        .info()
        .edges.map(([from, to]) => `${from}>${to}`)
        .join(' ')}`,
    );

  // 2. A stage per rank.
  const stage = pipe.buildStage(group.rank, { group });
  const runtime = new PipelineRuntime(stage, schedule, { microbatches, lossFn });
  const optimizer = new optim.Adam(stage.module.parameters(), { lr: 3e-3 });

  // 3. Every rank says the same: pictures with noise are used where the first stage is, those without where the last one is.
  const random = new Generator().manualSeed(2);
  const rectangle = randomNumbers(3);
  for (let step = 1; step <= steps; step++)
    scope(() => {
      const clean = pictures(rows, rectangle);
      const noisy = clean.add(randn(rows, 1, size, size, { generator: random }).mul(0.5));
      const losses: Tensor[] = [];
      optimizer.zeroGrad();
      runtime.step(noisy, { target: clean, losses, returnOutputs: false });
      optimizer.step();
      if (stage.isLast && (step === 1 || step % 20 === 0 || step === steps))
        say(`step ${String(step).padStart(4)}  loss ${stack(losses).mean().item().toFixed(4)}`);
    });
}

function lossFn(picture: Tensor, clean: Tensor): Tensor {
  return nn.functional.mseLoss(picture, clean);
}

/** Bright rectangles on a dark ground. */
function pictures(count: number, next: () => number): Tensor {
  const rows = Array.from({ length: count }, () => {
    const [left, top] = [Math.floor(next() * 10), Math.floor(next() * 10)];
    const [right, bottom] = [left + 3 + Math.floor(next() * 4), top + 3 + Math.floor(next() * 4)];
    return Array.from({ length: size }, (_, y) =>
      Array.from({ length: size }, (_, x) => (x >= left && x < right && y >= top && y < bottom ? 1 : 0)),
    );
  });
  return tensor(rows, { dtype: 'float32' }).unsqueeze(1);
}

/** Numbers between 0 and 1 that are the same on every rank. */
function randomNumbers(seed: number): () => number {
  let state = seed;
  return () => {
    state = (Math.imul(state, 1664525) + 1013904223) >>> 0;
    return state / 2 ** 32;
  };
}

if (isMainThread) {
  const { values } = parseArgs({
    options: { schedule: { type: 'string', default: '1F1B' }, steps: { type: 'string', default: '150' } },
  });
  const data: Options = { schedule: findSchedule(values.schedule).name, steps: Number(values.steps) };
  await launch({ ranks, mode: 'threads', script: new URL(import.meta.url), data }).done;
}
