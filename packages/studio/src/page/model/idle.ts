/** @file Why ranks are idle: the idle time of a step by cause, and the sentence that says what matters most. */
import { percent, type Simulation } from '@pipewright/schedule';
import { Code, isSendCode, wordCode } from '@pipewright/schedule/internal';

/** Idle time of one rank, by cause; the sum with `busy` is the makespan. */
export interface RankIdle {
  readonly rank: number;
  readonly busy: number;
  /** Before its first action: the pipeline fills. */
  readonly fill: number;
  /** After its last action: the pipeline drains. */
  readonly drain: number;
  /** Waiting for an activation that another rank has not computed yet, by that rank. */
  readonly activation: number;
  /** Waiting for a gradient that another rank has not computed yet. */
  readonly gradient: number;
  /** Waiting for a message under way. */
  readonly message: number;
  /** Waits in the middle of the step, by the rank that is waited for. */
  readonly waitsFor: ReadonlyMap<number, number>;
}

const known = new WeakMap<Simulation, readonly RankIdle[]>();

/** The idle time of every rank by cause; worked out once for a simulation. */
export function idleByCause(simulation: Simulation): readonly RankIdle[] {
  let found = known.get(simulation);
  if (found === undefined) known.set(simulation, (found = addUpIdle(simulation)));
  return found;
}

/** Keeps idle times that are known already. */
export function keepIdle(simulation: Simulation, idle: readonly RankIdle[]): void {
  known.set(simulation, idle);
}

function addUpIdle(simulation: Simulation): RankIdle[] {
  const { schedule, offsets, start, end, cause, makespan } = simulation;
  return schedule.rows.map((row, rank) => {
    const offset = offsets[rank]!;
    let free = 0;
    let first = true;
    let busy = 0;
    const sums = { fill: 0, activation: 0, gradient: 0, message: 0 };
    const waitsFor = new Map<number, number>();
    for (let slot = 0; slot < row.length; slot++) {
      if (row[slot] === 0 || end[offset + slot]! <= start[offset + slot]!) continue;
      const code = wordCode(row[slot]!);
      if (code > Code.B && code < Code.OverlapFB) continue; // runs beside
      const begin = start[offset + slot]!;
      const gap = begin - free;
      if (gap > 0 && first) sums.fill += gap;
      else if (gap > 0) {
        const by = cause[offset + slot]!;
        const other = by < 0 ? rank : rankOf(offsets, by);
        // A message is under way from the end of what made it, or from the beginning of its send.
        const sends = by >= 0 && isSendCode(wordCode(schedule.rows[other]![by - offsets[other]!]!));
        const left = by < 0 ? begin : sends ? start[by]! : end[by]!;
        const underWay = Math.min(gap, Math.max(0, begin - left));
        sums.message += underWay;
        sums[code === Code.F ? 'activation' : 'gradient'] += gap - underWay;
        if (other !== rank) waitsFor.set(other, (waitsFor.get(other) ?? 0) + gap);
      }
      first = false;
      busy += end[offset + slot]! - begin;
      free = end[offset + slot]!;
    }
    return { rank, busy, ...sums, drain: makespan - free, waitsFor };
  });
}

/** What matters most about a step, in one sentence. */
export function sayIdle(simulation: Simulation): string {
  const { makespan, bubble, schedule } = simulation;
  if (makespan === 0) return 'Nothing takes any time.';
  const idle = idleByCause(simulation);
  let worst: { rank: number; other: number; time: number } | null = null;
  for (const { rank, waitsFor } of idle)
    for (const [other, time] of waitsFor) if (worst === null || time > worst.time) worst = { rank, other, time };
  const ends = idle.reduce((sum, { fill, drain }) => sum + fill + drain, 0) / (makespan * schedule.ranks);
  const middle = bubble.makespan - ends;
  const heaviest = idle.reduce((a, b) => (b.busy > a.busy ? b : a));
  const mean = idle.reduce((sum, { busy }) => sum + busy, 0) / Math.max(1, idle.length);
  if (heaviest.busy > mean * 1.1 && heaviest.busy > makespan * 0.8)
    return `Rank ${heaviest.rank} computes ${percent(heaviest.busy / mean - 1)} more than the mean: it limits the step time; move work off it.`;
  if (bubble.makespan < 0.005) return 'Hardly any rank is ever idle.';
  if (worst !== null && middle > ends)
    return `Rank ${worst.rank} waits ${percent(worst.time / makespan)} of the step for rank ${worst.other}.`;
  return `${percent(ends)} of the ranks' time goes into filling and draining the pipeline; more microbatches reduce it.`;
}

function rankOf(offsets: Int32Array, cell: number): number {
  let low = 0;
  let high = offsets.length - 2;
  while (low < high) {
    const middle = (low + high + 1) >> 1;
    if (offsets[middle]! <= cell) low = middle;
    else high = middle - 1;
  }
  return low;
}
