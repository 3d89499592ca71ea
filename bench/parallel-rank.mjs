// @ts-check
/** @file One rank of bench/parallel.mjs: a GPT in stages with replicas or shards beside the pipeline, timed step by step. */
import { openSync, readFileSync, readSync, writeSync } from 'node:fs';
import { buildSchedule, meanCosts, recordedActions, simulate } from '@pipewright/schedule';
import { cuda, distributed, manualSeed, optim, scope } from '@pipewright/torch';
import { fullyShard, initDeviceMesh, PipelineRuntime, PipelineStage, Recorder, replicate } from 'pipewright';
import { batch, lossFn, Part } from './pipeline-rank.mjs';

/** @typedef {import('@pipewright/torch').Tensor} Tensor */
/** @typedef {import('@pipewright/schedule').Recording} Recording */
/** @typedef {import('@pipewright/schedule').RecordedStep} RecordedStep */
/** @typedef {import('@pipewright/schedule').Simulation} Simulation */

/**
 * @typedef {import('./pipeline-rank.mjs').Setting & { pp: number, dp: number, wrap: 'none' | 'replicate' | 'optimizer' | 'gradients' | 'shards',
 *   record?: boolean }} Setting
 */

/** @param {Setting} setting */
export function main(setting) {
  const { pp, dp, stagesPerRank, layers, schedule, microbatches, steps, warmup, wrap, dtype } = setting;
  const device = setting.device === 'cuda' ? 'cuda' : 'cpu';
  const world = distributed.initProcessGroup();
  const mesh = initDeviceMesh(device, [pp, dp], ['pp', 'dp']);
  const plan = buildSchedule(schedule, { ranks: pp, stagesPerRank, microbatches });
  const own = plan.stagesOf(mesh.getLocalRank('pp'));
  const cut = (/** @type {number} */ i) => Math.floor((layers * i) / plan.stages);
  manualSeed(0);
  const stages = own.map((index) => {
    const part = new Part(setting, cut(index), cut(index + 1));
    part.to({ device, dtype: /** @type {any} */ (dtype) });
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
      if (device === 'cuda') cuda.synchronize();
      world.barrier();
    });
    const ms = performance.now() - start;
    if (step >= warmup) times.push(ms);
    if (pace !== undefined) writeSync(1, `${JSON.stringify({ ms })}\n`);
  }
  const peakMiB =
    device === 'cuda'
      ? cuda.maxMemoryAllocated(device) / 2 ** 20
      : Number(/VmHWM:\s+(\d+)/.exec(readFileSync('/proc/self/status', 'utf8'))?.[1]) / 1024;
  return { times, peakMiB, ...(recorder === undefined ? {} : predicted(recorder, runtime)) };
}

/** @typedef {{ rank: number, kind: string, recorded: number, processor: number, simulated: number }} KindTimes */

/**
 * The recorded step beside what the simulator says with the costs of the same recording, where the difference is, and how much of
 * the communication computing did not wait for. Both from the quicker half of the steps: what else the machine did meets both.
 * @param {Recorder} recorder @param {PipelineRuntime} runtime
 */
function predicted(recorder, runtime) {
  const all = recorder.gather();
  if (all === null) return {};
  const span = (/** @type {RecordedStep} */ { ranks }) =>
    Math.max(...ranks.map(({ end }) => end)) - Math.min(...ranks.map(({ begin }) => begin));
  const sorted = all.steps.slice(2).sort((a, b) => span(a) - span(b));
  const recording = { ...all, steps: sorted.slice(0, Math.ceil(sorted.length / 2)) };
  const recordedMs = recording.steps.reduce((sum, step) => sum + span(step), 0) / recording.steps.length;
  const costs = meanCosts(recording);
  const simulation = simulate(runtime.schedule, costs);
  const { gathered, waitedForGathers, reduced, waitedForReductions } = /** @type {any} */ (runtime).parallel.times;
  const communicated = gathered + reduced;
  return {
    recordedMs,
    simulatedMs: simulation.makespan,
    cores: costs.cores,
    hiddenShare: communicated === 0 ? 1 : 1 - (waitedForGathers + waitedForReductions) / communicated,
    kinds: kindTimes(recording, simulation, recordedMs),
  };
}

/**
 * Milliseconds of a step by rank and kind: recorded, of a processor, simulated. Receives are what was waited for; the last lines of
 * a rank are the time from the first rank's beginning to its own first action, from its last action to the end of all ranks, and
 * what no action has in between.
 * @param {Recording} recording @param {Simulation} simulation @param {number} recordedMs @returns {KindTimes[]}
 */
function kindTimes(recording, simulation, recordedMs) {
  const { schedule } = simulation;
  const perStep = 1 / recording.steps.length;
  const sent = ['SEND_F', 'SEND_B'];
  return schedule.order.flatMap((row, rank) => {
    const kinds = [...new Set(row.flatMap((action) => (action === null ? [] : [action.kind])))];
    /** @type {Map<string, KindTimes>} */
    const lines = new Map(kinds.map((kind) => [kind, { rank, kind, recorded: 0, processor: 0, simulated: 0 }]));
    const line = (/** @type {string} */ kind) => /** @type {KindTimes} */ (lines.get(kind));
    const edges = { before: 0, after: 0 };
    recording.steps.forEach((step, at) => {
      const entries = row.filter((action) => action !== null); // nothing overlaps here: one entry for each
      entries.forEach(({ kind }, index) => {
        line(kind).processor += perStep * Math.max(0, step.ranks[rank]?.busy?.[index] ?? 0);
      });
      const events = recordedActions(recording, at).filter((event) => event.rank === rank);
      edges.before +=
        perStep * (Math.min(...events.map(({ start }) => start)) - Math.min(...step.ranks.map(({ begin }) => begin)));
      edges.after +=
        perStep * (Math.max(...step.ranks.map(({ end }) => end)) - Math.max(...events.map(({ end }) => end)));
      for (const { action, start, end } of events) line(action.kind).recorded += perStep * (end - start);
      // What is sent in the middle of a backward is no part of it.
      for (const send of events.filter(({ action }) => sent.includes(action.kind)))
        if (events.some(({ action, start, end }) => action.kind === 'B' && start <= send.start && send.end <= end))
          line('B').recorded -= perStep * (send.end - send.start);
    });
    let free = 0;
    for (const { rank: of, action, start, end } of simulation.events()) {
      if (of !== rank || action.kind.startsWith('RECV')) continue;
      const receive = lines.get(action.kind === 'F' ? 'RECV_F' : 'RECV_B');
      if (receive !== undefined && (action.kind === 'F' || action.kind === 'B') && start > free)
        receive.simulated += start - free;
      line(action.kind).simulated += end - start;
      free = Math.max(free, end);
    }
    const found = [...lines.values()];
    const total = (/** @type {'recorded' | 'simulated'} */ of) => found.reduce((sum, each) => sum + each[of], 0);
    const after = simulation.makespan - free;
    const between = recordedMs - total('recorded') - edges.before - edges.after;
    return [
      ...found,
      { rank, kind: 'before', recorded: edges.before, processor: 0, simulated: 0 },
      {
        rank,
        kind: 'between',
        recorded: between,
        processor: 0,
        simulated: simulation.makespan - total('simulated') - after,
      },
      { rank, kind: 'after', recorded: edges.after, processor: 0, simulated: after },
    ];
  });
}
