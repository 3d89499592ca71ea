/** @file Memory limits: one number for all ranks or one per rank, in the unit of `costs.activation`. */

import { ScheduleError, show } from '../model/errors.ts';

/** Room for rounding when amounts are compared with a limit. */
export const memorySlack = 1e-9;

/** The limit of each rank; `fallback` where none is given. */
export function resolveMemoryLimit(
  caller: string,
  limit: number | readonly number[] | undefined,
  fallback: Float64Array,
): Float64Array {
  if (limit === undefined) return fallback;
  const limits =
    typeof limit === 'number'
      ? new Float64Array(fallback.length).fill(limit)
      : Array.isArray(limit)
        ? Float64Array.from(limit)
        : null;
  if (limits === null || limits.length !== fallback.length) {
    throw new ScheduleError(
      'BAD_OPTION',
      `${caller}: memoryLimit must be one number or one per rank (${fallback.length}), got ${show(limit)}`,
    );
  }
  limits.forEach((value, rank) => {
    if (!(value > 0))
      throw new ScheduleError(
        'BAD_OPTION',
        `${caller}: memoryLimit must be above 0, got ${show(value)} for rank ${rank}`,
      );
  });
  return limits;
}

/** Whether an amount is within a limit. */
export function fits(amount: number, limit: number): boolean {
  return amount <= limit * (1 + memorySlack) + memorySlack;
}

/** A limit that cannot be met. */
export interface MissedLimit {
  readonly rank: number;
  readonly limit: number;
  /** What the rank would need. */
  readonly needed: number;
  /** What needs it. */
  readonly what: string;
  /** Another remedy than a higher limit. */
  readonly wayOut?: string;
  /** What is counted; default: activations. */
  readonly unit?: string;
}

/** The error for a limit that cannot be met. */
export function limitTooLow(caller: string, { rank, limit, needed, what, wayOut, unit }: MissedLimit): ScheduleError {
  const out = `raise memoryLimit to at least ${needed}${wayOut === undefined ? '' : `, or ${wayOut}`}`;
  return new ScheduleError(
    'MEMORY_LIMIT',
    `${caller}: ${what} needs ${needed} on rank ${rank}, memoryLimit is ${limit} (${unit ?? 'in the unit of costs.activation, 1 per stage and microbatch by default'}); ${out}`,
    {
      rank,
      limit,
      needed,
    },
  );
}
