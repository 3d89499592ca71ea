/**
 * @file How far a rank is in the step under way. The rank keeps it in a file that it has mapped into memory, so that it is still
 * there when the process is killed; the launcher reads the file and passes on what it says.
 */
import { ScheduleError, show } from '../model/errors.ts';

/** What a rank has done of a step. Times are milliseconds on the rank's clock; -1: has not happened. */
export interface LiveProgress {
  readonly rank: number;
  /** The number of the training step, or of the evaluation. */
  readonly step: number;
  readonly training: boolean;
  /** What has to be added to the times, for the clock that all ranks of a machine share. */
  readonly origin: number;
  readonly begin: number;
  readonly end: number;
  /** How long the step before took, in milliseconds; 0 for the first. */
  readonly before: number;
  /** When the rank itself noticed that the step fails. */
  readonly failed: number;
  /** Index of the first entry that is told; those before it have ended. */
  readonly from: number;
  /** The entries that have begun, as in `RankRecord`. */
  readonly start: readonly number[];
  readonly ready: readonly number[];
  readonly stop: readonly number[];
}

/** Places of the numbers at the beginning of the file. */
export const ProgressHead = {
  Version: 0,
  Step: 1,
  Training: 2,
  Origin: 3,
  Begin: 4,
  End: 5,
  Failed: 6,
  Before: 7,
} as const;
/** How many there are; those of the entries follow. */
export const PROGRESS_HEAD = 8;
/** Numbers of an entry: when it began, had received, and ended. */
export const PROGRESS_ENTRY = 3;
/** The first number of a file in which there is a step. */
export const PROGRESS_VERSION = 1;

const mostEntries = 1_000_000;

/** The name of the file of a rank in the folder of a live run. */
export function progressFileOf(rank: number): string {
  if (!Number.isSafeInteger(rank) || rank < 0)
    throw new ScheduleError('BAD_OPTION', `progressFileOf: rank is ${show(rank)}; give 0 or more`);
  return `rank-${rank}.progress`;
}

/** The rank whose progress a file has; null for other files. */
export function progressRankOf(file: string): number | null {
  const found = typeof (file as unknown) === 'string' ? /^rank-(\d{1,4})\.progress$/.exec(file) : null;
  return found === null ? null : Number(found[1]);
}

/** Reads the numbers of a file, of the entries the last `most` that have begun; null before the first step. */
export function readProgress(rank: number, numbers: Float64Array, most: number = mostEntries): LiveProgress | null {
  const head = (at: number): number => numbers[at] ?? -1;
  if (head(ProgressHead.Version) !== PROGRESS_VERSION || numbers.length < PROGRESS_HEAD) return null;
  const begin = head(ProgressHead.Begin);
  const later = (time: number, than: number): number => (time >= than ? time : -1);
  const entry = (index: number, which: number): number => numbers[PROGRESS_HEAD + index * PROGRESS_ENTRY + which] ?? -1;
  // Whatever is from before the step began is of another step: nothing is cleared in between.
  const startOf = (index: number): number => later(entry(index, 0), begin);
  let count = Math.floor((numbers.length - PROGRESS_HEAD) / PROGRESS_ENTRY);
  while (count > 0 && startOf(count - 1) < 0) count--;
  const from = Math.max(0, count - most);
  const start = Array.from({ length: count - from }, (_, i) => startOf(from + i));
  const after = (which: number): number[] =>
    start.map((time, i) => (time < 0 ? -1 : later(entry(from + i, which), time)));
  return {
    ...{ rank, step: head(ProgressHead.Step), training: head(ProgressHead.Training) === 1 },
    ...{ origin: head(ProgressHead.Origin), begin, from, start, ready: after(1), stop: after(2) },
    ...{ end: later(head(ProgressHead.End), begin), failed: later(head(ProgressHead.Failed), begin) },
    before: head(ProgressHead.Before),
  };
}

/** Checks what a line says of a rank's progress; null where it is none. */
export function checkProgress(value: unknown): LiveProgress | null {
  if (typeof value !== 'object' || value === null) return null;
  const { rank, step, training, origin, begin, end, before, failed, from, start, ready, stop } = value as Record<
    keyof LiveProgress,
    unknown
  >;
  const numbers = [rank, step, origin, begin, end, before, failed, from];
  if (!numbers.every((number) => typeof number === 'number' && Number.isFinite(number))) return null;
  const isColumn = (column: unknown): column is number[] =>
    Array.isArray(column) && column.length <= mostEntries && column.every(Number.isFinite);
  if (!isColumn(start) || !isColumn(ready) || !isColumn(stop)) return null;
  if (ready.length !== start.length || stop.length !== start.length) return null;
  if (!Number.isSafeInteger(rank) || Number(rank) < 0 || !Number.isSafeInteger(from) || Number(from) < 0) return null;
  const whole = {
    rank,
    step,
    training: training === true,
    origin,
    begin,
    end,
    before,
    failed,
    from,
    start,
    ready,
    stop,
  };
  return whole as LiveProgress;
}
