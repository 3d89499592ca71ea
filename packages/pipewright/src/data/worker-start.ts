/** @file The start of a worker thread of a loader: it imports the rest, so that a failed import is reported too. */
import { workerData } from 'node:worker_threads';
import type { WorkerAnswer, WorkerStart } from './worker.ts';

const { port, signal } = workerData as WorkerStart;
try {
  await import(`./worker${import.meta.url.endsWith('.ts') ? '.ts' : '.js'}`);
} catch (thrown) {
  const { message, stack } = thrown instanceof Error ? thrown : new Error(String(thrown));
  const error = {
    message: `DataLoader: a worker could not start: ${message}`,
    code: 'WORKER_LOST',
    details: {},
    stack,
  };
  port.postMessage({ kind: 'failed', error } satisfies WorkerAnswer);
  Atomics.add(signal, 0, 1);
  Atomics.notify(signal, 0);
}
