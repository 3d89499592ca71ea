/** @file A model cut in another way costs as much as before, part by part. */
import { fc, test } from '@fast-check/vitest';
import { expect } from 'vitest';
import { forStages, recut } from './depth.ts';
import { defaults } from './settings.ts';

const sum = (values: readonly number[]): number => values.reduce((a, b) => a + b, 0);

test('two stages made of one share its time, its memory and its messages', () => {
  const costs = { ...defaults.costs, F: [2, 4], activation: [3, 1], comm: [0.5, 0.1], retained: [0.2, 0.8] };
  const halves = recut(costs, 2, 4);
  expect(halves.F).toEqual([1, 1, 2, 2]);
  expect(halves.activation).toEqual([1.5, 1.5, 0.5, 0.5]);
  expect(halves.comm).toEqual([0.5, 0.5, 0.1, 0.1]);
  expect(halves.retained).toEqual([0.2, 0.2, 0.8, 0.8]);
  expect(recut(halves, 4, 2)).toEqual({ ...recut(costs, 2, 2) });
});

test('a single number counts for every stage', () => {
  expect(forStages([3], 3)).toEqual([3, 3, 3]);
});

test.prop([
  fc.array(fc.double({ min: 0, max: 100, noNaN: true }), { minLength: 1, maxLength: 9 }),
  fc.integer({ min: 1, max: 24 }),
])('no cut loses work or adds any', (F, to) => {
  const cut = recut({ ...defaults.costs, F }, F.length, to);
  expect(cut.F).toHaveLength(to);
  expect(sum(cut.F)).toBeCloseTo(sum(F), 6);
});
