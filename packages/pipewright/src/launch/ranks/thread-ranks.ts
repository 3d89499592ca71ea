/** @file Ranks as threads of this process. */
import { setEnvironmentData } from 'node:worker_threads';
import { packThrown, type Thrown } from '@pipewright/torch/environment';
import { steadyMs } from '../../base/steady-clock.ts';
import { STATUS_KEY } from '../../status/layout.ts';
import { compiledUrl } from './module-url.ts';
import { failureOf, silentFailure } from './rank-failure.ts';
import { LineCutter } from './rank-output.ts';
import type { RankEvents, StartedRanks, StartOptions } from './started-ranks.ts';
import type { ThreadOutput } from './thread-entry.ts';

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
    { env: options.env(0), threadsPerRank: options.threadsPerRank, graceMs },
  );
  setEnvironmentData(STATUS_KEY, undefined);
  const values: unknown[] = [];
  threads.workers.forEach((worker, rank) => {
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
  });
  return {
    pids: [],
    stopped: () => new Set(),
    signal: (name) => {
      if (name === 'SIGSTOP' || name === 'SIGCONT') return;
      distributed.abortGroup(threads.name, `the ranks were ended: ${name}`);
    },
    kill: () => void threads.terminate('the ranks were ended'),
    release: () => undefined,
  };
}

type ThreadMessage =
  | ThreadOutput
  | { readonly kind: 'result'; readonly value: unknown }
  | { readonly kind: 'error'; readonly error: Thrown };
