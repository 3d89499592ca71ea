/** @file What a thread of `spawnThreads` runs: settings, the user's module, its `main`, and a report at the end. */
import { parentPort, workerData } from 'node:worker_threads';
import { native } from '../../addon/addon.ts';
import { TorchError } from '../../base/errors.ts';
import { packThrown } from '../../base/thrown.ts';
import { destroyProcessGroup } from '../init.ts';
import { setNumThreads } from './settings.ts';
import type { ThreadReport, ThreadStart } from './spawn.ts';

const { module, data, threads } = workerData as ThreadStart;

function report(message: ThreadReport): void {
  parentPort?.postMessage(message);
}

/** Not everything can be copied to another thread. */
function reportResult(value: unknown): void {
  try {
    report({ kind: 'result', value });
  } catch (cause) {
    throw new TorchError(
      'BAD_ARGUMENT',
      `main returned what cannot be sent: ${(cause as Error).message}; return numbers, texts, arrays and plain objects`,
      { cause },
    );
  }
}

async function run(): Promise<unknown> {
  setNumThreads(threads);
  native.ownDefaultGenerator(); // as in a process: seeding and drawing here has no effect on the other ranks
  const loaded = (await import(module)) as { main?: unknown };
  const value: unknown = typeof loaded.main === 'function' ? await loaded.main(data) : undefined;
  destroyProcessGroup();
  return value;
}

try {
  reportResult(await run());
} catch (thrown) {
  report({ kind: 'error', error: packThrown(thrown) });
  // Whatever the module left running would keep a failed rank alive.
  setImmediate(() => process.exit(1));
}
