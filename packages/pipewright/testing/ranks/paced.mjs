// @ts-check
/**
 * @file Ranks whose actions take a known time, with shards beside a pipeline: `sleep` takes it without a processor, `work` takes it of
 * one, by the thread's own clock. So what comes out does not depend on the speed of the machine.
 */
import { simulate } from '@pipewright/schedule';
import { distributed, manualSeed, nn, randn } from '@pipewright/torch';
import { threadTime } from '@pipewright/torch/internal';
import { fullyShard, initDeviceMesh, PipelineRuntime, PipelineStage, Recorder } from 'pipewright';
import { runAsProgram } from './program.mjs';

/**
 * @typedef {import('@pipewright/schedule').Action['kind']} Kind
 * @typedef {import('@pipewright/torch').Tensor} Tensor
 */

const cell = new Int32Array(new SharedArrayBuffer(4));
/** @type {Record<string, (ms: number) => void>} */
const ways = {
  sleep(ms) {
    const end = performance.now() + ms;
    for (let left = ms; left > 0; left = end - performance.now()) Atomics.wait(cell, 0, 0, left);
  },
  work(ms) {
    const end = threadTime() + ms;
    while (threadTime() < end);
  },
};

/**
 * Steps until one of them has taken at most `enough` times what the simulator says on all ranks, or `steps` of them.
 * @param {{ way: string, steps: number, enough?: number, times: Partial<Record<Kind, number>> }} settings
 */
export function main({ way, steps, enough = 0, times }) {
  if (!distributed.isInitialized()) distributed.initProcessGroup();
  const mesh = initDeviceMesh('cpu', [2, 2], ['pp', 'dp']);
  manualSeed(1);
  const module = new nn.Linear(4, 4);
  fullyShard(module, { mesh: mesh.get('dp') });
  const stage = new PipelineStage(module, mesh.getLocalRank('pp'), 2, { group: mesh.getGroup('pp') });
  const recorder = new Recorder();
  const runtime = new PipelineRuntime(stage, '1F1B', {
    microbatches: 4,
    lossFn: (/** @type {Tensor} */ output, /** @type {Tensor} */ target) => nn.functional.mseLoss(output, target),
    record: recorder,
  });
  for (const [kind, ms] of /** @type {[Kind, number][]} */ (Object.entries(times)))
    runtime.registerCustomFunction(kind, (_, context) => {
      context.run(); // what it waits for is there afterwards
      /** @type {(ms: number) => void} */ (ways[way])(ms);
    });
  const [x, y] = [randn([4, 4]), randn([4, 4])];
  const { F = 0, B = 0, UNSHARD = 0, REDUCE_GRAD = 0, RESHARD = 0 } = times;
  const overhead = { unshard: UNSHARD, reduceGrad: REDUCE_GRAD };
  const simulated = simulate(runtime.schedule, { F, B, reshard: RESHARD, overhead }).makespan;
  for (let step = 0; step < steps; step++) {
    runtime.step(x, { target: y });
    const seconds = distributed.getDefaultGroup().allGatherObject(recorder.lastStep?.seconds ?? null);
    if (seconds.every((each) => each !== null && 1000 * Number(each) <= enough * simulated)) break;
  }
  const recording = recorder.gather();
  return recording === null ? null : { recording, simulated };
}

await runAsProgram(import.meta.url, main);
