/** @file Times no order of the same work can beat. */

import { resolveCosts } from '../costs/cost-table.ts';
import type { Costs } from '../costs/costs.ts';
import { OrderGraph } from '../costs/order-graph.ts';
import { Schedule, type ScheduleData } from '../model/schedule.ts';

/** Longest chains of data dependencies through each operation. */
export interface Chains {
  /** Time before an operation can start, and time from its start until all that needs it has ended, ranks left aside. */
  readonly head: Float64Array;
  readonly tail: Float64Array;
}

/** The chains of a graph, which has no cycles. */
export function chainsOf(graph: OrderGraph): Chains {
  const order = topological(graph);
  const head = new Float64Array(graph.count);
  const tail = new Float64Array(graph.count);
  for (const op of order) {
    for (let i = graph.afterStart[op]!; i < graph.afterStart[op + 1]!; i++) {
      const next = graph.after[i]!;
      head[next] = Math.max(head[next]!, head[op]! + graph.duration[op]! + graph.afterDelay[i]!);
    }
  }
  for (const op of order.reverse()) {
    let rest = 0;
    for (let i = graph.afterStart[op]!; i < graph.afterStart[op + 1]!; i++)
      rest = Math.max(rest, graph.afterDelay[i]! + tail[graph.after[i]!]!);
    tail[op] = graph.duration[op]! + rest;
  }
  return { head, tail };
}

function topological(graph: OrderGraph): number[] {
  const missing = Int32Array.from(
    { length: graph.count },
    (_, op) => graph.beforeStart[op + 1]! - graph.beforeStart[op]!,
  );
  const order: number[] = [];
  for (let op = 0; op < graph.count; op++) if (missing[op] === 0) order.push(op);
  for (let at = 0; at < order.length; at++) {
    const op = order[at]!;
    for (let i = graph.afterStart[op]!; i < graph.afterStart[op + 1]!; i++)
      if (--missing[graph.after[i]!]! === 0) order.push(graph.after[i]!);
  }
  return order;
}

/** Least makespan of a graph's work: the longest chain, and each rank's work between its earliest start and its shortest end. */
export function makespanBound(graph: OrderGraph): number {
  const { head, tail } = chainsOf(graph);
  const ranks = graph.ranks;
  const earliest = new Float64Array(ranks).fill(Number.POSITIVE_INFINITY);
  const shortest = new Float64Array(ranks).fill(Number.POSITIVE_INFINITY);
  const work = new Float64Array(ranks);
  let bound = 0;
  for (let op = 0; op < graph.count; op++) {
    const rank = graph.rankOf[op]!;
    earliest[rank] = Math.min(earliest[rank]!, head[op]!);
    shortest[rank] = Math.min(shortest[rank]!, tail[op]! - graph.duration[op]!);
    work[rank]! += graph.duration[op]!;
    bound = Math.max(bound, head[op]! + tail[op]!);
  }
  for (let rank = 0; rank < ranks; rank++)
    if (work[rank]! > 0) bound = Math.max(bound, earliest[rank]! + work[rank]! + shortest[rank]!);
  return bound;
}

/**
 * A makespan that no order of a schedule's compute actions can go below, whatever the memory.
 * @example lowerBound(buildSchedule('ZBH2', { ranks: 4, microbatches: 8 })) // 27
 */
export function lowerBound(schedule: Schedule | ScheduleData, costs: Costs = {}): number {
  const given = Schedule.from(schedule);
  return makespanBound(new OrderGraph('lowerBound', given, resolveCosts('lowerBound', costs, given.stages)));
}
