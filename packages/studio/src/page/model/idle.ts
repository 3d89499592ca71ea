/** @file Why ranks are idle: the idle time of a step by cause, and the sentence that says what matters most. */
import { percent, type Simulation } from '@pipewright/schedule';
import { Code, isSendCode, wordCode } from '@pipewright/schedule/internal';

/** Idle time of one rank, by cause; the sum with `busy` is the makespan. */
export interface RankIdle {
  readonly rank: number;
  readonly busy: number;
  /** Before its first backward: the pipeline fills. In a step without a backward, before its first action. */
  readonly fill: number;
  /** After its last forward: the pipeline drains. In a step without a backward, after its last action. */
  readonly drain: number;
  /** In between, waiting for an activation that another rank has not computed yet. */
  readonly activation: number;
  /** Waiting for a gradient that another rank has not computed yet. */
  readonly gradient: number;
  /** Waiting for a message under way. */
  readonly message: number;
  /** Waits between filling and draining, by the rank that is waited for. */
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
    const [filled, emptied] = steadySlots(row);
    let free = 0;
    let busy = 0;
    const sums = { fill: 0, drain: 0, activation: 0, gradient: 0, message: 0 };
    const waitsFor = new Map<number, number>();
    for (let slot = 0; slot < row.length; slot++) {
      if (row[slot] === 0 || end[offset + slot]! <= start[offset + slot]!) continue;
      const code = wordCode(row[slot]!);
      if (code > Code.B && code < Code.OverlapFB) continue; // runs beside
      const begin = start[offset + slot]!;
      const gap = begin - free;
      if (gap > 0 && slot <= filled) sums.fill += gap;
      else if (gap > 0 && slot > emptied) sums.drain += gap;
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
      busy += end[offset + slot]! - begin;
      free = end[offset + slot]!;
    }
    return { rank, busy, ...sums, drain: sums.drain + makespan - free, waitsFor };
  });
}

/** The slots of the first backward and of the last forward; without a backward, those of the first and last action. */
function steadySlots(row: Int32Array): readonly [number, number] {
  const isForward = (code: number): boolean => code === Code.F || code === Code.Composite;
  const isBackward = (code: number): boolean => code === Code.I || code === Code.B || code === Code.Composite;
  const first = row.findIndex((word) => isBackward(wordCode(word)));
  const last = row.findLastIndex((word) => isForward(wordCode(word)));
  return first < 0 ? [row.findIndex((word) => isForward(wordCode(word))), last] : [first, last];
}

/** Where the idle time of a step comes from, as shares that add up to what is shown of it, and what would reduce it. */
export function sayIdle(simulation: Simulation): string {
  const { makespan, bubble, schedule } = simulation;
  if (makespan === 0) return 'Nothing takes any time.';
  const idle = idleByCause(simulation);
  let worst: { rank: number; other: number; time: number } | null = null;
  for (const { rank, waitsFor } of idle)
    for (const [other, time] of waitsFor) if (worst === null || time > worst.time) worst = { rank, other, time };
  const share = (of: (one: RankIdle) => number): number =>
    idle.reduce((sum, one) => sum + of(one), 0) / (makespan * schedule.ranks);
  const [fill, drain] = [share((one) => one.fill), share((one) => one.drain)];
  const middle = Math.max(0, bubble.makespan - fill - drain);
  const heaviest = idle.reduce((a, b) => (b.busy > a.busy ? b : a));
  const mean = idle.reduce((sum, { busy }) => sum + busy, 0) / Math.max(1, idle.length);
  const parts = roundedParts([fill, drain, middle], bubble.makespan);
  const sum = `Idle: ${percent(parts[0]!)} while the pipeline fills, ${percent(parts[1]!)} while it drains, ${percent(parts[2]!)} in between.`;
  if (heaviest.busy > mean * 1.1 && heaviest.busy > makespan * 0.8)
    return `${sum} Rank ${heaviest.rank} computes ${percent(heaviest.busy / mean - 1)} more than the mean: it limits the step time; move work off it.`;
  if (bubble.makespan < 0.005) return 'Hardly any rank is ever idle.';
  if (worst !== null && middle > fill + drain)
    return `${sum} Rank ${worst.rank} waits ${percent(worst.time / makespan)} of the step for rank ${worst.other}.`;
  return `${sum} More microbatches reduce it.`;
}

/** Parts rounded to tenths of a percent so that they add up to their rounded sum: the largest fractions are rounded up. */
function roundedParts(parts: readonly number[], sum: number): number[] {
  const floors = parts.map((part) => Math.floor(part * 1000 + 1e-9));
  const order = parts.map((part, at) => [part * 1000 - floors[at]!, at] as const).sort(([a], [b]) => b - a);
  const left = Math.round(sum * 1000) - floors.reduce((a, b) => a + b, 0);
  for (const [, at] of order.slice(0, Math.max(0, left))) floors[at]!++;
  return floors.map((tenths) => tenths / 1000);
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
