/** @file The knob for cores: it holds for libtorch's loops and for the libraries under it, per thread. */
import { readdirSync, readFileSync } from 'node:fs';
import { expect, test } from 'vitest';
import { callOp, ones, scope } from '../../index.ts';
import { getNumThreads, numThreadsFromEnvironment, setNumThreads, threadsPerRank } from './settings.ts';

/** Milliseconds of processor time that each thread of this process has used. */
function usage(): Map<string, number> {
  const times = new Map<string, number>();
  for (const task of readdirSync('/proc/self/task')) {
    try {
      times.set(task, Number(readFileSync(`/proc/self/task/${task}/schedstat`, 'utf8').split(' ')[0]) / 1e6);
    } catch {
      // the thread has ended
    }
  }
  return times;
}

/** The processor time that each thread uses while `body` runs. Time on the clock says nothing on a machine with other work. */
function timesOf(body: () => void): number[] {
  const before = usage();
  body();
  return [...usage()].map(([task, time]) => time - (before.get(task) ?? 0));
}

const repeat = (work: () => void, times: number): void => {
  for (let i = 0; i < times; i++) scope(work);
};

/** How often the work is done in a fifth of a second of processor time of one thread, or more; and that time. */
function amountOf(work: () => void): { times: number; alone: number } {
  scope(work);
  for (let times = 1; ; times *= 2) {
    const alone = Math.max(...timesOf(() => repeat(work, times)));
    if (alone >= 200) return { times, alone };
  }
}

/**
 * How many threads share in work that takes one thread `alone`: those that use a fifth of that. What a thread uses up while
 * it waits for the others does not count for or against anybody, and other threads of the process come and go.
 */
function busyThreads(work: () => void, { times, alone }: { times: number; alone: number }): number {
  scope(work);
  return timesOf(() => repeat(work, times)).filter((time) => time > 0.2 * alone).length;
}

const works: [string, () => void][] = [
  ['a matrix product', () => void ones([768, 768]).matmul(ones([768, 768]))],
  ['a loop over elements', () => void ones([2_000_000]).exp()],
  ['a convolution', () => void callOp('aten::conv2d', [ones([4, 32, 48, 48]), ones([32, 32, 3, 3])])],
];

test.each(works)('%s uses as many cores as it may', (_name, work) => {
  setNumThreads(1);
  expect(getNumThreads()).toBe(1);
  const amount = amountOf(work);
  expect(busyThreads(work, amount)).toBe(1);
  setNumThreads(2);
  expect(getNumThreads()).toBe(2);
  expect(busyThreads(work, amount)).toBe(2);
});

test('the variable and the share of a rank', () => {
  expect(numThreadsFromEnvironment({})).toBeUndefined();
  expect(numThreadsFromEnvironment({ PIPEWRIGHT_THREADS: '3' })).toBe(3);
  expect(() => numThreadsFromEnvironment({ PIPEWRIGHT_THREADS: 'many' })).toThrow(
    "PIPEWRIGHT_THREADS is 'many'; give a whole number, at least 1",
  );
  expect(threadsPerRank(1000)).toBe(numThreadsFromEnvironment() ?? 1);
  expect(() => setNumThreads(0)).toThrow('setNumThreads: 0 is not a number of threads');
});
