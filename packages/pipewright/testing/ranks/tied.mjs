// @ts-check
/** @file Ranks of a pipeline of two stages that share a parameter, and something happens to one of its copies between steps. */
import { distributed, manualSeed, nn, ones, randn, scope } from '@pipewright/torch';
import { PipelineError, PipelineRuntime, PipelineStage } from 'pipewright';
import { runAsProgram } from './program.mjs';

/** @typedef {import('@pipewright/torch').Tensor} Tensor */

const WIDTH = 3;

/**
 * What happens before the second step, by name.
 * @type {Record<string, (module: nn.Linear, rank: number) => void>}
 */
const events = {
  'replaced on all stages': (module) => {
    module.weight = new nn.Parameter(ones([WIDTH, WIDTH]).mul(0.3));
  },
  'replaced on stage 1': (module, rank) => {
    if (rank === 1) module.weight = new nn.Parameter(ones([WIDTH, WIDTH]).mul(0.3));
  },
};

/** One case. @param {distributed.ProcessGroup} group @param {string} event */
function train(group, event) {
  const happen = events[event];
  if (happen === undefined) throw new Error(`no event '${event}'`);
  return scope(() => {
    const { rank } = group;
    manualSeed(rank);
    const module = new nn.Linear(WIDTH, WIDTH);
    const stage = new PipelineStage(module, rank, group.size, { group, ties: { weight: 'w' } });
    const make = () => new PipelineRuntime(stage, '1F1B', { microbatches: 2, lossFn: nn.functional.mseLoss, group });
    manualSeed(9);
    const [x, y] = [randn([4, WIDTH]), randn([4, WIDTH])];
    /** @type {{ code: string | null, message: string, grad: unknown, weight: unknown }[]} */
    const steps = [];
    const step = (/** @type {PipelineRuntime} */ runtime) => {
      let [code, message] = /** @type {[string | null, string]} */ ([null, '']);
      try {
        runtime.step(x, { target: y });
      } catch (error) {
        if (!(error instanceof PipelineError)) throw error;
        ({ code, message } = error);
      }
      steps.push({ code, message, grad: module.weight.grad?.toArray() ?? null, weight: module.weight.toArray() });
      module.zeroGrad();
    };
    const runtime = make();
    step(runtime);
    happen(module, rank);
    step(runtime);
    // A new runtime goes on with what is there.
    step(make());
    return steps;
  });
}

/** @param {string[]} cases */
export function main(cases) {
  const group = distributed.initProcessGroup({ timeoutMs: 60_000 });
  return cases.map((event) => train(group, event));
}

await runAsProgram(import.meta.url, main);
