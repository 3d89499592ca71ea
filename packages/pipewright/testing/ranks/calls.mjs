// @ts-check
/** @file Ranks of a pipeline that make different calls once, and then the same ones. */
import { distributed, manualSeed, nn, randn, scope } from '@pipewright/torch';
import { PipelineError, PipelineRuntime, PipelineStage } from 'pipewright';
import { withHostLanes } from '../host-lanes.mjs';
import { runAsProgram } from './program.mjs';

const WIDTH = 3;

/** A call of the runtime. @typedef {{ method: 'step' | 'eval', everywhere?: boolean, misspelt?: boolean }} Call */

/**
 * What each rank calls, one after the other: the last list is for all other ranks.
 * @typedef {{ calls: readonly (readonly Call[])[], lanes?: boolean, ragged?: boolean }} CallsCase
 */

/** Every second output is narrower, so that they cannot be merged. */
class Ragged extends nn.Linear {
  calls = 0;

  /** @override @param {import('@pipewright/torch').Tensor} x */
  forward(x) {
    const y = super.forward(x);
    return this.calls++ % 2 === 0 ? y : y.narrow(1, 0, 2);
  }
}

/** @param {distributed.ProcessGroup} given @param {CallsCase} one */
function train(given, { calls, lanes = false, ragged = false }) {
  const group = lanes ? withHostLanes(given) : given;
  const { rank, size } = group;
  return scope(() => {
    manualSeed(rank);
    const module = ragged && rank === size - 1 ? new Ragged(WIDTH, WIDTH) : new nn.Linear(WIDTH, WIDTH);
    const random = new nn.NamedRandom({ seed: 1 });
    const lossFn = (/** @type {import('@pipewright/torch').Tensor} */ y) => y.square().mean();
    const stage = new PipelineStage(module, rank, size, { group });
    const runtime = new PipelineRuntime(stage, '1F1B', { microbatches: 2, lossFn, group, random });
    return (calls[rank] ?? calls.at(-1) ?? []).map(({ method, everywhere, misspelt }, number) => {
      manualSeed(number);
      const [x, target] = [randn([4, WIDTH]), randn([4, WIDTH])];
      /** @type {import('@pipewright/torch').Tensor[]} */
      const losses = [];
      /** @type {any} */
      const options = {
        target,
        losses,
        ...(everywhere && { returnOutputs: 'everywhere' }),
        ...(misspelt && { taget: x }),
      };
      try {
        const outputs = runtime[method](x, options)?.toArray() ?? null;
        return { code: null, message: '', outputs, losses: losses.length, randomStep: random.step };
      } catch (error) {
        const code = error instanceof PipelineError ? error.code : 'OTHER';
        return { code, message: String(error), outputs: null, losses: losses.length, randomStep: random.step };
      } finally {
        module.zeroGrad();
      }
    });
  });
}

/** @param {CallsCase[]} cases */
export function main(cases) {
  const group = distributed.initProcessGroup({ timeoutMs: 30_000 });
  return cases.map((one) => train(group, one));
}

await runAsProgram(import.meta.url, main);
