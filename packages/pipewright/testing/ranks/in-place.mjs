/**
 * @file What ranks do in the test of changes in place: the middle one of three stages changes what it received, which the
 * last one gets too, by a skip connection. Started like `training.mjs`.
 */
import { distributed, float64, nn, ones, scope } from '@pipewright/torch';
import { PipelineRuntime, PipelineStage } from 'pipewright';
import { runAsProgram } from './program.mjs';

/**
 * @typedef {import('@pipewright/torch').Tensor} Tensor
 * @typedef {{ readonly share: keyof typeof shares, readonly transposed: boolean }} Case
 */

class Stage extends nn.Module {
  /** @param {((...inputs: any[]) => Tensor | Tensor[]) | undefined} run */
  constructor(run) {
    super();
    this.run = run;
  }
  /** @param {Tensor[]} inputs */
  forward(...inputs) {
    return this.run?.(...inputs) ?? inputs;
  }
}

/** What the first stage gives to the two others: the very same tensor, views of one memory, or two tensors. */
const shares = {
  same: (/** @type {Tensor} */ h) => [h, h],
  view: (/** @type {Tensor} */ h) => [h, h.view([-1])],
  copy: (/** @type {Tensor} */ h) => [h, h.clone()],
};

/**
 * The output of an eval on the last rank; null on the others.
 * @param {distributed.ProcessGroup} group
 * @param {Case} options
 */
function run(group, { share, transposed }) {
  return scope(() => {
    const wiring = [{}, { inputs: [{ stage: 0, output: 0 }] }, { inputs: [{ stage: 1 }, { stage: 0, output: 1 }] }];
    const work = [
      (/** @type {Tensor} */ x) => shares[share](transposed ? x.add(1).t().contiguous().t() : x.add(1)),
      (/** @type {Tensor} */ h) => h.mul_(100),
      (/** @type {Tensor} */ y, /** @type {Tensor} */ skip) => y.add(skip.reshape(y.shape)),
    ];
    const stage = new PipelineStage(new Stage(work[group.rank]), group.rank, 3, wiring[group.rank]);
    const runtime = new PipelineRuntime(stage, 'GPipe', { microbatches: 2, group });
    const x = ones([4, 2], { dtype: float64 });
    const output = runtime.eval(x);
    const result = output === undefined ? null : output.flatten().toArray();
    runtime.dispose();
    return { result, given: x.flatten().toArray() };
  });
}

/** @param {readonly Case[]} cases */
export function main(cases) {
  const group = distributed.initProcessGroup({ timeoutMs: 100_000 });
  return cases.map((one) => run(group, one));
}

await runAsProgram(import.meta.url, main);
