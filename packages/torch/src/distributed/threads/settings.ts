/**
 * @file One knob for the cores that operators use. Each JavaScript thread has its own count, so that ranks in threads
 * share the cores instead of fighting for them.
 */

import { availableParallelism } from 'node:os';
import { native } from '../../addon/addon.ts';
import { checkObject, show } from '../../base/checks.ts';
import { TorchError } from '../../base/errors.ts';
import { checkWhole } from '../../base/options.ts';

/**
 * How many cores the operators called from this thread may use, in libtorch's own loops and in the libraries under it.
 * Before the first call it is PIPEWRIGHT_THREADS, or what libtorch chooses: all cores.
 *
 * @example setNumThreads(1) // in a rank that shares the machine with others
 */
export function setNumThreads(count: number): void {
  if (!Number.isInteger(count) || count < 1 || count > 4096) {
    throw new TorchError(
      'BAD_ARGUMENT',
      `setNumThreads: ${show(count)} is not a number of threads; give a whole number, at least 1`,
    );
  }
  native.setNumThreads(count);
}

/** How many cores the operators called from this thread may use. */
export function getNumThreads(): number {
  return native.getNumThreads();
}

/** What PIPEWRIGHT_THREADS asks for, if it is set. */
export function numThreadsFromEnvironment(env: NodeJS.ProcessEnv = process.env): number | undefined {
  checkObject('numThreadsFromEnvironment', 'the environment', env);
  const text = env['PIPEWRIGHT_THREADS'];
  if (text === undefined || text === '') return undefined;
  const count = Number(text);
  if (Number.isInteger(count) && count >= 1) return count;
  throw new TorchError('BAD_ARGUMENT', `PIPEWRIGHT_THREADS is '${text}'; give a whole number, at least 1`);
}

/** The fair share of one of `ranks` ranks on this machine: PIPEWRIGHT_THREADS, or the cores divided by the ranks. */
export function threadsPerRank(ranks: number): number {
  checkWhole('threadsPerRank: the number of ranks', ranks, 1);
  return numThreadsFromEnvironment() ?? Math.max(1, Math.floor(availableParallelism() / ranks));
}

const asked = numThreadsFromEnvironment();
if (asked !== undefined) setNumThreads(asked);
