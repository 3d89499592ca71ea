/** @file Where the work of a rank's thread is counted, by the thread's own clock: independent of the speed of the machine. */
import { threadTime } from '@pipewright/torch/internal';
import { expect, test } from 'vitest';
import { BusyTimes } from './busy-times.ts';
import { COLUMNS, Column } from './parts.ts';

/** Works for so many milliseconds of a processor. */
function work(ms: number): void {
  const end = threadTime() + ms;
  while (threadTime() < end);
}

function open(actions: number): { times: BusyTimes; data: Float64Array; busy: (index: number) => number } {
  const times = BusyTimes.of({ group: null, isParallel: true })!;
  const data = new Float64Array(actions * COLUMNS).fill(-1);
  times.beginStep(data);
  return { times, data, busy: (index) => data[index * COLUMNS + Column.Busy]! };
}

test('work after the last action belongs to it, work between two to the second', () => {
  const before = threadTime();
  const { times, busy } = open(2);
  times.begin(0);
  work(1);
  times.end(0);
  work(2);
  times.begin(1);
  times.end(1);
  work(4);
  times.endStep();
  const all = threadTime() - before;
  expect(busy(0)).toBeGreaterThanOrEqual(1);
  expect(busy(1)).toBeGreaterThanOrEqual(6);
  expect(busy(0) + busy(1)).toBeLessThanOrEqual(all);
});

test('what a collective has worked after the row is counted once', () => {
  const before = threadTime();
  const { times, busy } = open(2);
  times.begin(0);
  times.end(0);
  times.begin(1);
  times.end(1);
  const begun = threadTime();
  work(8);
  times.prolong(0, threadTime() - begun);
  work(1);
  times.endStep();
  const all = threadTime() - before;
  expect(busy(0)).toBeGreaterThanOrEqual(8);
  expect(busy(1)).toBeGreaterThanOrEqual(1);
  expect(busy(0) + busy(1)).toBeLessThanOrEqual(all);
});

test('a step without actions has nothing to count', () => {
  const { times, data } = open(1);
  times.endStep();
  expect([...data]).toEqual(new Array<number>(COLUMNS).fill(-1));
});
