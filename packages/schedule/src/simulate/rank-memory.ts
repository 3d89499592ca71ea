/** @file Memory of each rank over a simulated step. */

import type { CostTable } from '../costs/costs.ts';
import { Code, wordCode } from '../model/packed.ts';
import type { Schedule } from '../model/schedule.ts';
import type { Timing } from './replay.ts';

/** Memory of one rank: `amount[i]` from `time[i]` on, 0 at first for activations, parameters from the start. */
export interface RankMemory {
  readonly rank: number;
  /** Highest amount, everything counted. */
  readonly peak: number;
  /** Highest amount of activations alone. */
  readonly activationPeak: number;
  readonly time: Float64Array;
  readonly amount: Float64Array;
  /** Activations alone, at the same times. */
  readonly activation: Float64Array;
}

/** A change of memory at a time; `fixed` where it is parameters or gradients. */
interface Change {
  readonly time: number;
  readonly delta: number;
  readonly fixed: boolean;
}

/** Memory of a rank over time. */
export function rankMemory(schedule: Schedule, costs: CostTable, timing: Timing, rank: number): RankMemory {
  const base = parametersOf(schedule, costs, rank);
  const changes = new ChangeCollector(schedule, costs, timing, rank).collect();
  const time = new Float64Array(changes.length + 1);
  const amount = new Float64Array(changes.length + 1);
  const activation = new Float64Array(changes.length + 1);
  let fixed = base;
  let held = 0;
  let peak = base;
  let activationPeak = 0;
  let count = 0;
  amount[0] = base;
  for (const change of changes) {
    if (change.fixed) fixed += change.delta;
    else held += change.delta;
    peak = Math.max(peak, fixed + held);
    activationPeak = Math.max(activationPeak, held);
    if (change.time > time[count]!) count++;
    time[count] = change.time;
    amount[count] = fixed + held;
    activation[count] = held;
  }
  count++;
  return {
    rank,
    peak,
    activationPeak,
    time: time.slice(0, count),
    amount: amount.slice(0, count),
    activation: activation.slice(0, count),
  };
}

/** Parameters a rank holds all the time. */
function parametersOf(schedule: Schedule, costs: CostTable, rank: number): number {
  let total = 0;
  schedule.stageToRank.forEach((home, stage) => {
    if (home === rank) total += costs.parameters[stage]! / costs.shards;
  });
  return total;
}

class ChangeCollector {
  private readonly schedule: Schedule;
  private readonly costs: CostTable;
  private readonly timing: Timing;
  private readonly rank: number;
  private readonly changes: Change[] = [];
  private readonly gradientStages: Set<number> = new Set();
  private readonly keepsActivations: boolean;
  private sorted = true;

  constructor(schedule: Schedule, costs: CostTable, timing: Timing, rank: number) {
    this.schedule = schedule;
    this.costs = costs;
    this.timing = timing;
    this.rank = rank;
    this.keepsActivations = hasBackward(schedule.rows[rank]!);
  }

  /** All changes in order of time; those of one time in the order of the row. */
  collect(): readonly Change[] {
    const { schedule, costs, timing, rank } = this;
    const row = schedule.rows[rank]!;
    const offset = timing.offsets[rank]!;
    for (let slot = 0; slot < row.length; slot++) {
      const word = row[slot]!;
      const code = wordCode(word);
      const start = timing.start[offset + slot]!;
      const end = timing.end[offset + slot]!;
      if (code === Code.Composite) this.composite(offset + slot, word);
      else if (code >= Code.F && code <= Code.B) {
        this.begin(word, start);
        this.finish(word, end);
      } else if (costs.shards > 1 && code === Code.Unshard)
        this.add(start, costs.parameters[schedule.layout.stage(word)]!, true);
      else if (costs.shards > 1 && code === Code.Reshard)
        this.add(end, -costs.parameters[schedule.layout.stage(word)]!, true);
    }
    if (!this.sorted) this.changes.sort((a, b) => a.time - b.time);
    return this.changes;
  }

  private composite(index: number, word: number): void {
    const { start, end, partTimes } = this.timing;
    const leaves = this.schedule.composites.leavesOf(word);
    const times = partTimes.get(index);
    if (times === undefined) {
      for (const leaf of leaves) this.begin(leaf, start[index]!);
      for (const leaf of leaves) this.finish(leaf, end[index]!);
      return;
    }
    leaves.forEach((leaf, i) => {
      this.begin(leaf, times[2 * i]!);
      this.finish(leaf, times[2 * i + 1]!);
    });
  }

  private begin(word: number, start: number): void {
    const { costs, schedule } = this;
    const code = wordCode(word);
    const stage = schedule.layout.stage(word);
    if (code === Code.F) this.add(start, costs.activation[stage]!, false);
    else if (code !== Code.I && !this.gradientStages.has(stage)) {
      this.gradientStages.add(stage);
      if (costs.weightGradient[stage]! > 0) this.add(start, costs.weightGradient[stage]!, true);
    }
  }

  private finish(word: number, end: number): void {
    const { costs, schedule } = this;
    const code = wordCode(word);
    const stage = schedule.layout.stage(word);
    const activation = costs.activation[stage]!;
    const kept = activation * costs.retained[stage]!;
    if (code === Code.B) this.add(end, -activation, false);
    else if (code === Code.I) this.add(end, kept - activation, false);
    else if (code === Code.W) this.add(end, -kept, false);
    else if (!this.keepsActivations) this.add(end, -activation, false);
  }

  private add(time: number, delta: number, fixed: boolean): void {
    if (delta === 0) return;
    const last = this.changes[this.changes.length - 1];
    if (last !== undefined && last.time > time) this.sorted = false;
    this.changes.push({ time, delta, fixed });
  }
}

/** Whether a row trains: forward-only rows give activations up as soon as they are sent on. */
function hasBackward(row: Int32Array): boolean {
  return row.some((word) => {
    const code = wordCode(word);
    return code === Code.I || code === Code.B || code === Code.Composite;
  });
}
