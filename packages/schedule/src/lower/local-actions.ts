/** @file Adds what a rank does by itself: UNSHARD, RESHARD and REDUCE_GRAD. */

import { checkCount, ScheduleError, show } from '../model/errors.ts';
import { measure } from '../model/extent.ts';
import { bits } from '../model/packed.ts';
import { Schedule, type ScheduleData } from '../model/schedule.ts';

// Constants of this module: an import is looked up at every use.
const { Code, isComposite, stageIn, wordCode } = bits;

/** How far ahead stages are unsharded: a number of stages, or as many as fit a budget of bytes. */
export type UnshardWindow = number | { readonly bytes: number; readonly stageBytes: number | readonly number[] };

/** `early`: right after a stage's last backward. `end`: at the end of the row, stages ascending. `none`: not at all. */
export type ReduceGradPlacement = 'early' | 'end' | 'none';

/**
 * Every stage is unsharded when it comes into the window of the next distinct stages and resharded when it leaves it.
 * @example addUnshardReshard(Schedule.from({ order: [['0F0', '0B0']] }), 3).toString() // '0UNSHARD 0F0 0B0 0RESHARD'
 */
export function addUnshardReshard(input: Schedule | ScheduleData, window: UnshardWindow = 3): Schedule {
  const schedule = Schedule.from(input);
  return addLocalActions(schedule, { unshardWindow: window, reduceGrad: 'none', stages: measure(schedule).stages });
}

/**
 * One REDUCE_GRAD per stage, after the backward (`B` or `W`) that makes its number of backwards equal to the microbatches.
 * @example addReduceGrad(Schedule.from({ order: [['0F0', '0B0']] })).toString() // '0F0 0B0 0REDUCE_GRAD'
 */
export function addReduceGrad(input: Schedule | ScheduleData, placement: ReduceGradPlacement = 'early'): Schedule {
  const schedule = Schedule.from(input);
  return addLocalActions(schedule, { unshardWindow: false, reduceGrad: placement, stages: measure(schedule).stages });
}

/** What is added; `stages` is one more than the highest stage that occurs. */
interface LocalActionOptions {
  readonly unshardWindow: UnshardWindow | false;
  readonly reduceGrad: ReduceGradPlacement;
  readonly stages: number;
}

/** Both in one pass over each row; bubbles are dropped. */
export function addLocalActions(schedule: Schedule, options: LocalActionOptions): Schedule {
  const pass = new LocalActionPass(schedule, options);
  return schedule.with({ rows: schedule.denseRows.map((row) => pass.row(row)) });
}

class LocalActionPass {
  private readonly schedule: Schedule;
  private readonly placement: ReduceGradPlacement;
  private readonly most: number;
  private readonly budget: number;
  private readonly bytesOf: (stage: number) => number;
  /** How often each stage occurs between the current entry and the end of the window. */
  private readonly count: Int32Array;
  private readonly active: Uint8Array;
  private readonly backwards: Int32Array;
  private out: Int32Array = new Int32Array(0);

  constructor(schedule: Schedule, { unshardWindow, reduceGrad, stages }: LocalActionOptions) {
    this.schedule = schedule;
    this.placement = reduceGrad;
    const { most, budget, bytesOf } = readWindow(unshardWindow, schedule.stages);
    this.most = most;
    this.budget = budget;
    this.bytesOf = bytesOf;
    this.count = new Int32Array(stages);
    this.active = new Uint8Array(stages);
    this.backwards = new Int32Array(stages);
  }

  row(row: Int32Array): Int32Array {
    const { stageShift } = this.schedule.layout;
    const { microbatches } = this.schedule;
    const { count, active, backwards, most, placement } = this;
    const simple = this.budget === Infinity;
    this.out = this.out.length < row.length + 64 ? new Int32Array(row.length + 64) : this.out;
    let { out } = this;
    let length = 0;
    let ahead = 0; // first entry behind the window
    let distinct = 0;
    let bytes = 0;
    const came: number[] = []; // stages that came into the window with this entry
    const left: number[] = []; // stages that fell out of it with the entry before
    const complete: number[] = []; // stages whose backwards are all done, not yet reduced
    let changes = 0; // whether any of these has members
    backwards.fill(0);
    for (let slot = 0; slot < row.length; slot++) {
      const word = row[slot]!;
      if (word === 0) continue;
      for (; distinct < most && ahead < row.length; ahead++) {
        const next = row[ahead]!;
        if (next === 0) continue;
        if (simple && !isComposite(next)) {
          const stage = stageIn(next, stageShift);
          if (count[stage]!++ > 0) continue;
          distinct++;
          if (active[stage] === 0) changes = came.push(stage);
          continue;
        }
        const stages = this.stagesOf(next);
        const fresh = [...new Set(stages)].filter((stage) => count[stage] === 0);
        const more = fresh.reduce((sum, stage) => sum + this.bytesOf(stage), 0);
        if (distinct > 0 && bytes + more > this.budget) break;
        bytes += more;
        distinct += fresh.length;
        for (const stage of fresh) if (active[stage] === 0) changes = came.push(stage);
        for (const stage of stages) count[stage]!++;
      }
      if (changes > 0) {
        changes = 0;
        out = this.grow(length + left.length + came.length + row.length - slot + 8);
        for (const stage of left) if (count[stage] === 0) out[length++] = this.mark(Code.Reshard, stage);
        for (const stage of came) out[length++] = this.mark(Code.Unshard, stage);
        left.length = 0;
        came.length = 0;
      }
      out[length++] = word;
      const code = wordCode(word);
      if (code === Code.Composite) {
        this.countComposite(word, complete);
        if (most > 0) bytes -= this.leaveComposite(word, left);
        distinct -= left.length;
        changes = left.length;
      } else {
        const stage = stageIn(word, stageShift);
        if ((code === Code.B || code === Code.W) && ++backwards[stage]! === microbatches) complete.push(stage);
        if (most > 0 && --count[stage]! === 0) {
          distinct--;
          if (!simple) bytes -= this.bytesOf(stage);
          changes = left.push(stage);
        }
      }
      if (complete.length > 0 && placement === 'early') {
        out = this.grow(length + complete.length + row.length - slot);
        for (const stage of complete) out[length++] = this.schedule.layout.pack(Code.ReduceGrad, stage, -1);
        complete.length = 0;
      }
    }
    out = this.grow(length + left.length + complete.length);
    for (const stage of left) out[length++] = this.mark(Code.Reshard, stage);
    if (placement === 'end')
      for (const stage of complete.sort((a, b) => a - b))
        out[length++] = this.schedule.layout.pack(Code.ReduceGrad, stage, -1);
    return out.slice(0, length);
  }

  private mark(code: number, stage: number): number {
    this.active[stage] = code === Code.Unshard ? 1 : 0;
    return this.schedule.layout.pack(code, stage, -1);
  }

  /** Counts the backwards among the parts of a composite. */
  private countComposite(word: number, complete: number[]): void {
    for (const leaf of this.schedule.composites.leavesOf(word)) {
      const stage = this.schedule.layout.stage(leaf);
      const code = wordCode(leaf);
      if ((code === Code.B || code === Code.W) && ++this.backwards[stage]! === this.schedule.microbatches)
        complete.push(stage);
    }
  }

  /** Takes a composite out of the window; collects the stages that leave with it, ascending, and returns their bytes. */
  private leaveComposite(word: number, left: number[]): number {
    let bytes = 0;
    for (const stage of this.stagesOf(word)) {
      if (--this.count[stage]! > 0) continue;
      bytes += this.bytesOf(stage);
      left.push(stage);
    }
    left.sort((a, b) => a - b);
    return bytes;
  }

  private stagesOf(word: number): number[] {
    return this.schedule.composites.leavesOf(word).map((leaf) => this.schedule.layout.stage(leaf));
  }

  /** The row under construction, with room for so many cells. */
  private grow(least: number): Int32Array {
    if (least <= this.out.length) return this.out;
    const grown = new Int32Array(Math.max(least, Math.ceil(this.out.length * 1.25)));
    grown.set(this.out);
    this.out = grown;
    return grown;
  }
}

/** The limits of a window; `most` 0 means no unsharding at all. */
function readWindow(
  window: UnshardWindow | false,
  stages: number,
): { most: number; budget: number; bytesOf: (stage: number) => number } {
  if (window === false) return { most: 0, budget: Infinity, bytesOf: () => 0 };
  if (typeof window === 'number')
    return { most: checkCount('lower', 'unshardWindow', window), budget: Infinity, bytesOf: () => 0 };
  const { bytes, stageBytes } = window ?? {};
  const isSized = typeof stageBytes === 'number' || (Array.isArray(stageBytes) && stageBytes.length >= stages);
  if (typeof bytes !== 'number' || !(bytes >= 0) || !isSized) {
    throw new ScheduleError(
      'BAD_OPTION',
      `lower: unshardWindow must be a number of stages, false, or { bytes, stageBytes } with one size for all stages or one per stage (${stages}), got ${show(window)}`,
    );
  }
  return {
    most: Infinity,
    budget: bytes,
    bytesOf: (stage) => (typeof stageBytes === 'number' ? stageBytes : (stageBytes[stage] ?? 0)),
  };
}
