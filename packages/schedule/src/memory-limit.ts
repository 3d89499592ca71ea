/** @file Memory limits: one number for all ranks or one per rank, in the unit of `costs.activation`. */

import { ScheduleError, show } from './errors.ts';

/** Room for rounding when amounts are compared with a limit. */
export const memorySlack = 1e-9;

/** The limit of each rank; `fallback` where none is given. */
export function resolveMemoryLimit(caller: string, limit: number | readonly number[] | undefined, fallback: Float64Array): Float64Array {
  if (limit === undefined) return fallback;
  const limits = typeof limit === 'number' ? new Float64Array(fallback.length).fill(limit) : Array.isArray(limit) ? Float64Array.from(limit) : null;
  if (limits === null || limits.length !== fallback.length) {
    throw new ScheduleError('BAD_OPTION', `${caller}: memoryLimit must be one number or one per rank (${fallback.length}), got ${show(limit)}`);
  }
  limits.forEach((value, rank) => {
    if (!(value > 0)) throw new ScheduleError('BAD_OPTION', `${caller}: memoryLimit must be above 0, got ${show(value)} for rank ${rank}`);
  });
  return limits;
}

/** Whether an amount is within a limit. */
export function fits(amount: number, limit: number): boolean {
  return amount <= limit * (1 + memorySlack) + memorySlack;
}

/** The error for a limit that nothing can meet. */
export function limitTooLow(caller: string, what: { readonly rank: number; readonly limit: number; readonly needed: number; readonly why: string }): ScheduleError {
  return new ScheduleError(
    'MEMORY_LIMIT',
    `${caller}: memoryLimit ${what.limit} is too low on rank ${what.rank}: ${what.why} needs ${what.needed} (in the unit of costs.activation); raise it to at least ${what.needed}`,
    what,
  );
}
