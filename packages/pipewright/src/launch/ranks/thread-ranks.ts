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

/** Starts the ranks; the engine is loaded here, because threads share it. */
export async function startThreads(options: StartOptions, events: RankEvents): Promise<StartedRanks> {
  const { distributed } = await import('@pipewright/torch');
  const { count, script, args, data, board, graceMs } = options;
  // Threads copy these data when they are made; afterwards nobody else shall.
  setEnvironmentData(STATUS_KEY, board.shared);
  const threads = distributed.spawnThreads(
    count,
    compiledUrl('thread-entry', import.meta.url),
    { script, args, data },
    { env: options.env(0), threadsPerRank: options.threadsPerRank, graceMs, keepOthers: options.replaces },
  );
  setEnvironmentData(STATUS_KEY, undefined);
  const values: unknown[] = [];
  const listen = (worker: Worker, rank: number): void => {
    const outputs = {
      stdout: new LineCutter((line) => events.line(line, { rank, stream: 'stdout' })),
      stderr: new LineCutter((line) => events.line(line, { rank, stream: 'stderr' })),
    };
    let told = false;
    const fail = (error: Thrown): void => {
      if (!told) events.failed(failureOf(rank, error, steadyMs()));
      told = true;
    };
    worker.on('message', (message: ThreadMessage | null | undefined) => {
      const notice = unmarked<RankNotice>(message);
      if (notice !== undefined) events.notice(rank, notice);
      // The script may send messages of its own, which are not for us.
      if (message?.kind !== 'output' && message?.kind !== 'error' && message?.kind !== 'result') return;
      if (message.kind === 'output') outputs[message.stream].write(message.text);
      else if (message.kind === 'error') fail(message.error);
      else {
        told = true;
        values[rank] = message.value;
      }
    });
    worker.on('error', (error: unknown) => fail(packThrown(error)));
    worker.on('exit', (code) => {
      for (const output of Object.values(outputs)) output.end();
      if (!told) events.failed(silentFailure(rank, { code, signal: null, ended: threads.terminated.has(rank) }));
      events.ended(rank, values[rank]);
    });
  };
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
      values[rank] = undefined;
      setEnvironmentData(STATUS_KEY, board.shared);
      listen(threads.restart(rank), rank);
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

type ThreadMessage =
  | ThreadOutput
  | { readonly kind: 'result'; readonly value: unknown }
  | { readonly kind: 'error'; readonly error: Thrown };
