/** @file `improveSchedule`: a shorter order of the same work. */

import { resolveCosts } from '../costs/cost-table.ts';
import type { Costs } from '../costs/costs.ts';
import { fits, limitTooLow, resolveMemoryLimit } from '../costs/memory-limit.ts';
import { OrderGraph } from '../costs/order-graph.ts';
import { alignSlots } from '../generate/align.ts';
import { checkChoice, checkCount, checkOptions } from '../model/errors.ts';
import { Schedule, type ScheduleData } from '../model/schedule.ts';
import { makespanBound } from './lower-bound.ts';
import { type Objective, searchOrder } from './order-search.ts';

/** How `improveSchedule` and `searchSchedule` search. */
export interface SearchOptions {
  /** Times, messages and memory; default F = I = W = 1. */
  readonly costs?: Costs;
  /** Activation memory a rank may hold, one number or one per rank, in the unit of `costs.activation`; default: no limit. */
  readonly memoryLimit?: number | readonly number[];
  /** `makespan` (default), the time until all is done, or `span`, the longest time from a rank's first action to its last. */
  readonly objective?: Objective;
  /** Orders to try; default 20,000. */
  readonly evaluations?: number;
  /** Same seed, same result; default 1. */
  readonly seed?: number;
}

/** A better order, and how much better it is. */
export interface Improvement {
  readonly schedule: Schedule;
  readonly objective: Objective;
  /** The objective of the schedule given, and of the one found. */
  readonly before: number;
  readonly after: number;
  /** A makespan that no order can go below. */
  readonly bound: number;
  /** Orders tried. */
  readonly evaluations: number;
}

const optionNames = ['costs', 'memoryLimit', 'objective', 'evaluations', 'seed'];

/**
 * Searches for a shorter order of a schedule's compute actions by moving them within their rows, above all weight work,
 * within memory limits. Any placement, uneven stages and skip edges will do; composites move as one. Links that carry one
 * message at a time count as plain delays here; `simulate` tells the exact times.
 * @example improveSchedule(buildSchedule('1F1B', shape), { costs: { F: [1, 1, 3, 1] } }).schedule
 */
export function improveSchedule(schedule: Schedule | ScheduleData, options: SearchOptions = {}): Improvement {
  return improve('improveSchedule', Schedule.from(schedule), options);
}

/** The body of `improveSchedule`, for callers with another name. */
export function improve(caller: string, schedule: Schedule, options: SearchOptions): Improvement {
  checkOptions(caller, options, optionNames);
  checkChoice(caller, 'objective', options.objective, ['makespan', 'span']);
  const objective = options.objective ?? 'makespan';
  const evaluations = checkCount(caller, 'evaluations', options.evaluations ?? 20_000, 0);
  const seed = checkCount(caller, 'seed', options.seed ?? 1, 0);
  const costs = resolveCosts(caller, options.costs ?? {}, schedule.stages);
  const limits = resolveMemoryLimit(
    caller,
    options.memoryLimit,
    new Float64Array(schedule.ranks).fill(Number.POSITIVE_INFINITY),
  );
  const graph = new OrderGraph(caller, schedule, costs);
  graph.rows.forEach((row, rank) => {
    const needed = graph.peakOf(row);
    if (!fits(needed, limits[rank]!)) {
      throw limitTooLow(caller, {
        rank,
        limit: limits[rank]!,
        needed,
        what: `the order of ${schedule.name}`,
        wayOut: 'start from a leaner schedule (ZB1P, AdaptiveV)',
      });
    }
  });
  const before = graph.score(graph.rows)[objective];
  const bound = makespanBound(graph);
  const target = objective === 'makespan' ? bound * (1 + 1e-12) : 0;
  const found = searchOrder(graph, graph.rows, { objective, limits, evaluations, seed, target });
  const after = found.score[objective];
  const name = after < before ? `${schedule.name} improved` : schedule.name;
  return {
    schedule: alignSlots(graph.scheduleOf(found.rows).with({ name })),
    objective,
    before,
    after,
    bound,
    evaluations: found.evaluations,
  };
}
