/** @file Puts bubbles where ranks wait when every action takes one slot. */

import { ScheduleError } from './errors.ts';
import { Code } from './packed.ts';
import { RowBuilder } from './schedule-builder.ts';
import { Schedule, type ScheduleData } from './schedule.ts';
import { StageGraph } from './stage-graph.ts';

/**
 * The same compute order with bubbles in exactly the slots in which a rank waits, one slot per action (a composite too).
 * @example alignSlots(Schedule.from({ order: [['0F0', '0B0'], ['1F0', '1B0']] })).toString() // '0F0 . . 0B0\n. 1F0 1B0'
 */
export function alignSlots(input: Schedule | ScheduleData): Schedule {
  const schedule = Schedule.from(input);
  return schedule.with({ rows: new Aligner(schedule).run() });
}

/** Runs every rank until it waits for another one; a finished action wakes the ranks that wait for it. */
class Aligner {
  private readonly schedule: Schedule;
  private readonly graph: StageGraph;
  private readonly width: number;
  /** Slot after which (stage, microbatch) has its output (its input gradient); 0: not yet. */
  private readonly forwardEnd: Int32Array;
  private readonly gradientEnd: Int32Array;
  private readonly cursor: Int32Array;
  private readonly clock: Int32Array;
  /** What a rank waits for: 2 * key for a forward, 2 * key + 1 for a gradient; -1: nothing. */
  private readonly waits: Float64Array;
  private readonly spaced: RowBuilder[];
  private readonly ready: number[] = [];

  constructor(schedule: Schedule) {
    const { rows, layout, composites } = schedule;
    let stages = schedule.stages;
    let microbatches = schedule.microbatches;
    for (const leaf of composites.leaves) {
      stages = Math.max(stages, layout.stage(leaf) + 1);
      microbatches = Math.max(microbatches, layout.microbatch(leaf) + 1);
    }
    for (const row of rows) {
      for (let i = 0; i < row.length; i++) {
        const word = row[i]!;
        if ((word & 15) === Code.Bubble || (word & 15) === Code.Composite) continue;
        const stage = word >>> layout.stageShift;
        const microbatch = (word >>> 4) & layout.microbatchMask;
        if (stage >= stages) stages = stage + 1;
        if (microbatch > microbatches) microbatches = microbatch;
      }
    }
    this.schedule = schedule;
    this.graph = new StageGraph({ stages, stageToRank: schedule.stageToRank, edges: schedule.edges });
    this.width = microbatches + 1;
    this.forwardEnd = new Int32Array(stages * this.width);
    this.gradientEnd = new Int32Array(stages * this.width);
    this.cursor = new Int32Array(schedule.ranks);
    this.clock = new Int32Array(schedule.ranks);
    this.waits = new Float64Array(schedule.ranks).fill(-1);
    this.spaced = rows.map((row) => new RowBuilder(row.length + 2 * schedule.stages));
  }

  run(): Int32Array[] {
    const { rows, ranks } = this.schedule;
    for (let rank = ranks - 1; rank >= 0; rank--) this.ready.push(rank);
    for (let rank = this.ready.pop(); rank !== undefined; rank = this.ready.pop()) this.runRank(rank);
    const stuck = rows.findIndex((row, rank) => this.cursor[rank]! < row.length);
    if (stuck >= 0) {
      const slot = this.cursor[stuck]!;
      throw new ScheduleError(
        'DEADLOCK',
        `alignSlots: rank ${stuck} never gets past slot ${slot} (${this.schedule.format(rows[stuck]![slot]!)}): what it needs comes later in its own row or from a rank that waits for it; validate() shows the cycle`,
        { rank: stuck, slot },
      );
    }
    return this.spaced.map((row) => row.finish());
  }

  private runRank(rank: number): void {
    const row = this.schedule.rows[rank]!;
    const spaced = this.spaced[rank]!;
    let slot = this.cursor[rank]!;
    let now = this.clock[rank]!;
    this.waits[rank] = -1;
    for (; slot < row.length; slot++) {
      const word = row[slot]!;
      const code = word & 15;
      if (code === Code.Bubble) continue;
      const start = code === Code.Composite ? this.compositeStart(word, now) : this.leafStart(word, now);
      if (start < 0) {
        this.waits[rank] = -2 - start;
        break;
      }
      if (start > now) spaced.bubbles(start - now);
      spaced.push(word);
      now = start + 1;
      if (code === Code.Composite) for (const leaf of this.schedule.composites.leavesOf(word)) this.finish(leaf, now);
      else this.finish(word, now);
    }
    this.cursor[rank] = slot;
    this.clock[rank] = now;
  }

  /** Earliest slot of a plain action; -2 - (what it waits for) if that is not known yet. */
  private leafStart(word: number, now: number): number {
    const { layout } = this.schedule;
    const { graph, width } = this;
    const code = word & 15;
    const stage = word >>> layout.stageShift;
    const microbatch = (word >>> 4) & layout.microbatchMask;
    let start = now;
    if (code === Code.F) {
      for (let e = graph.inputStart[stage]!; e < graph.inputStart[stage + 1]!; e++) {
        const key = graph.inputs[e]! * width + microbatch;
        const end = this.forwardEnd[key]!;
        if (end === 0) return -2 - 2 * key;
        if (end > start) start = end;
      }
    } else if (code === Code.I || code === Code.B) {
      const own = stage * width + microbatch;
      if (this.forwardEnd[own] === 0) return -2 - 2 * own;
      for (let e = graph.outputStart[stage]!; e < graph.outputStart[stage + 1]!; e++) {
        const key = graph.outputs[e]! * width + microbatch;
        const end = this.gradientEnd[key]!;
        if (end === 0) return -2 - (2 * key + 1);
        if (end > start) start = end;
      }
    } else if (code === Code.W) {
      const own = stage * width + microbatch;
      if (this.gradientEnd[own] === 0) return -2 - (2 * own + 1);
    }
    return start;
  }

  private compositeStart(word: number, now: number): number {
    let start = now;
    for (const leaf of this.schedule.composites.leavesOf(word)) {
      start = this.leafStart(leaf, start);
      if (start < 0) return start;
    }
    return start;
  }

  /** Records the end of an action and wakes the ranks that wait for it. */
  private finish(word: number, end: number): void {
    const { layout } = this.schedule;
    const { graph } = this;
    const code = word & 15;
    const stage = word >>> layout.stageShift;
    const key = stage * this.width + ((word >>> 4) & layout.microbatchMask);
    if (code === Code.F) {
      this.forwardEnd[key] = end;
      for (let e = graph.outputStart[stage]!; e < graph.outputStart[stage + 1]!; e++) this.wake(graph.outputs[e]!, 2 * key);
    } else if (code === Code.I || code === Code.B) {
      this.gradientEnd[key] = end;
      for (let e = graph.inputStart[stage]!; e < graph.inputStart[stage + 1]!; e++) this.wake(graph.inputs[e]!, 2 * key + 1);
    }
  }

  private wake(stage: number, event: number): void {
    const rank = this.graph.rankOf[stage]!;
    if (rank >= 0 && this.waits[rank] === event) {
      this.waits[rank] = -1;
      this.ready.push(rank);
    }
  }
}
