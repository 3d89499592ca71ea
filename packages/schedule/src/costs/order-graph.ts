/** @file What has to come before what in a step, whatever the order of the rows; and how long an order then takes. */

import { ScheduleError } from '../model/errors.ts';
import { Code, isComposite, type Layout, wordCode } from '../model/packed.ts';
import type { Schedule } from '../model/schedule.ts';
import { type CostTable, compositeDuration, computeCost } from './cost-table.ts';
import { edgeCosts } from './edge-costs.ts';

/** Rows of operation numbers, one per rank. */
export type OrderRows = readonly Int32Array[];

/** How an order does. */
export interface OrderScore {
  /** Infinity where the order cannot go on. */
  readonly makespan: number;
  readonly span: number;
}

/**
 * The operations of a compute-only schedule (its cells, composites as one), their times, their memory and their data
 * dependencies. Messages are delays here: links that carry one message at a time are left to `simulate`.
 */
export class OrderGraph {
  readonly schedule: Schedule;
  /** Number of operations; they are numbered row by row. */
  readonly count: number;
  readonly ranks: number;
  readonly word: Int32Array;
  readonly rankOf: Int32Array;
  readonly duration: Float64Array;
  /** Memory taken at the start and given back at the end. */
  readonly takes: Float64Array;
  readonly gives: Float64Array;
  /** `before[beforeStart[op] .. beforeStart[op + 1] - 1]` must have ended `delay` earlier (later, below 0); `after` likewise the other way. */
  readonly beforeStart: Int32Array;
  readonly before: Int32Array;
  readonly beforeDelay: Float64Array;
  readonly afterStart: Int32Array;
  readonly after: Int32Array;
  readonly afterDelay: Float64Array;
  /** The order of the schedule it was made from. */
  readonly rows: OrderRows;
  /** Start and end of each operation in the order scored last. */
  readonly start: Float64Array;
  readonly end: Float64Array;
  private readonly missing: Int32Array;
  private readonly cursor: Int32Array;
  private readonly ready: Int32Array;
  private readonly ids: ReadonlyMap<number, number>;

  constructor(caller: string, schedule: Schedule, costs: CostTable) {
    this.schedule = schedule;
    this.ranks = schedule.ranks;
    const cells = schedule.denseRows.map((row) => row.filter((word) => word !== 0));
    this.count = cells.reduce((sum, row) => sum + row.length, 0);
    this.word = new Int32Array(this.count);
    this.rankOf = new Int32Array(this.count);
    let op = 0;
    this.rows = cells.map((row, rank) =>
      row.map((word) => {
        this.word[op] = word;
        this.rankOf[op] = rank;
        return op++;
      }),
    );
    this.duration = new Float64Array(this.count);
    this.takes = new Float64Array(this.count);
    this.gives = new Float64Array(this.count);
    this.ids = this.measure(caller, costs);
    const edges = this.dependencies(caller, costs);
    [this.beforeStart, this.before, this.beforeDelay] = columns(this.count, edges, 'to');
    [this.afterStart, this.after, this.afterDelay] = columns(this.count, edges, 'from');
    this.start = new Float64Array(this.count);
    this.end = new Float64Array(this.count);
    this.missing = new Int32Array(this.count);
    this.cursor = new Int32Array(this.ranks);
    this.ready = new Int32Array(this.count);
  }

  /** The row of an order of the same operations, given by its words. */
  rowOf(words: Int32Array): Int32Array {
    const row = new Int32Array(words.length);
    let count = 0;
    for (const word of words) if (word !== 0) row[count++] = this.ids.get(word)!;
    return row.subarray(0, count);
  }

  /** Plays an order: every operation as early as its row and its inputs allow. */
  score(rows: OrderRows): OrderScore {
    const { count, missing, cursor, ready, start, end, duration, rankOf } = this;
    for (let op = 0; op < count; op++) missing[op] = this.beforeStart[op + 1]! - this.beforeStart[op]! + 1;
    start.fill(0);
    cursor.fill(0);
    let filled = 0;
    for (let rank = 0; rank < rows.length; rank++) {
      const first = rows[rank]![0];
      if (first !== undefined && --missing[first]! === 0) ready[filled++] = first;
    }
    let makespan = 0;
    for (let at = 0; at < filled; at++) {
      const op = ready[at]!;
      const finish = start[op]! + duration[op]!;
      end[op] = finish;
      if (finish > makespan) makespan = finish;
      const stop = this.afterStart[op + 1]!;
      for (let i = this.afterStart[op]!; i < stop; i++) {
        const next = this.after[i]!;
        const arrives = finish + this.afterDelay[i]!;
        if (arrives > start[next]!) start[next] = arrives;
        if (--missing[next]! === 0) ready[filled++] = next;
      }
      const rank = rankOf[op]!;
      const row = rows[rank]!;
      const slot = ++cursor[rank]!;
      if (slot < row.length) {
        const next = row[slot]!;
        if (finish > start[next]!) start[next] = finish;
        if (--missing[next]! === 0) ready[filled++] = next;
      }
    }
    if (filled < count) return { makespan: Number.POSITIVE_INFINITY, span: Number.POSITIVE_INFINITY };
    let span = 0;
    for (const row of rows) if (row.length > 0) span = Math.max(span, end[row[row.length - 1]!]! - start[row[0]!]!);
    return { makespan, span };
  }

  /** Most activation memory held at once by a row in this order; it does not depend on times. */
  peakOf(row: Int32Array): number {
    const { takes, gives } = this;
    let held = 0;
    let peak = 0;
    for (let slot = 0; slot < row.length; slot++) {
      held += takes[row[slot]!]!;
      if (held > peak) peak = held;
      held -= gives[row[slot]!]!;
    }
    return peak;
  }

  /** The schedule with its rows in another order, without bubbles. */
  scheduleOf(rows: OrderRows): Schedule {
    return this.schedule.with({ rows: rows.map((row) => row.map((op) => this.word[op]!)) });
  }

  /** Fills the columns per operation; returns the operation of each plain word and each part. */
  private measure(caller: string, costs: CostTable): Map<number, number> {
    const { schedule } = this;
    const { layout, composites } = schedule;
    const ids = new Map<number, number>();
    for (let op = 0; op < this.count; op++) {
      const leaves = composites.leavesOf(this.word[op]!);
      this.duration[op] = compositeOrPlain(costs, leaves, {
        composite: isComposite(this.word[op]!),
        layout,
      });
      for (const leaf of leaves) {
        const code = wordCode(leaf);
        if (code > Code.B) {
          throw new ScheduleError(
            'NOT_COMPUTE_ONLY',
            `${caller}: ${schedule.format(leaf)} is no compute action; pass the schedule before lowering`,
          );
        }
        const stage = layout.stage(leaf);
        const activation = costs.activation[stage]!;
        const kept = activation * costs.retained[stage]!;
        if (code === Code.F) this.takes[op]! += activation;
        else this.gives[op]! += code === Code.B ? activation : code === Code.I ? activation - kept : kept;
        ids.set(leaf, op);
      }
    }
    return ids;
  }

  /** Data dependencies between operations of different cells. */
  private dependencies(caller: string, costs: CostTable): Dependency[] {
    const { schedule, ids } = this;
    const { layout, composites, microbatches, stageEdges } = schedule;
    const edges = edgeCosts(caller, costs, { edges: stageEdges, stageToRank: schedule.stageToRank });
    const found: Dependency[] = [];
    const add = (from: number | undefined, to: number, delay: number): void => {
      if (from !== undefined && from !== to) found.push({ from, to, delay });
    };
    const gradientOf = (stage: number, m: number): number | undefined =>
      ids.get(layout.pack(Code.I, stage, m)) ?? ids.get(layout.pack(Code.B, stage, m));
    // A gradient that leaves in the middle of a full backward leaves before its end: less than no delay.
    const ahead = (op: number | undefined, stage: number): number => {
      const isFull = op !== undefined && wordCode(this.word[op]!) === Code.B;
      return isFull ? costs.B[stage]! - costs.inputGradient[stage]! : 0;
    };
    for (let op = 0; op < this.count; op++) {
      for (const leaf of composites.leavesOf(this.word[op]!)) {
        const code = wordCode(leaf);
        const stage = layout.stage(leaf);
        const m = layout.microbatch(leaf);
        if (code === Code.W) add(ids.get(layout.pack(Code.I, stage, m)), op, 0);
        else if (code !== Code.F) add(ids.get(layout.pack(Code.F, stage, m)), op, 0);
      }
    }
    stageEdges.forEach(([from, to], e) => {
      const forward = edges.forwardOccupancy[e]! + edges.forwardLatency[e]!;
      const backward = edges.backwardOccupancy[e]! + edges.backwardLatency[e]!;
      for (let m = 0; m < microbatches; m++) {
        const user = ids.get(layout.pack(Code.F, to, m));
        if (user !== undefined) add(ids.get(layout.pack(Code.F, from, m)), user, forward);
        const gradient = gradientOf(from, m);
        const source = gradientOf(to, m);
        if (gradient !== undefined) add(source, gradient, backward - ahead(source, to));
      }
    });
    return found;
  }
}

interface Dependency {
  readonly from: number;
  readonly to: number;
  readonly delay: number;
}

function compositeOrPlain(
  costs: CostTable,
  leaves: readonly number[],
  { composite, layout }: { composite: boolean; layout: Layout },
): number {
  return composite
    ? compositeDuration(costs, leaves, layout)
    : computeCost(costs, wordCode(leaves[0]!), layout.stage(leaves[0]!));
}

/** Dependencies grouped by the operation at one end. */
function columns(
  count: number,
  list: readonly Dependency[],
  key: 'from' | 'to',
): [Int32Array, Int32Array, Float64Array] {
  const other = key === 'from' ? 'to' : 'from';
  const start = new Int32Array(count + 1);
  for (const dependency of list) start[dependency[key] + 1]!++;
  for (let op = 0; op < count; op++) start[op + 1]! += start[op]!;
  const next = start.slice(0, count);
  const items = new Int32Array(list.length);
  const delays = new Float64Array(list.length);
  for (const dependency of list) {
    const at = next[dependency[key]]!++;
    items[at] = dependency[other];
    delays[at] = dependency.delay;
  }
  return [start, items, delays];
}
