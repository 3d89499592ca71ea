/** @file Ranks as threads of this process. */
import { setEnvironmentData, type Worker } from 'node:worker_threads';
import { packThrown, type Thrown } from '@pipewright/torch/environment';
import { compiledUrl } from '../../base/module-url.ts';
import { steadyMs } from '../../base/steady-clock.ts';
import { STATUS_KEY } from '../../status/layout.ts';
import { marked, type RankNotice, unmarked } from '../replacement/messages.ts';
import { failureOf, silentFailure } from './rank-failure.ts';
import { LineCutter } from './rank-output.ts';
import type { RankEvents, StartedRanks, StartOptions } from './started-ranks.ts';
import type { ThreadOutput } from './thread-entry.ts';

const LOST = 'a rank was lost, and all ranks connect anew';

/** Starts the ranks. The engine is loaded in this process, because threads share it. */
export async function startThreads(options: StartOptions, events: RankEvents): Promise<StartedRanks> {
  const { distributed } = await import('@pipewright/torch');
  const { count, script, args, data, board, graceMs } = options;
  // A thread copies this when it is created; it is removed again so that other threads do not.
  setEnvironmentData(STATUS_KEY, board.shared);
  const threads = distributed.spawnThreads(
    count,
    compiledUrl('thread-entry', import.meta.url),
    { script, args, data },
    { env: options.env(0), threadsPerRank: options.threadsPerRank, graceMs, keepOthers: options.replaces },
  );
  setEnvironmentData(STATUS_KEY, undefined);
  const listen = (worker: Worker, rank: number): void =>
    listenTo(worker, rank, {
      events,
      wasTerminated: () => threads.terminated.has(rank),
    });
  threads.workers.forEach(listen);
  return {
    pids: [],
    stopped: () => new Set(),
    signal: (name) => {
      if (name === 'SIGSTOP' || name === 'SIGCONT') return;
      distributed.abortGroup(threads.name, `the ranks were ended: ${name}`);
    },
    kill: () => void threads.terminate('the ranks were ended'),
    killRank: (rank) => void threads.workers[rank]?.terminate(),
    restart: (rank) => {
      setEnvironmentData(STATUS_KEY, board.shared);
      listen(threads.restart(rank, options.env(rank)), rank);
      setEnvironmentData(STATUS_KEY, undefined);
    },
    tell: (rank, order) => threads.workers[rank]?.postMessage(marked(order)),
    interrupt: (generation) => {
      board.setGeneration(generation);
      distributed.abortGroup(threads.name, LOST);
    },
    meet: () => ({ group: threads.regroup(LOST) }),
    release: () => undefined,
  };
}

interface Listening {
  readonly events: RankEvents;
  /** Whether this process has ended the thread. */
  wasTerminated(): boolean;
}

/** Passes on what a rank's thread prints, reports and how it ends. */
function listenTo(worker: Worker, rank: number, { events, wasTerminated }: Listening): void {
  const outputs = {
    stdout: new LineCutter((line) => events.line(line, { rank, stream: 'stdout' })),
    stderr: new LineCutter((line) => events.line(line, { rank, stream: 'stderr' })),
  };
  let result: unknown;
  let hasReported = false;
  const fail = (error: Thrown): void => {
    if (!hasReported) events.failed(failureOf(rank, error, steadyMs()));
    hasReported = true;
  };
  worker.on('message', (message: ThreadMessage | null | undefined) => {
    const notice = unmarked<RankNotice>(message);
    if (notice !== undefined) events.notice(rank, notice);
    // Other messages are the script's own.
    if (message?.kind === 'output') outputs[message.stream].write(message.text);
    else if (message?.kind === 'error') fail(message.error);
    else if (message?.kind === 'result') {
      hasReported = true;
      result = message.value;
    }
  });
  worker.on('error', (error: unknown) => fail(packThrown(error)));
  worker.on('exit', (code) => {
    for (const output of Object.values(outputs)) output.end();
    if (!hasReported) events.failed(silentFailure(rank, { code, signal: null, ended: wasTerminated() }));
    events.ended(rank, result);
  });
}

type ThreadMessage =
  | ThreadOutput
  | { readonly kind: 'result'; readonly value: unknown }
  | { readonly kind: 'error'; readonly error: Thrown };
