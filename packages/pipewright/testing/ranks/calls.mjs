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
 * @typedef {{ calls: readonly (readonly Call[])[], lanes?: boolean }} CallsCase
 */

/** @param {distributed.ProcessGroup} given @param {CallsCase} one */
function train(given, { calls, lanes = false }) {
  const group = lanes ? withHostLanes(given) : given;
  const { rank, size } = group;
  return scope(() => {
    manualSeed(rank);
    const module = new nn.Linear(WIDTH, WIDTH);
    const stage = new PipelineStage(module, rank, size, { group });
    const runtime = new PipelineRuntime(stage, '1F1B', { microbatches: 2, lossFn: nn.functional.mseLoss, group });
    return (calls[rank] ?? calls.at(-1) ?? []).map(({ method, everywhere, misspelt }, number) => {
      manualSeed(number);
      const [x, target] = [randn([4, WIDTH]), randn([4, WIDTH])];
      /** @type {any} */
      const options = { target, ...(everywhere && { returnOutputs: 'everywhere' }), ...(misspelt && { taget: x }) };
      try {
        const outputs = runtime[method](x, options)?.toArray() ?? null;
        return { code: null, message: '', outputs, grad: module.weight.grad?.toArray() ?? null };
      } catch (error) {
        return { code: error instanceof PipelineError ? error.code : 'OTHER', message: String(error), outputs: null };
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
