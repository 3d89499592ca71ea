/** @file The rule book: what a legal schedule is, and where one is not. */

import { checkCount, checkOptions, ScheduleError, show } from '../model/errors.ts';
import { Schedule, type ScheduleData } from '../model/schedule.ts';
import { checkDataParallel, type DataParallelRules, ruleNames } from '../parallel/data-parallel.ts';
import { CellCheck } from './cells.ts';
import { checkChannels } from './channels.ts';
import { checkComputeOrder } from './compute-order.ts';
import { checkLevel, checkReplicas } from './data-parallel.ts';
import { isKnownLegal, markLegal } from './known-legal.ts';
import { type ValidationRule, type Violation, ViolationList } from './violation.ts';

/** How `validate` reports. */
export interface ValidateOptions {
  /** The most violations to report; default 100. */
  readonly limit?: number;
  /** What a lowered schedule has to do for the replicas beside it: the collectives of a level, within a limit of bytes. */
  readonly dataParallel?: DataParallelRules;
  /** The schedules that other replicas run, if they are not the same: collectives are compared rank by rank. */
  readonly replicas?: readonly (Schedule | ScheduleData)[];
}

/**
 * All broken rules of a schedule, compute-only or lowered; none means that it can run.
 * @example validate({ order: [['0B0', '0F0']] })[0].rule // 'forward-first'
 */
export function validate(input: Schedule | ScheduleData, options: ValidateOptions = {}): Violation[] {
  checkOptions('validate', options, ['limit', 'dataParallel', 'replicas']);
  const { dataParallel, replicas } = options;
  if (dataParallel !== undefined) checkDataParallel('validate', dataParallel, ruleNames);
  if (replicas !== undefined && !Array.isArray(replicas))
    throw new ScheduleError('BAD_OPTION', `validate: replicas must be a list of schedules, got ${show(replicas)}`);
  const schedule = Schedule.from(input);
  // Built by name and not looked at yet: bubbles are put in only to say where something is wrong.
  const isParallel = dataParallel !== undefined || replicas !== undefined;
  if (!isParallel && isKnownLegal(schedule) && schedule.isComputeOnly) return [];
  const violations = new ViolationList(schedule, checkCount('validate', 'limit', options.limit ?? 100));
  const cells = new CellCheck(schedule, violations, { computeOnly: false });
  cells.run();
  // What is wrong with single cells is also why ranks get stuck; waiting is followed when the rest is right.
  if (violations.found.every(({ rule }) => besides.has(rule))) {
    if (cells.hasMessages) checkChannels(schedule, violations);
    else checkComputeOrder(schedule, violations);
  }
  if (dataParallel !== undefined && !violations.isFull) checkLevel(schedule, dataParallel, violations);
  if (replicas !== undefined && !violations.isFull) checkReplicas(schedule, replicas, violations);
  if (violations.found.length === 0) markLegal(schedule);
  return violations.found;
}

/** Rules that have no bearing on who waits for whom. */
const besides: ReadonlySet<ValidationRule> = new Set(['sharded', 'shard-state', 'reduce-grad', 'composite']);
