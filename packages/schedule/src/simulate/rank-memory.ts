/** @file Memory of each rank over a simulated step. */

import type { CostTable } from '../costs/cost-table.ts';
import { Code, isCollectiveCode, wordCode } from '../model/packed.ts';
import type { Schedule } from '../model/schedule.ts';
import type { Timing } from './timing.ts';

/** Memory of one rank: `amount[i]` from `time[i]` on, 0 at first for activations, parameters from the start. */
export interface RankMemory {
  readonly rank: number;
  /** Highest amount, everything counted. */
  readonly peak: number;
  /** Highest amount of activations alone. */
  readonly activationPeak: number;
  /** Highest amount of parameters alone: shards, and stages that are whole from UNSHARD to RESHARD. */
  readonly parameterPeak: number;
  readonly time: Float64Array;
  readonly amount: Float64Array;
  /** Activations alone, at the same times. */
  readonly activation: Float64Array;
}

/** What memory is used for. */
const Use = { Activation: 0, Parameter: 1, Gradient: 2 } as const;

/** A change of memory at a time. */
interface Change {
  readonly time: number;
  readonly delta: number;
  readonly use: number;
}

/** Memory of a rank over time. */
export function rankMemory(schedule: Schedule, costs: CostTable, timing: Timing, rank: number): RankMemory {
  const base = parametersOf(schedule, costs, rank);
  const changes = new ChangeCollector(schedule, costs, timing, rank).collect();
  const time = new Float64Array(changes.length + 1);
  const amount = new Float64Array(changes.length + 1);
  const activation = new Float64Array(changes.length + 1);
  let parameters = base;
  let gradients = 0;
  let held = 0;
  let peak = base;
  let activationPeak = 0;
  let parameterPeak = base;
  let count = 0;
  amount[0] = base;
  for (const change of changes) {
    if (change.use === Use.Activation) held += change.delta;
    else if (change.use === Use.Parameter) parameters += change.delta;
    else gradients += change.delta;
    peak = Math.max(peak, parameters + gradients + held);
    activationPeak = Math.max(activationPeak, held);
    parameterPeak = Math.max(parameterPeak, parameters);
    if (change.time > time[count]!) count++;
    time[count] = change.time;
    amount[count] = parameters + gradients + held;
    activation[count] = held;
  }
  count++;
  return {
    rank,
    peak,
    activationPeak,
    parameterPeak,
    time: time.slice(0, count),
    amount: amount.slice(0, count),
    activation: activation.slice(0, count),
  };
}

/** Parameters a rank holds all the time. */
function parametersOf(schedule: Schedule, costs: CostTable, rank: number): number {
  let total = 0;
  schedule.stageToRank.forEach((home, stage) => {
    if (home === rank) total += costs.parameters[stage]! / (costs.sharding === 'parameters' ? costs.shards : 1);
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
    const { schedule, timing, rank } = this;
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
      } else if (isCollectiveCode(code)) this.collective(offset + slot, code, schedule.layout.stage(word));
    }
    if (!this.sorted) this.changes.sort((a, b) => a.time - b.time);
    return this.changes;
  }

  /** Room for a whole stage is taken when the rank comes to UNSHARD, even if the gathering starts later. */
  private collective(index: number, code: number, stage: number): void {
    const { costs, timing } = this;
    if (costs.shards === 1) return;
    if (costs.sharding === 'parameters') {
      if (code === Code.Unshard)
        this.add(timing.issued.get(index) ?? timing.start[index]!, costs.parameters[stage]!, Use.Parameter);
      if (code === Code.Reshard) this.add(timing.end[index]!, -costs.parameters[stage]!, Use.Parameter);
    }
    if (code === Code.ReduceGrad && costs.sharding !== 'optimizer' && this.gradientStages.has(stage))
      this.add(timing.end[index]!, costs.weightGradient[stage]! * (1 / costs.shards - 1), Use.Gradient);
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
    if (code === Code.F) this.add(start, costs.activation[stage]!, Use.Activation);
    else if (code !== Code.I && !this.gradientStages.has(stage)) {
      this.gradientStages.add(stage);
      if (costs.weightGradient[stage]! > 0) this.add(start, costs.weightGradient[stage]!, Use.Gradient);
    }
  }

  private finish(word: number, end: number): void {
    const { costs, schedule } = this;
    const code = wordCode(word);
    const stage = schedule.layout.stage(word);
    const activation = costs.activation[stage]!;
    const kept = activation * costs.retained[stage]!;
    if (code === Code.B) this.add(end, -activation, Use.Activation);
    else if (code === Code.I) this.add(end, kept - activation, Use.Activation);
    else if (code === Code.W) this.add(end, -kept, Use.Activation);
    else if (!this.keepsActivations) this.add(end, -activation, Use.Activation);
  }

  private add(time: number, delta: number, use: number): void {
    if (delta === 0) return;
    const last = this.changes[this.changes.length - 1];
    if (last !== undefined && last.time > time) this.sorted = false;
    this.changes.push({ time, delta, use });
  }
}

/** Whether a row trains: forward-only rows give activations up as soon as they are sent on. */
function hasBackward(row: Int32Array): boolean {
  return row.some((word) => {
    const code = wordCode(word);
    return code === Code.I || code === Code.B || code === Code.Composite;
  });
}
