/** @file The messages with which a rank reports its end to the launcher. */
import type { Thrown } from '@pipewright/torch/environment';

/** Marks a message as a report: scripts may send messages of their own. */
const MARK = 'pipewright.report';

/** The report of a rank that is a process. */
export type ProcessReport =
  | { readonly mark: typeof MARK; readonly kind: 'result'; readonly value: unknown; readonly atMs: number }
  | { readonly mark: typeof MARK; readonly kind: 'error'; readonly error: Thrown; readonly atMs: number };

/** The result of a rank's `main`. */
export function resultReport(value: unknown, atMs: number): ProcessReport {
  return { mark: MARK, kind: 'result', value, atMs };
}

/** The error of a rank. */
export function errorReport(error: Thrown, atMs: number): ProcessReport {
  return { mark: MARK, kind: 'error', error, atMs };
}

/** Whether a message is such a report. */
export function isReport(message: unknown): message is ProcessReport {
  return typeof message === 'object' && message !== null && 'mark' in message && message.mark === MARK;
}
