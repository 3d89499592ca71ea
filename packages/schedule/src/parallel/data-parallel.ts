/** @file How the replicas of a pipeline share the state of a stage: what is sharded, over how many, and what that takes. */

import type { PerStage } from '../costs/costs.ts';
import { checkChoice, checkCount, checkOptions, ScheduleError, show } from '../model/errors.ts';

/**
 * What the ranks of a group divide among them: nothing (`replicate`, as DistributedDataParallel), the optimizer's states, also
 * the gradients, also the parameters (as fully_shard).
 */
export type ShardingLevel = 'replicate' | 'optimizer' | 'gradients' | 'parameters';

/** All levels, from the one that holds most to the one that holds least. */
export const shardingLevels: readonly ShardingLevel[] = Object.freeze([
  'replicate',
  'optimizer',
  'gradients',
  'parameters',
]);

/** What a rank may hold of parameters, and how much they are. */
export interface Residency {
  /** Bytes of a stage's whole parameters: one number, or one per stage; default 1. */
  readonly parameters?: PerStage;
  /** Ranks that divide a stage's parameters; default 1. Of a sharded stage each keeps 1/shards all the time. */
  readonly shards?: number;
  /**
   * The most bytes of parameters a rank may hold at once, shards and whole stages together; default: no limit. `least`: as few
   * as its order allows, with only those stages whole that an action needs.
   */
  readonly memoryLimit?: number | readonly number[] | 'least';
}

/** Data parallelism as `validate` checks it. */
export interface DataParallelRules extends Residency {
  readonly level: ShardingLevel;
}

/** Names of the options of `DataParallelRules`. */
export const ruleNames: readonly string[] = ['level', 'parameters', 'shards', 'memoryLimit'];

/** Residency with one number per stage and rank. */
export interface ResidencyTable {
  readonly bytes: Float64Array;
  readonly shards: number;
  /** What UNSHARD adds to the shard that stays: the whole, and nothing where one rank has it all. */
  readonly gathered: Float64Array;
  /** Infinity where there is no limit, also where it is the least possible one. */
  readonly limits: Float64Array;
  /** Whether only stages that an action needs are whole. */
  readonly isLeast: boolean;
}

/** Checks the options that describe residency. */
export function resolveResidency(
  caller: string,
  residency: Residency,
  shape: { readonly ranks: number; readonly stages: number },
): ResidencyTable {
  const spread = (name: string, value: unknown, count: number, fallback: number): Float64Array => {
    const all = value === undefined ? fallback : value;
    const list = typeof all === 'number' ? new Float64Array(count).fill(all) : all;
    const fits = (Array.isArray(list) || list instanceof Float64Array) && list.length === count;
    if (!fits || Array.from(list as ArrayLike<unknown>).some((item) => typeof item !== 'number' || !(item >= 0)))
      throw new ScheduleError(
        'BAD_OPTION',
        `${caller}: ${name} must be a number of at least 0 or a list of ${count}, got ${show(value)}`,
        { option: name },
      );
    return Float64Array.from(list as ArrayLike<number>);
  };
  const bytes = spread('dataParallel.parameters', residency.parameters, shape.stages, 1);
  const shards = checkCount(caller, 'dataParallel.shards', residency.shards ?? 1);
  return {
    bytes,
    shards,
    gathered: shards > 1 ? bytes : new Float64Array(shape.stages),
    limits: spread(
      'dataParallel.memoryLimit',
      residency.memoryLimit === 'least' ? undefined : residency.memoryLimit,
      shape.ranks,
      Number.POSITIVE_INFINITY,
    ),
    isLeast: residency.memoryLimit === 'least',
  };
}

/** Refuses options of data parallelism that are not known or have no level. */
export function checkDataParallel(
  caller: string,
  options: { readonly level: unknown },
  known: readonly string[],
): void {
  checkOptions(`${caller}: dataParallel`, options, known);
  if (options.level === undefined)
    throw new ScheduleError(
      'BAD_OPTION',
      `${caller}: dataParallel.level is missing; use one of ${shardingLevels.join(', ')}`,
    );
  checkChoice(caller, 'dataParallel.level', options.level, shardingLevels);
}
