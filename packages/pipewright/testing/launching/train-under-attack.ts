/** @file What ranks do while they are attacked: a pipeline of one stage per rank trains until a file says that it is enough. */
import { existsSync, writeFileSync } from 'node:fs';
import { setTimeout as sleep } from 'node:timers/promises';
import type { Tensor } from '@pipewright/torch';

const width = 8;
const rows = 12;

/** Trains at least `steps` steps, further until `stop` is there, and gives the losses and weights after the first `steps`. */
export async function main({ steps, file }: { steps: number; file: string }): Promise<unknown> {
  const { arange, distributed, manualSeed, nn, optim } = await import('@pipewright/torch');
  const { PipelineRuntime, PipelineStage } = (await import(
    new URL('../../dist/index.js', import.meta.url).href
  )) as typeof import('pipewright');
  const group = distributed.initProcessGroup();
  manualSeed(group.rank);
  const module = new nn.Sequential(new nn.Linear(width, width), new nn.Tanh()).to('float64');
  const stage = new PipelineStage(module, group.rank, group.size);
  const lossFn = (output: Tensor, target: Tensor): Tensor => nn.functional.mseLoss(output, target);
  const runtime = new PipelineRuntime(stage, '1F1B', { microbatches: 4, lossFn });
  const optimizer = new optim.SGD(module.parameters(), { lr: 0.05 });
  const numbers = (scale: number): Tensor =>
    arange(rows * width, { dtype: 'float64' })
      .mul(scale)
      .cos()
      .reshape([rows, width]);
  const [x, y] = [numbers(0.05), numbers(0.03)];
  let result: unknown;
  for (let step = 1; ; step++) {
    const losses: Tensor[] = [];
    optimizer.zeroGrad();
    runtime.step(x, { target: y, losses });
    optimizer.step();
    if (step === steps) {
      const weights = [...module.parameters()].map((one) =>
        Buffer.from(one.detach().toTypedArray().buffer).toString('hex'),
      );
      result = { losses: losses.map((loss) => loss.item()), weights };
    }
    if (step === 2) writeFileSync(`${file}.${group.rank}`, String(process.pid));
    // All end after the same step.
    const enough = group.broadcastObject(group.rank === 0 ? step >= steps && existsSync(`${file}.stop`) : undefined, 0);
    if (enough === true) return result;
    await sleep(2);
  }
}
