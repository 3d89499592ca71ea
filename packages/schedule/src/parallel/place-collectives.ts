/**
 * @file Where a rank unshards, reshards and reduces: residency first, then how early to start.
 *
 * Residency is the paging problem with a known future: a stage that is needed and not there takes the place of the one whose
 * next use is farthest. That gathers least often where stages are of one size. A stage leaves right after the last use
 * before it is displaced, so that its room is free as early as possible. UNSHARD then moves ahead of the first use, as far
 * as there is room and as `lead` asks for: until the work in between takes `lead` times as long as the gathering.
 */

import { fits, limitTooLow } from '../costs/memory-limit.ts';
import { Code, isComposite, wordCode } from '../model/packed.ts';
import type { Schedule } from '../model/schedule.ts';
import type { ResidencyTable } from './data-parallel.ts';

/** How collectives are placed. */
export interface CollectivePlan {
  /** Whether parameters are sharded, so that stages have to be gathered. */
  readonly sharded: boolean;
  readonly residency: ResidencyTable;
  /** Time of a cell's compute, and of gathering a stage; for `lead`. */
  durationOf(word: number): number;
  unshardOf(stage: number): number;
  /** How many times its own duration an UNSHARD starts ahead of its use; Infinity: as early as there is room. */
  readonly lead: number;
}

/** A time in which a stage is whole: cells `first` to `last` use it, UNSHARD stands before cell `issue`. */
interface Stay {
  readonly stage: number;
  readonly first: number;
  last: number;
  issue: number;
}

/** The rows of a compute order (bubbles dropped) with UNSHARD, RESHARD and REDUCE_GRAD. */
export function placeCollectives(schedule: Schedule, plan: CollectivePlan): Int32Array[] {
  return schedule.denseRows.map((row, rank) => new RowPlan(schedule, plan, rank).run(row.filter((word) => word !== 0)));
}

class RowPlan {
  private readonly schedule: Schedule;
  private readonly plan: CollectivePlan;
  private readonly rank: number;
  private room: number;

  constructor(schedule: Schedule, plan: CollectivePlan, rank: number) {
    this.schedule = schedule;
    this.plan = plan;
    this.rank = rank;
    const { bytes, shards, limits } = plan.residency;
    let base = 0;
    schedule.stageToRank.forEach((home, stage) => {
      if (home === rank) base += bytes[stage]! / shards;
    });
    this.room = plan.sharded ? limits[rank]! - base : Number.POSITIVE_INFINITY;
  }

  run(cells: Int32Array): Int32Array {
    if (this.plan.sharded && this.plan.residency.isLeast) this.room = this.leastRoom(cells);
    const stays = this.plan.sharded ? this.stays(cells) : [];
    this.startEarly(cells, stays);
    const before = new Map<number, number[]>();
    const after = new Map<number, number[]>();
    const put = (lists: Map<number, number[]>, at: number, code: number, stage: number): void => {
      const list = lists.get(at);
      const word = this.schedule.layout.pack(code, stage, -1);
      if (list === undefined) lists.set(at, [word]);
      else list.push(word);
    };
    this.lastBackwards(cells).forEach(([at, stage]) => {
      put(after, at, Code.ReduceGrad, stage);
    });
    for (const stay of [...stays].sort((a, b) => a.last - b.last || a.stage - b.stage))
      put(after, stay.last, Code.Reshard, stay.stage);
    for (const stay of stays) put(before, stay.issue, Code.Unshard, stay.stage);
    const out: number[] = [];
    cells.forEach((word, at) => {
      out.push(...(before.get(at) ?? []), word, ...(after.get(at) ?? []));
    });
    return Int32Array.from(out);
  }

  /** Bytes of the stages that one action needs, for the action that needs most. */
  private leastRoom(cells: Int32Array): number {
    const { gathered } = this.plan.residency;
    return cells.reduce(
      (most, word) =>
        Math.max(
          most,
          this.stagesOf(word).reduce((sum, stage) => sum + gathered[stage]!, 0),
        ),
      0,
    );
  }

  /** Which stages are whole when, in the order of their first uses. */
  private stays(cells: Int32Array): Stay[] {
    const { gathered } = this.plan.residency;
    const uses = Array.from(cells, (word) => this.stagesOf(word));
    const positions = new Map<number, number[]>();
    uses.forEach((stages, at) => {
      for (const stage of stages) {
        const list = positions.get(stage);
        if (list === undefined) positions.set(stage, [at]);
        else list.push(at);
      }
    });
    const next = new Map<number, number>(); // position in `positions` of a stage's next use
    const open = new Map<number, Stay>();
    const found: Stay[] = [];
    let held = 0;
    const leave = (stage: number): void => {
      held -= gathered[stage]!;
      open.delete(stage);
    };
    uses.forEach((stages, at) => {
      for (const stage of stages) {
        next.set(stage, (next.get(stage) ?? 0) + 1);
        if (open.has(stage)) continue;
        while (!fits(held + gathered[stage]!, this.room)) {
          const victim = this.farthest(open, stages, (other) => positions.get(other)![next.get(other)!]!);
          if (victim < 0) this.refuse(stages);
          leave(victim);
        }
        const stay = { stage, first: at, last: at, issue: at };
        open.set(stage, stay);
        found.push(stay);
        held += gathered[stage]!;
      }
      for (const stage of stages) {
        open.get(stage)!.last = at;
        if (next.get(stage) === positions.get(stage)!.length) leave(stage);
      }
    });
    return found;
  }

  /** The whole stage, other than those in use, whose next use is farthest; -1 if there is none. */
  private farthest(
    open: ReadonlyMap<number, Stay>,
    inUse: readonly number[],
    nextUse: (stage: number) => number,
  ): number {
    let best = -1;
    for (const stage of open.keys()) {
      if (inUse.includes(stage)) continue;
      if (best < 0 || nextUse(stage) > nextUse(best)) best = stage;
    }
    return best;
  }

  /** Moves UNSHARDs ahead of their first uses. */
  private startEarly(cells: Int32Array, stays: readonly Stay[]): void {
    const { lead, residency } = this.plan;
    if (lead === 0 || stays.length === 0) return;
    const held = new Float64Array(cells.length);
    const stayedUntil = new Map<number, number>();
    let before = 0; // one lane carries all of them, so they start in the order of their first uses
    for (const { stage, first, last } of stays)
      for (let at = first; at <= last; at++) held[at]! += residency.gathered[stage]!;
    for (const stay of stays) {
      const bytes = residency.gathered[stay.stage]!;
      const wanted = lead * this.plan.unshardOf(stay.stage);
      const least = Math.max(before, stayedUntil.get(stay.stage) ?? 0);
      let covered = 0;
      while (stay.issue > least && covered < wanted && fits(held[stay.issue - 1]! + bytes, this.room)) {
        stay.issue--;
        held[stay.issue]! += bytes;
        covered += this.plan.durationOf(cells[stay.issue]!);
      }
      stayedUntil.set(stay.stage, stay.last + 1);
      before = stay.issue;
    }
  }

  /** Each stage with the position of the backward that makes its weight gradient complete. */
  private lastBackwards(cells: Int32Array): [number, number][] {
    const { layout, composites, microbatches } = this.schedule;
    const done = new Map<number, number>();
    const found: [number, number][] = [];
    cells.forEach((word, at) => {
      for (const leaf of composites.leavesOf(word)) {
        const code = wordCode(leaf);
        if (code !== Code.B && code !== Code.W) continue;
        const stage = layout.stage(leaf);
        const count = (done.get(stage) ?? 0) + 1;
        done.set(stage, count);
        if (count === microbatches) found.push([at, stage]);
      }
    });
    return found;
  }

  private stagesOf(word: number): readonly number[] {
    const { layout, composites } = this.schedule;
    if (!isComposite(word)) return [layout.stage(word)];
    return [...new Set(composites.leavesOf(word).map((leaf) => layout.stage(leaf)))];
  }

  private refuse(stages: readonly number[]): never {
    const { gathered, limits } = this.plan.residency;
    const together = stages.reduce((sum, stage) => sum + gathered[stage]!, 0);
    throw limitTooLow('lower', {
      rank: this.rank,
      limit: limits[this.rank]!,
      needed: limits[this.rank]! - this.room + together,
      what: `the shards of its stages and stage ${stages.join(' and ')} whole`,
      wayOut: 'use more shards or smaller stages',
      unit: 'bytes of parameters',
    });
  }
}
