import { expect, test } from 'vitest';
import { percent, plural, quantity, ticks } from './quantity.ts';

test('numbers as people read them', () => {
  const values = [0, 4, 28.5, 33.333333, 0.0625, 1234.5, 123456, 1e12, 0.00001, Number.POSITIVE_INFINITY];
  expect(values.map(quantity).join(' ')).toBe('0 4 28.5 33.33 0.0625 1235 123456 1.00e+12 0.0000100 Infinity');
  expect([0, 0.2727, 1, -1e-17].map(percent).join(' ')).toBe('0.0% 27.3% 100.0% 0.0%');
  expect([plural(1, 'rank'), plural(2, 'rank'), plural(8, 'microbatch', 'microbatches')].join()).toBe(
    '1 rank,2 ranks,8 microbatches',
  );
});

test('ticks are round, start at 0 and stay inside', () => {
  expect(ticks(33, 4)).toEqual([0, 10, 20, 30]);
  expect(ticks(1, 4)).toEqual([0, 0.2, 0.4, 0.6, 0.8, 1]);
  expect(ticks(0, 4)).toEqual([0]);
  for (const end of [0.003, 7, 99, 12345])
    for (const mark of ticks(end, 10)) expect(mark).toBeLessThanOrEqual(end * 1.000001);
});
