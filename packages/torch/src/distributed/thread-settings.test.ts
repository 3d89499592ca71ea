/** @file The knob for cores: it holds for libtorch's loops and for the libraries under it, per thread. */
import { readdirSync, readFileSync } from 'node:fs';
import { availableParallelism } from 'node:os';
import { expect, test } from 'vitest';
import { callOp, ones, scope } from '../index.ts';
import { getNumThreads, numThreadsFromEnvironment, setNumThreads, threadsPerRank } from './thread-settings.ts';

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

/** How many threads share in the work: those with a third of what the busiest has. Others of the process come and go. */
function busyThreads(work: () => void): number {
  scope(work);
  const before = usage();
  const until = performance.now() + 250;
  while (performance.now() < until) scope(work);
  const used = [...usage()].map(([task, time]) => time - (before.get(task) ?? 0));
  return used.filter((time) => time > 0.3 * Math.max(...used)).length;
}

const works: [string, () => void][] = [
  ['a matrix product', () => void ones([768, 768]).matmul(ones([768, 768]))],
  ['a loop over elements', () => void ones([2_000_000]).exp()],
  ['a convolution', () => void callOp('aten::conv2d', [ones([4, 32, 48, 48]), ones([32, 32, 3, 3])])],
];

test.each(works)('%s uses as many cores as it may', (_name, work) => {
  setNumThreads(1);
  expect(getNumThreads()).toBe(1);
  expect(busyThreads(work)).toBe(1);
  if (availableParallelism() < 2) return;
  setNumThreads(2);
  expect(getNumThreads()).toBe(2);
  expect(busyThreads(work)).toBe(2);
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
