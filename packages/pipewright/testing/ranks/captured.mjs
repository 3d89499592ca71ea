// @ts-check
/**
 * @file A rank of a pipeline of threads whose steps are captured as one graph, without a GPU: the graph is one that does nothing
 * again, which is right where every step is given the same. What is tested is who waits for whom, also where a recording fails.
 * `node captured.mjs 2 '<case>'` runs a case on two threads and prints what its ranks return as one line of JSON.
 */
import { buildSchedule } from '@pipewright/schedule';
import { distributed, manualSeed, nn, ones, scope } from '@pipewright/torch';
import { PipelineRuntime, PipelineStage } from 'pipewright';
import { JointGraph } from '../../dist/runtime/transport/joint-graph.js';
import { runAsProgram } from './program.mjs';

const MICROBATCHES = 4;
const WIDTH = 3;
const STEPS = 4;

/** @typedef {'none' | 'prepare' | 'begin' | 'forward' | 'backward' | 'end'} Fault */
/** @typedef {{ schedule: import('@pipewright/schedule').ScheduleName, ranks: number, tied: boolean, capture: boolean, fault: Fault, rank: number }} Case */

/** A layer that fails in one of its calls while a step is recorded. */
class Layer extends nn.Module {
  linear = new nn.Linear(WIDTH, WIDTH).double();
  calls = 0;

  /** @param {{ fails: (calls: number) => Fault }} options */
  constructor({ fails }) {
    super();
    this.fails = fails;
  }

  /** @param {import('@pipewright/torch').Tensor} x */
  forward(x) {
    const fault = this.fails(this.calls++);
    if (fault === 'forward') throw new Error('this layer waits for the GPU');
    const y = this.linear.forward(x).tanh();
    if (fault === 'backward')
      y.registerHook(() => {
        throw new Error('this hook waits for the GPU');
      });
    return y;
  }
}

/** @param {Case} one */
export function main(one) {
  const group = distributed.initProcessGroup({ timeoutMs: 20_000 });
  const plan = buildSchedule(one.schedule, { ranks: one.ranks, microbatches: MICROBATCHES });
  const fault = group.rank === one.rank ? one.fault : 'none';
  const isRecording = () => internals.capture?.isRecording === true;
  const stages = plan.stagesOf(group.rank).map((index) => {
    manualSeed(index);
    const isEnd = index === 0 || index === plan.stages - 1;
    const module = new Layer({ fails: (calls) => (isRecording() && calls % MICROBATCHES === 2 ? fault : 'none') });
    return new PipelineStage(module, index, plan.stages, {
      group,
      ...(one.tied && isEnd ? { ties: { 'linear.weight': 'w' } } : {}),
    });
  });
  const runtime = new PipelineRuntime(stages, plan, { lossFn: nn.functional.mseLoss, group, capture: one.capture });
  const internals = /** @type {any} */ (runtime);
  if (one.capture) internals.captureSteps().problem = null; // it is on the CPU
  let replays = 0;
  const graph = {
    capture: (/** @type {() => unknown} */ body) => {
      if (fault === 'begin') throw new Error('no recording begins');
      const value = body();
      if (fault === 'end') throw new Error('no recording ends');
      return value;
    },
    replay: () => replays++,
    reset: () => undefined,
  };
  const token = () => {
    if (fault === 'prepare') throw new Error('no memory');
    return ones([1]);
  };
  const device = { graph, inSideStream: (/** @type {() => unknown} */ body) => body(), token };
  internals.transport.newGraph = () => new JointGraph(group, /** @type {any} */ (device));
  manualSeed(99);
  const [x, y] = [ones([8, WIDTH], { dtype: 'float64' }).mul(0.5), ones([8, WIDTH], { dtype: 'float64' })];
  /** @type {number[][]} */
  const losses = [];
  for (let step = 0; step < STEPS; step++)
    scope(() => {
      /** @type {import('@pipewright/torch').Tensor[]} */
      const found = [];
      runtime.step(x, { target: y, losses: found });
      losses.push(found.map((loss) => loss.item()));
    });
  return {
    losses,
    replays,
    gradients: stages.flatMap(({ module }) => module.parameters().map((p) => p.grad?.flatten().toArray() ?? null)),
    inFlight: stages.reduce((sum, stage) => sum + stage.inFlight, 0),
    problem: runtime.captureProblem,
  };
}

await runAsProgram(import.meta.url, main);
