/** @file A failure after which all ranks were started again: which rank failed, where, and how long the restart took. */
import { checkArgument } from '../base/checks.ts';
import { steadyMs } from '../base/steady-clock.ts';
import { LaunchError } from './ranks/rank-failure.ts';

/** A failure after which all ranks were started again. */
export interface Restart {
  /** 1 for the first. */
  readonly count: number;
  /** How many there may be. */
  readonly of: number;
  /** The rank that was the cause; undefined where it was none of them. */
  readonly rank: number | undefined;
  /** Where that rank was, if it had reported it. */
  readonly step: number | undefined;
  readonly slot: number | undefined;
  readonly action: string | undefined;
  /** What went wrong, in one line. */
  readonly message: string;
  /** From the failure until the launcher knew of it, in milliseconds. */
  readonly noticedAfterMs: number;
  /** From then until all ranks had ended. */
  readonly endedAfterMs: number;
  /** The whole report, as of `LaunchError.report()`. */
  readonly report: string;
}

/** Describes the end of an attempt. */
export function describeRestart(
  error: unknown,
  times: { readonly noticedMs: number | undefined; readonly endedMs: number | undefined },
  { count, of }: { readonly count: number; readonly of: number },
): Restart {
  const noticedMs = times.noticedMs ?? steadyMs();
  const failure = error instanceof LaunchError ? error.failures[0] : undefined;
  const place = error instanceof LaunchError ? error.places.find(({ rank }) => rank === error.rank) : undefined;
  const message = error instanceof Error ? error.message : String(error);
  return {
    count,
    of,
    rank: failure?.rank,
    step: place?.evaluates === true ? undefined : place?.step,
    slot: place?.slot,
    action: place?.action === '' ? undefined : place?.action,
    message: message.replaceAll(/\s*\n\s*/g, ' '),
    noticedAfterMs: Math.max(0, noticedMs - (failure?.atMs ?? noticedMs)),
    endedAfterMs: Math.max(0, (times.endedMs ?? steadyMs()) - noticedMs),
    report: error instanceof LaunchError ? error.report() : message,
  };
}

/** A restart in one line. @example formatRestart(restart) // 'restart 1 of 3: rank 2 failed: ...; noticed after 4 ms, all ended after 1,203 ms' */
export function formatRestart(restart: Restart): string {
  checkArgument(
    'formatRestart',
    typeof restart === 'object' && restart !== null,
    ['the argument', restart],
    'a restart',
  );
  const { count, of, message, noticedAfterMs, endedAfterMs } = restart;
  const ms = (value: number): string => `${Math.round(value).toLocaleString('en-US')} ms`;
  return `restart ${count} of ${of}: ${message}; noticed after ${ms(noticedAfterMs)}, all ranks had ended ${ms(endedAfterMs)} later`;
}
