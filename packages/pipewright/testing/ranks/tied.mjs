// @ts-check
/** @file Ranks of a pipeline of two stages that share a parameter, and something happens to one of its copies between steps. */
import { distributed, manualSeed, nn, ones, randn, scope } from '@pipewright/torch';
import { PipelineError, PipelineRuntime, PipelineStage } from 'pipewright';
import { withHostLanes } from '../host-lanes.mjs';
import { runAsProgram } from './program.mjs';

/** @typedef {import('@pipewright/torch').Tensor} Tensor */

const WIDTH = 3;

/** Puts a new parameter in the place of the weight. @param {nn.Linear} module */
function replace(module) {
  module.weight = new nn.Parameter(ones([WIDTH, WIDTH]).mul(0.3));
}

/**
 * What happens before each step, by name.
 * @type {Record<string, (module: nn.Linear, rank: number, step: number) => void>}
 */
const events = {
  'replaced on all stages': (module, _, step) => {
    if (step === 1) replace(module);
  },
  'replaced on stage 1': (module, rank, step) => {
    if (rank === 1 && step === 1) replace(module);
  },
  'frozen on stage 0 at first': (module, rank, step) => void module.weight.requiresGrad_(rank !== 0 || step > 0),
  'frozen on stage 1 at first': (module, rank, step) => void module.weight.requiresGrad_(rank !== 1 || step > 0),
  'of another shape on stage 1 at first': (module, rank, step) => {
    if (rank === 1 && step < 2)
      module.weight = new nn.Parameter(ones([WIDTH, step === 0 ? WIDTH + 1 : WIDTH]).mul(0.3));
  },
  'of another type on stage 1 at first': (module, rank, step) => {
    if (rank === 1 && step < 2)
      module.weight = new nn.Parameter(ones([WIDTH, WIDTH], { dtype: step === 0 ? 'float64' : 'float32' }).mul(0.3));
  },
  'without a loss on stage 0': () => {},
  'frozen on all stages later': (module, _, step) => void module.weight.requiresGrad_(step === 0),
  'frozen on stage 0 later': (module, rank, step) => void module.weight.requiresGrad_(rank !== 0 || step === 0),
  'frozen on stage 1 later': (module, rank, step) => void module.weight.requiresGrad_(rank !== 1 || step === 0),
};

/** One case; with `, over lanes` behind the event, over lanes. @param {distributed.ProcessGroup} given @param {string} text */
function train(given, text) {
  const [event = '', way] = text.split(', ');
  const group = way === 'over lanes' ? withHostLanes(given) : given;
  const happen = events[event];
  if (happen === undefined) throw new Error(`no event '${event}'`);
  return scope(() => {
    const { rank } = group;
    manualSeed(rank);
    const module = new nn.Linear(WIDTH, WIDTH);
    const stage = new PipelineStage(module, rank, group.size, { group, ties: { weight: 'w' } });
    const loss = event === 'without a loss on stage 0' && rank === 0 ? {} : { lossFn: nn.functional.mseLoss };
    const make = () => new PipelineRuntime(stage, '1F1B', { microbatches: 2, ...loss, group });
    manualSeed(9);
    const [x, y] = [randn([4, WIDTH]), randn([4, WIDTH])];
    /** @type {{ code: string | null, message: string, grad: unknown, weight: unknown }[]} */
    const steps = [];
    const step = (/** @type {PipelineRuntime} */ runtime) => {
      let [code, message] = /** @type {[string | null, string]} */ ([null, '']);
      try {
        runtime.step(x, { target: y });
      } catch (error) {
        [code, message] = [error instanceof PipelineError ? error.code : 'OTHER', String(error)];
      }
      steps.push({ code, message, grad: module.weight.grad?.toArray() ?? null, weight: module.weight.toArray() });
      module.zeroGrad();
    };
    const runtime = make();
    for (let i = 0; i < 3; i++) {
      happen(module, rank, i);
      // A new runtime goes on with what is there.
      step(i === 2 && event.startsWith('replaced') ? make() : runtime);
    }
    return steps;
  });
}

/** @param {string[]} cases */
export function main(cases) {
  const group = distributed.initProcessGroup({ timeoutMs: 60_000 });
  return cases.map((event) => train(group, event));
}

await runAsProgram(import.meta.url, main);
