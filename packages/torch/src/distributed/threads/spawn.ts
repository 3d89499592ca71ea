/** @file Ranks as worker threads of this process. */

import { Worker } from 'node:worker_threads';
import { show } from '../../base/checks.ts';
import { checkOptions, TorchError, type TorchErrorCode } from '../../base/errors.ts';
import type { Thrown } from '../../base/thrown.ts';
import { dist } from '../base/native.ts';
import { threadsPerRank } from './settings.ts';

/** How to run the threads. */
export interface SpawnOptions {
  /** The name of their group. Default: one of its own. */
  readonly name?: string | undefined;
  /** Cores for the operators of each rank. Default: PIPEWRIGHT_THREADS, or the cores divided by the ranks. */
  readonly threadsPerRank?: number | undefined;
  /** More environment variables for the ranks. */
  readonly env?: Readonly<Record<string, string>> | undefined;
  /** How long the other ranks may take to end after one has failed, before they are terminated. Default 2 seconds. */
  readonly graceMs?: number | undefined;
  /** The other ranks live on when one fails, and `restart` may start it again. Default false. */
  readonly keepOthers?: boolean | undefined;
}

/** What a thread of `spawnThreads` is given. */
export interface ThreadStart {
  readonly module: string;
  readonly data: unknown;
  readonly threads: number;
}

/** What a thread reports at its end. */
export type ThreadReport =
  | { readonly kind: 'result'; readonly value: unknown }
  | { readonly kind: 'error'; readonly error: Thrown };

/**
 * A rank that failed. `rank` says which, `cause` is its error; `others` are the errors of ranks that failed after it.
 */
export class RankError extends TorchError {
  override readonly name = 'RankError';
  readonly rank: number;
  readonly others: readonly RankError[];

  constructor(rank: number, cause: Error, others: readonly RankError[] = []) {
    const code = 'code' in cause && typeof cause.code === 'string' ? cause.code : 'RANK_FAILED';
    // A rank runs programs of others, whose codes are passed on.
    super(code as TorchErrorCode, `rank ${rank}: ${cause.message}`, { cause });
    this.rank = rank;
    this.others = others;
  }
}

/** Threads under way. */
export interface ThreadRanks<Result = unknown> {
  /** The name of their group. */
  readonly name: string;
  readonly workers: readonly Worker[];
  /** What the ranks' `main` functions returned, by rank. Rejects with the `RankError` of the rank that failed first. */
  readonly done: Promise<Result[]>;
  /** The ranks that came to no end of their own and were terminated. */
  readonly terminated: ReadonlySet<number>;
  /** Ends all threads now, also those blocked in a wait. */
  terminate(reason?: string): Promise<void>;
  /** Starts the thread of a rank that has ended again, with `keepOthers`; `env` replaces the environment variables of the options. */
  restart(rank: number, env?: SpawnOptions['env']): Worker;
  /** Ends the waits of the ranks and makes a new group for them, whose name it returns. */
  regroup(reason: string): string;
}

let groups = 0;
/** More threads than any system lets a process have. */
const MOST_THREADS = 1 << 22;
const ENDED = 'RANK_ENDED';
/** The exit code of a thread that was terminated. */
const TERMINATED_CODE = 1;
/** Codes of errors that a rank has because another one has failed. */
const waitCodes: readonly string[] = ['PEER_LOST', 'ABORTED', 'TERMINATED'] satisfies TorchErrorCode[];

/**
 * Starts `count` ranks as threads. Each imports `module` and, where it exports a function `main`, calls it with `data`; there,
 * `initProcessGroup()` joins the group. When a rank fails, the waits of the others end, and then the others.
 *
 * @example const losses = await spawnThreads<number>(4, new URL('../train.js', import.meta.url), { steps: 100 }).done
 */
export function spawnThreads<Result = unknown>(
  count: number,
  module: string | URL,
  data?: unknown,
  options?: SpawnOptions,
): ThreadRanks<Result> {
  checkOptions('spawnThreads', options, ['name', 'threadsPerRank', 'env', 'graceMs', 'keepOthers']);
  if (!Number.isInteger(count) || count < 1 || count > MOST_THREADS) {
    throw new TorchError(
      'BAD_ARGUMENT',
      `spawnThreads: ${show(count)} is not a number of ranks; give a whole number from 1 to ${MOST_THREADS}`,
    );
  }
  const name = options?.name ?? `threads-${process.pid}-${groups++}`;
  const graceMs = options?.graceMs ?? 2000;
  dist.createThreads(name, count, 0);
  const start: ThreadStart = {
    module: String(module),
    data,
    threads: options?.threadsPerRank ?? threadsPerRank(count),
  };
  const workers = Array.from({ length: count }, (_, rank) => startThread(rank, count, start, { ...options, name }));
  const failures: RankError[] = [];
  const asked = new Set<number>(); // to end, by us
  const terminated = new Set<number>();
  const end = async (): Promise<void> => {
    for (const [rank, worker] of workers.entries()) if (worker.threadId !== -1) asked.add(rank);
    await Promise.all(workers.map((worker) => worker.terminate()));
  };
  const watchEnd = (worker: Worker, rank: number): void => {
    worker.on('exit', (code) => {
      if (asked.has(rank) && code === TERMINATED_CODE) terminated.add(rank);
    });
  };
  workers.forEach(watchEnd);
  let stopping = false;
  let generations = 0;
  const stop = (reason: string): void => {
    if (stopping) return;
    stopping = true;
    dist.abortWaits(name, -1, reason);
    // On a machine that was busy, threads may have ended in time without our having heard of it: first that, then the end.
    const timer = setTimeout(() => setImmediate(() => void end()), graceMs);
    void Promise.allSettled(ends).then(() => clearTimeout(timer));
  };
  const endOf = (worker: Worker, rank: number): Promise<unknown> =>
    watch(worker).catch((cause: Error) => {
      const failure = new RankError(rank, cause);
      failures.push(failure);
      if (options?.keepOthers !== true) stop(`rank ${rank} failed: ${cause.message}`);
      throw failure;
    });
  const ends = workers.map(endOf);
  const done = allEnded(ends).then((results) => {
    dist.forgetThreads(name);
    // Whoever waited for a rank that failed may have ended before it.
    const consequence = ({ code, rank }: RankError): boolean =>
      waitCodes.includes(code) || (code === ENDED && terminated.has(rank));
    const [first, ...others] = failures.toSorted((a, b) => Number(consequence(a)) - Number(consequence(b)));
    if (first !== undefined) throw new RankError(first.rank, first.cause as Error, others);
    return results.map((result) => (result as PromiseFulfilledResult<Result>).value);
  });
  done.catch(() => undefined);
  return {
    name,
    workers,
    done,
    terminated,
    terminate: async (reason = 'the threads were terminated') => {
      dist.abortWaits(name, -1, reason);
      await end();
      await done.catch(() => undefined);
    },
    restart: (rank, env = options?.env) => {
      const made = startThread(rank, count, start, { ...options, name, env });
      const before = failures.findIndex((failure) => failure.rank === rank);
      if (before >= 0) failures.splice(before, 1);
      workers[rank] = made;
      watchEnd(made, rank);
      const end = endOf(made, rank);
      end.catch(() => undefined); // `done` looks at it when the others have ended
      ends[rank] = end;
      return made;
    },
    regroup: (reason) => {
      dist.abortWaits(name, -1, reason);
      const made = `${name}/${generations}`;
      // Of the one before, a rank may still be on its way in.
      if (generations > 1) dist.forgetThreads(`${name}/${generations - 2}`);
      generations++;
      dist.createThreads(made, count, 0);
      return made;
    },
  };
}

/** How all have ended, those included that were started meanwhile. */
async function allEnded(ends: readonly Promise<unknown>[]): Promise<PromiseSettledResult<unknown>[]> {
  for (;;) {
    const seen = [...ends];
    const results = await Promise.allSettled(seen);
    if (seen.every((end, i) => end === ends[i])) return results;
  }
}

function startThread(
  rank: number,
  count: number,
  start: ThreadStart,
  options: SpawnOptions & { name: string },
): Worker {
  const env: NodeJS.ProcessEnv = {
    ...process.env,
    ...options.env,
    RANK: String(rank),
    LOCAL_RANK: String(rank),
    WORLD_SIZE: String(count),
    LOCAL_WORLD_SIZE: String(count),
    PIPEWRIGHT_THREAD_GROUP: options.name,
  };
  return new Worker(new URL(`./main${import.meta.url.endsWith('.ts') ? '.ts' : '.js'}`, import.meta.url), {
    workerData: start,
    env,
    name: `rank ${rank}`,
  });
}

/** What the thread returned, once it has ended. */
function watch(worker: Worker): Promise<unknown> {
  return new Promise((resolve, reject) => {
    let report: ThreadReport | undefined;
    let crash: Error | undefined;
    worker.on('message', (message: unknown) => {
      if (isReport(message)) report = message;
    });
    worker.on('error', (error: Error) => {
      crash = error;
    });
    worker.on('exit', (code) => {
      if (report?.kind === 'result' && crash === undefined) resolve(report.value);
      else if (report?.kind === 'error') reject(revive(report.error));
      else reject(crash ?? new TorchError(ENDED, `the thread ended with exit code ${code} before its work was done`));
    });
  });
}

function isReport(message: unknown): message is ThreadReport {
  if (typeof message !== 'object' || message === null || !('kind' in message)) return false;
  return message.kind === 'result' || message.kind === 'error';
}

function revive(error: Thrown): Error {
  const made = new TorchError((error.code ?? 'RANK_FAILED') as TorchErrorCode, error.message);
  if (error.stack !== undefined) made.stack = error.stack;
  return made;
}
