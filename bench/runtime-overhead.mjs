// @ts-check
/**
 * @file What the runtime itself costs: stages that compute nothing (they return their input), so that all that is left is
 * walking the schedule, handing over and sending: `node bench/runtime-overhead.mjs`. Processor time per action, best of
 * rounds; one rank with four stages, and thread ranks that exchange messages.
 */
import { isMainThread } from 'node:worker_threads';
import { buildSchedule } from '@pipewright/schedule';
import { distributed, nn, ones, scope } from '@pipewright/torch';
import { PipelineRuntime, PipelineStage } from 'pipewright';

const MICROBATCHES = 256;

/** Returns its input; the first stage a parameter instead, so that there is a backward. */
class Nothing extends nn.Module {
  /** @param {boolean} first */
  constructor(first) {
    super();
    this.start = first ? new nn.Parameter(ones([1])) : null;
  }

  /** @param {import('@pipewright/torch').Tensor} x */
  forward(x) {
    return this.start ?? x;
  }
}

/** @param {{ ranks: number, stagesPerRank: number, schedule: string, backward: boolean }} setting */
export function main({ ranks, stagesPerRank, schedule, backward }) {
  const group = ranks > 1 ? distributed.initProcessGroup() : undefined;
  const rank = group?.rank ?? 0;
  const plan = buildSchedule(schedule, { ranks, stagesPerRank, microbatches: MICROBATCHES });
  const mine = plan.stagesOf(rank);
  const stages = mine.map((s) => new PipelineStage(new Nothing(s === 0 && backward), s, plan.stages, { group }));
  const runtime = new PipelineRuntime(stages, plan, {
    ...(backward ? { lossFn: (/** @type {import('@pipewright/torch').Tensor} */ y) => y } : {}),
  });
  const x = ones([MICROBATCHES, 1]);
  const step = () => scope(() => void runtime.step(x, { returnOutputs: false }));
  for (let i = 0; i < 20; i++) step();
  const row = runtime.schedule.order[rank] ?? [];
  const kinds = backward ? row : row.filter((cell) => cell !== null && /F$/.test(cell.kind));
  const actions = kinds.filter((cell) => cell !== null).length;
  let best = Number.POSITIVE_INFINITY;
  for (let round = 0; round < 15; round++) {
    group?.barrier();
    const cpu = process.cpuUsage();
    const start = performance.now();
    for (let i = 0; i < 5; i++) step();
    const wall = performance.now() - start;
    const { user, system } = process.cpuUsage(cpu); // of all threads
    best = Math.min(best, ranks > 1 ? wall : Math.min(wall, (user + system) / 1000));
  }
  return (best * 1000) / 5 / actions;
}

if (isMainThread) {
  for (const setting of [
    { ranks: 1, stagesPerRank: 4, schedule: 'Interleaved1F1B', backward: false },
    { ranks: 1, stagesPerRank: 4, schedule: 'Interleaved1F1B', backward: true },
    { ranks: 1, stagesPerRank: 4, schedule: 'InterleavedZeroBubble', backward: true },
    { ranks: 2, stagesPerRank: 1, schedule: '1F1B', backward: false },
    { ranks: 2, stagesPerRank: 1, schedule: '1F1B', backward: true },
  ]) {
    const cost =
      setting.ranks === 1
        ? main(setting)
        : Math.max(
            .../** @type {number[]} */ (
              await distributed.spawnThreads(setting.ranks, new URL(import.meta.url), setting).done
            ),
          );
    const { ranks, stagesPerRank, schedule, backward } = setting;
    const what = `${ranks} rank${ranks === 1 ? '' : 's'}, ${stagesPerRank} stage${stagesPerRank === 1 ? '' : 's'} each`;
    console.log(
      `${schedule.padEnd(22)} ${what.padEnd(24)} ${backward ? 'step' : 'forward only'}: ${cost.toFixed(2)} us per action`,
    );
  }
}
