/** @file Failures of ranks: which one is the cause, and how they are reported. */
import { constants } from 'node:os';
import type { Thrown } from '@pipewright/torch/environment';
import { type PassedErrorCode, PipelineError, type PipelineErrorCode } from '../../base/errors.ts';
import { passedCode } from '../../base/passed-code.ts';
import { steadyMs } from '../../base/steady-clock.ts';
import { formatDigest } from '../../status/digest.ts';
import { formatPlace, type RankPlace } from '../../status/place.ts';

/** How a rank failed. */
export interface RankFailure {
  readonly rank: number;
  readonly message: string;
  /** The error's name, where the rank could send it. */
  readonly name?: string | undefined;
  /** The error's code: `TIMED_OUT`, `PEER_LOST` and so on. */
  readonly code?: PassedErrorCode | undefined;
  readonly stack?: string | undefined;
  /** As a shell reports it. */
  readonly exitCode: number;
  /** When, in milliseconds of this machine's steady clock: to be compared with other failures. */
  readonly atMs: number;
  /** The launcher ended it, because of another failure. */
  readonly ended: boolean;
}

/**
 * Ranks failed. `rank` is the one that failed first of its own, `failures` are all, causes before consequences; `places`
 * is where every rank was at that moment.
 *
 * @example try { await launch({ ranks: 4, script }).done } catch (e) { if (e instanceof LaunchError) process.exit(e.exitCode) }
 */
export class LaunchError extends PipelineError {
  override readonly name = 'LaunchError';
  readonly rank: number;
  readonly failures: readonly RankFailure[];
  readonly places: readonly RankPlace[];
  /** The exit code of the first cause: its own, or 128 and the number of the signal. */
  readonly exitCode: number;

  constructor(failures: readonly RankFailure[], places: readonly RankPlace[]) {
    const ordered = orderByCause(failures);
    const [first] = ordered;
    if (first === undefined) throw new PipelineError('INTERNAL', 'internal: a LaunchError without a failure');
    super(passedCode(first.code ?? 'RANK_FAILED'), `${whereFailed(first, places)}: ${first.message}`, {
      rank: first.rank,
    });
    this.rank = first.rank;
    this.failures = ordered;
    this.places = places;
    this.exitCode = first.exitCode;
    // Node prints the stack and every field of an uncaught error; the report is shorter and says more.
    for (const key of Object.keys(this)) Object.defineProperty(this, key, { enumerable: false });
    this.stack = `${this.name}: ${this.report()}`;
  }

  /** The first cause with its stack (left out where the message says all), where all ranks were, and what followed. */
  report(): string {
    const [first, ...others] = this.failures as readonly [RankFailure, ...RankFailure[]];
    const stack = first.stack === undefined || plainCodes.includes(first.code) ? [] : [indent(first.stack)];
    const where = this.places.some(({ state }) => state !== 'silent' && state !== 'failed' && state !== 'done')
      ? [`At that moment: ${formatDigest(this.places)}`]
      : [];
    const after = others
      .filter(({ ended }) => !ended)
      .map(({ rank, message }) => `Then rank ${rank} failed: ${message}`);
    const ended = others
      .filter((failure) => failure.ended)
      .map(({ rank }) => rank)
      .toSorted((a, b) => a - b);
    const rest = ended.length === 0 ? [] : [`Ended for that reason: rank ${ended.join(', ')}`];
    return [this.message, ...stack, ...where, ...after, ...rest].join('\n');
  }
}

/** A failure from the error that a rank sent. */
export function failureOf(rank: number, error: Thrown, atMs: number): RankFailure {
  return {
    rank,
    message: error.message,
    name: error.name,
    code: error.code,
    stack: error.stack,
    exitCode: 1,
    atMs,
    ended: false,
  };
}

/** A failure of a process without a report: it exited, or a signal ended it. */
export function silentFailure(
  rank: number,
  { code, signal, ended }: { readonly code: number | null; readonly signal: string | null; readonly ended: boolean },
): RankFailure {
  const number = signal === null ? 0 : (constants.signals[signal as NodeJS.Signals] ?? 0);
  const hint = signal === 'SIGKILL' && !ended ? ': by hand, or for lack of memory' : '';
  const message = signal === null ? `it exited with code ${code ?? 1}` : `the signal ${signal} ended it${hint}`;
  // The system keeps eight bits: what would look like success there is not.
  const exitCode = signal === null ? (code ?? 1) % 256 || 1 : 128 + number;
  return { rank, message, exitCode, atMs: steadyMs(), ended };
}

/** A failure of a rank that ended well while another one still needed it. */
export function leftFailure(
  rank: number,
  { atMs, needs }: { readonly atMs: number; readonly needs: string },
): RankFailure {
  return found('LEFT_EARLY', `it ended with exit code 0, too early: ${needs}`, { rank, atMs, exitCode: 1 });
}

/** A failure of a process that is stopped while the others wait for it, or longer than the time limit. */
export function stoppedFailure(rank: number): RankFailure {
  const exitCode = 128 + constants.signals.SIGSTOP;
  return found('STOPPED', 'it is stopped, as by SIGSTOP, and nobody let it go on', {
    rank,
    atMs: steadyMs(),
    exitCode,
  });
}

/** A failure of a rank that did not come to `trainLoop`, where the others wait for it. */
export function lateFailure(rank: number, limitMs: number): RankFailure {
  return found('LATE', `it did not come to trainLoop within ${limitMs} ms, and the other ranks wait for it there`, {
    rank,
    atMs: steadyMs(),
    exitCode: 1,
  });
}

/** A failure that the launcher found, not the rank itself. */
function found(
  code: PipelineErrorCode,
  message: string,
  { rank, atMs, exitCode }: Pick<RankFailure, 'rank' | 'atMs' | 'exitCode'>,
): RankFailure {
  return { rank, message, code, exitCode, atMs, ended: false };
}

/** Codes of errors that need no stack: the machine or the command line is at fault, not a line of a program. */
const plainCodes: readonly (PassedErrorCode | undefined)[] = ['CANNOT_WRITE', 'NO_CUDA'];

/** Codes of errors that a rank has because another one has failed. */
const consequences: readonly (PassedErrorCode | undefined)[] = ['PEER_LOST', 'ABORTED', 'CANCELLED', 'TERMINATED'];

/** Whether a rank failed while it waited for another. */
export function failedInWait({ code, ended }: RankFailure): boolean {
  return ended || code === 'TIMED_OUT' || consequences.includes(code);
}

/** Causes before consequences, then in the order of time. A wait that took too long has its cause elsewhere, if that failed too. */
function orderByCause(failures: readonly RankFailure[]): RankFailure[] {
  const distance = ({ ended, code }: RankFailure): number =>
    ended ? 3 : consequences.includes(code) ? 2 : code === 'TIMED_OUT' ? 1 : 0;
  return failures.toSorted((a, b) => distance(a) - distance(b) || a.atMs - b.atMs);
}

/** Where a rank was that has not reported why it failed. */
function whereFailed({ rank, name }: RankFailure, places: readonly RankPlace[]): string {
  const place = name === undefined ? places.find((one) => one.rank === rank) : undefined;
  return place === undefined || place.state === 'silent'
    ? `rank ${rank} failed`
    : formatPlace({ ...place, state: 'failed' });
}

function indent(text: string): string {
  return text.replaceAll(/^/gm, '    ');
}
