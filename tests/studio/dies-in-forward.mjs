// @ts-check
/**
 * @file Two ranks, 1F1B, four microbatches. In step 9 rank 1 stays in the forward of microbatch 2 until a file is there, and then
 * kills itself. Arguments: the file.
 */
import { existsSync } from 'node:fs';
import { distributed, nn, randn, scope } from '@pipewright/torch';
import { PipelineRuntime, PipelineStage } from 'pipewright';

const [file = ''] = process.argv.slice(2);
const microbatches = 4;

class Dies extends nn.Module {
  calls = 0;
  linear = new nn.Linear(8, 8);

  /** @param {import('@pipewright/torch').Tensor} x */
  forward(x) {
    if (this.calls++ === 9 * microbatches + 2) {
      while (!existsSync(file)) Atomics.wait(new Int32Array(new SharedArrayBuffer(4)), 0, 0, 50);
      process.kill(process.pid, 'SIGKILL');
    }
    return this.linear.forward(x);
  }
}

export function main() {
  const { rank, size } = distributed.initProcessGroup();
  const stage = new PipelineStage(rank === 1 ? new Dies() : new nn.Linear(8, 8), rank, size);
  const lossFn = (/** @type {import('@pipewright/torch').Tensor} */ y) => y.square().mean();
  const runtime = new PipelineRuntime(stage, '1F1B', { microbatches, lossFn });
  for (let step = 0; step < 12; step++) scope(() => void runtime.step(randn([8, 8])));
}
