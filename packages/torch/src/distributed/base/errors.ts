/** @file The error of communication: who waited for whom, in which group, with which tag, and for how long. */
import { TorchError, type TorchErrorCode } from '../../base/errors.ts';

/** What an operation was doing when it failed. */
export interface OperationDetails {
  readonly operation: string;
  readonly group: string;
  readonly rank: number;
  readonly peer?: number | undefined;
  readonly tag?: number | undefined;
}

/**
 * Communication that failed. `code` is `TIMED_OUT`, `PEER_LOST`, `CANCELLED`, `ABORTED`, `MISMATCH`, `CLOSED`,
 * `TERMINATED` or `LIBTORCH`.
 *
 * @example if (error instanceof DistributedError && error.code === 'TIMED_OUT') console.log(error.peer, error.waitedMs)
 */
export class DistributedError extends TorchError implements OperationDetails {
  override readonly name = 'DistributedError';
  readonly operation: string;
  readonly group: string;
  readonly rank: number;
  readonly peer: number | undefined;
  readonly tag: number | undefined;
  /** How long the operation had waited. */
  readonly waitedMs: number | undefined;

  constructor(
    code: TorchErrorCode,
    message: string,
    details: OperationDetails & { waitedMs?: number; cause?: unknown },
  ) {
    super(code, message, details.cause === undefined ? undefined : { cause: details.cause });
    this.operation = details.operation;
    this.group = details.group;
    this.rank = details.rank;
    this.peer = details.peer;
    this.tag = details.tag;
    this.waitedMs = details.waitedMs;
  }
}

const wayOut: Readonly<Record<string, string>> = {
  TIMED_OUT: 'see what that rank is doing, or give a longer timeoutMs',
  PEER_LOST: 'the first error of that rank is the cause',
  MISMATCH: 'both sides must agree on dtype and shape',
  CLOSED: 'use the group before it is closed, in the thread that made it',
};

/** The addon's error with everything a reader needs; other errors as they are. */
export function explain(error: unknown, details: OperationDetails): unknown {
  if (!(error instanceof TorchError) || error instanceof DistributedError) return error;
  if (error.code === 'STALE_HANDLE' || error.code === 'BAD_ARGUMENT') return error;
  const waited = /^(?<text>.*) \(waited (?<ms>\d+) ms\)$/s.exec(error.message)?.groups;
  const waitedMs = waited === undefined ? undefined : Number(waited['ms']);
  const told = waited?.['text'] ?? error.message;
  const what = withoutNoise(told);
  const partner = details.peer === undefined ? '' : ` ${direction(details.operation)} rank ${details.peer}`;
  const tag = details.tag === undefined || details.tag < 0 ? '' : ` with tag ${details.tag}`;
  const time = waitedMs === undefined ? '' : ` waited ${waitedMs} ms`;
  const hint = wayOut[error.code] === undefined ? '' : `; ${wayOut[error.code]}`;
  const message = `${details.operation} in group '${details.group}': rank ${details.rank}${time}${partner}${tag}: ${what}${hint}`;
  return new DistributedError(error.code, message, {
    ...details,
    ...(waitedMs === undefined ? {} : { waitedMs }),
    // Printed errors show their cause: not the noise again.
    ...(what === told ? { cause: error } : {}),
  });
}

/** Gloo's text without the source file where it was built, its guesses and its good wishes. */
export function withoutNoise(text: string): string {
  const plain = text
    .replaceAll(/\[[^\]]*\.(?:cc|cpp|h|hpp):\d+\]\s*/g, '')
    .replaceAll(/(?:This is typically caused by|Check the logs of the remote worker)[^.]*\.\s*/g, '')
    .replaceAll(/GLHF![^\p{L}\p{N}]*/gu, '');
  return plain === text ? text : plain.replace(/[\s.]+$/, '');
}

function direction(operation: string): string {
  return /send/i.test(operation) ? 'to' : 'for';
}
