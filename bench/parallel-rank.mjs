// @ts-check
/** @file One rank of bench/parallel.mjs: a GPT in stages with replicas or shards beside the pipeline, timed step by step. */
import { openSync, readFileSync, readSync, writeSync } from 'node:fs';
import { buildSchedule, meanCosts, simulate } from '@pipewright/schedule';
import { distributed, manualSeed, optim, scope } from '@pipewright/torch';
import { fullyShard, initDeviceMesh, PipelineRuntime, PipelineStage, Recorder, replicate } from 'pipewright';
import { batch, lossFn, Part } from './pipeline-rank.mjs';

/** @typedef {import('@pipewright/torch').Tensor} Tensor */

/**
 * @typedef {import('./pipeline-rank.mjs').Setting & { pp: number, dp: number, wrap: 'none' | 'replicate' | 'optimizer' | 'gradients' | 'shards',
 *   record?: boolean }} Setting
 */

/** @param {Setting} setting */
export function main(setting) {
  const { pp, dp, stagesPerRank, layers, schedule, microbatches, steps, warmup, wrap } = setting;
  const world = distributed.initProcessGroup();
  const mesh = initDeviceMesh('cpu', [pp, dp], ['pp', 'dp']);
  const plan = buildSchedule(schedule, { ranks: pp, stagesPerRank, microbatches });
  const own = plan.stagesOf(mesh.getLocalRank('pp'));
  const cut = (/** @type {number} */ i) => Math.floor((layers * i) / plan.stages);
  manualSeed(0);
  const stages = own.map((index) => {
    const part = new Part(setting, cut(index), cut(index + 1));
    if (wrap === 'replicate') replicate(part, { mesh: mesh.get('dp') });
    else if (wrap !== 'none')
      fullyShard(part, {
        mesh: mesh.get('dp'),
        level: wrap === 'shards' ? 'parameters' : wrap,
        units: [...part.blocks],
      });
    return new PipelineStage(part, index, plan.stages, { group: mesh.getGroup('pp') });
  });
  const recorder = setting.record ? new Recorder({ steps }) : undefined;
  const runtime = new PipelineRuntime(stages, plan, {
    lossFn,
    ...(recorder === undefined ? {} : { record: recorder }),
  });
  const optimizer = new optim.AdamW(
    stages.flatMap(({ module }) => module.parameters()),
    { lr: 1e-4 },
  );
  const [x, y] = batch(setting);
  /** @type {number[]} */
  const times = [];
  const pace = setting.pace === undefined || world.rank > 0 ? undefined : openSync(setting.pace.pipe, 'r');
  for (let step = 0; step < warmup + steps; step++) {
    if (pace !== undefined && step % (setting.pace?.burst ?? 1) === 0 && readSync(pace, new Uint8Array(1)) === 0)
      throw new Error('whoever gave the turns has ended');
    world.barrier();
    const start = performance.now();
    scope(() => {
      optimizer.zeroGrad();
      /** @type {Tensor[]} */
      const losses = [];
      runtime.step(x, { target: y, losses, returnOutputs: false });
      optimizer.step();
      world.barrier();
    });
    const ms = performance.now() - start;
    if (step >= warmup) times.push(ms);
    if (pace !== undefined) writeSync(1, `${JSON.stringify({ ms })}\n`);
  }
  const peakMiB = Number(/VmHWM:\s+(\d+)/.exec(readFileSync('/proc/self/status', 'utf8'))?.[1]) / 1024;
  return { times, peakMiB, ...(recorder === undefined ? {} : predicted(recorder, runtime)) };
}

/**
 * The recorded step beside what the simulator says with the costs of the same recording, and how much of the communication
 * computing did not wait for.
 * @param {Recorder} recorder @param {PipelineRuntime} runtime
 */
function predicted(recorder, runtime) {
  const recording = recorder.gather();
  if (recording === null) return {};
  const { makespan } = simulate(runtime.schedule, meanCosts(recording));
  const spans = recording.steps
    .slice(2)
    .map(({ ranks }) => Math.max(...ranks.map(({ end }) => end)) - Math.min(...ranks.map(({ begin }) => begin)))
    .sort((a, b) => a - b);
  const { gathered, waitedForGathers, reduced, waitedForReductions } = /** @type {any} */ (runtime).parallel.times;
  const communicated = gathered + reduced;
  return {
    simulatedMs: makespan,
    recordedMs: spans[Math.floor(spans.length / 2)] ?? Number.NaN,
    hiddenShare: communicated === 0 ? 1 : 1 - (waitedForGathers + waitedForReductions) / communicated,
  };
}
