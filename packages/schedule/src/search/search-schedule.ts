/** @file `searchSchedule`: the best order for given costs and limits, from every schedule that fits and then beyond them. */

import { resolveCosts } from '../costs/cost-table.ts';
import { listOrder } from '../costs/list-order.ts';
import { resolveMemoryLimit } from '../costs/memory-limit.ts';
import { OrderGraph } from '../costs/order-graph.ts';
import { alignSlots } from '../generate/align.ts';
import { type BuildScheduleOptions, buildSchedule } from '../generate/build-schedule.ts';
import { findSchedule, scheduleDefinitions } from '../generate/registry.ts';
import { checkChoice, checkCount, checkOptions, ScheduleError } from '../model/errors.ts';
import type { Schedule } from '../model/schedule.ts';
import { simulate } from '../simulate/simulate.ts';
import { type Improvement, improve, type SearchOptions } from './improve-schedule.ts';

/** What `searchSchedule` takes: a shape, costs, limits and how long to search. */
export interface SearchScheduleOptions extends SearchOptions {
  readonly ranks: number;
  /** Stages on each rank; default 1. */
  readonly stagesPerRank?: number;
  readonly microbatches: number;
  /** Schedules to start from; default: all that train and take the shape, and a greedy order. */
  readonly from?: readonly string[];
}

/** How a schedule the search started from does. */
export interface SearchStart {
  readonly name: string;
  /** Its objective; null where it does not fit. */
  readonly value: number | null;
  /** Why it does not fit. */
  readonly reason: string | null;
}

/** What `searchSchedule` found. */
export interface SearchResult extends Improvement {
  /** The schedules it started from, best first, then those that do not fit. */
  readonly starts: readonly SearchStart[];
}

const optionNames = [
  'ranks',
  'stagesPerRank',
  'microbatches',
  'from',
  'costs',
  'memoryLimit',
  'objective',
  'evaluations',
  'seed',
];

/** Schedules that are improved; the others only compete as they are. */
const improvedStarts = 3;

/**
 * Builds every schedule that takes the shape and keeps the memory limit, improves the best of them, and returns the
 * shortest order found.
 * @example searchSchedule({ ranks: 4, microbatches: 8, costs: { F: [1, 1, 1, 2] }, memoryLimit: 4 }).schedule
 */
export function searchSchedule(options: SearchScheduleOptions): SearchResult {
  checkOptions('searchSchedule', options, optionNames);
  checkChoice('searchSchedule', 'objective', options.objective, ['makespan', 'span']);
  const objective = options.objective ?? 'makespan';
  const evaluations = checkCount('searchSchedule', 'evaluations', options.evaluations ?? 20_000, 0);
  const fitting: { readonly schedule: Schedule; readonly value: number }[] = [];
  const refused: SearchStart[] = [];
  for (const name of namesFor(options)) {
    try {
      const schedule = buildSchedule(name, shapeOf(options));
      fitting.push({ schedule, value: simulate(schedule, options.costs ?? {})[objective] });
    } catch (cause) {
      if (!(cause instanceof ScheduleError) || (cause.code !== 'MEMORY_LIMIT' && cause.code !== 'BAD_SHAPE'))
        throw cause;
      refused.push({ name, value: null, reason: cause.message });
    }
  }
  const greedy = greedyStart(options);
  if (greedy !== null) fitting.push({ schedule: greedy, value: simulate(greedy, options.costs ?? {})[objective] });
  if (fitting.length === 0) {
    throw new ScheduleError(
      'MEMORY_LIMIT',
      `searchSchedule: no schedule to start from: ${refused.map((start) => start.reason).join(' | ')}`,
      { refused },
    );
  }
  fitting.sort((a, b) => a.value - b.value);
  const starts = [
    ...fitting.map(({ schedule, value }): SearchStart => ({ name: schedule.name, value, reason: null })),
    ...refused,
  ];
  const share = Math.ceil(evaluations / Math.min(improvedStarts, fitting.length));
  let best: Improvement | null = null;
  let used = 0;
  for (const { schedule } of fitting.slice(0, improvedStarts)) {
    const found = improve('searchSchedule', schedule, { ...searchOptions(options), evaluations: share });
    used += found.evaluations;
    if (best === null || found.after < best.after) best = found;
    if (objective === 'makespan' && best.after <= best.bound * (1 + 1e-12)) break;
  }
  return { ...best!, before: fitting[0]!.value, evaluations: used, starts };
}

/** The greedy order of the work of a schedule with split backward, if all schedules may be started from. */
function greedyStart(options: SearchScheduleOptions): Schedule | null {
  if (options.from !== undefined) return null;
  const { memoryLimit: _, ...shape } = shapeOf(options);
  const schedule = buildSchedule('InterleavedZeroBubble', shape);
  const graph = new OrderGraph(
    'searchSchedule',
    schedule,
    resolveCosts('searchSchedule', options.costs ?? {}, schedule.stages),
  );
  const limits = resolveMemoryLimit(
    'searchSchedule',
    options.memoryLimit,
    new Float64Array(schedule.ranks).fill(Number.POSITIVE_INFINITY),
  );
  const rows = listOrder(graph, limits);
  return rows === null ? null : alignSlots(graph.scheduleOf(rows).with({ name: 'greedy' }));
}

function namesFor({ from, stagesPerRank = 1 }: SearchScheduleOptions): string[] {
  if (from !== undefined) return from.map((name) => findSchedule(name).name);
  return scheduleDefinitions
    .filter((d) => d.hasBackward && stagesPerRank >= d.stagesPerRank.least && stagesPerRank <= d.stagesPerRank.most)
    .map((d) => d.name);
}

function shapeOf({
  ranks,
  stagesPerRank = 1,
  microbatches,
  costs,
  memoryLimit,
}: SearchScheduleOptions): BuildScheduleOptions {
  return {
    ranks,
    stagesPerRank,
    microbatches,
    ...(costs === undefined ? {} : { costs }),
    ...(memoryLimit === undefined ? {} : { memoryLimit }),
  };
}

function searchOptions({ costs, memoryLimit, objective, seed }: SearchScheduleOptions): SearchOptions {
  return {
    ...(costs === undefined ? {} : { costs }),
    ...(memoryLimit === undefined ? {} : { memoryLimit }),
    ...(objective === undefined ? {} : { objective }),
    ...(seed === undefined ? {} : { seed }),
  };
}
