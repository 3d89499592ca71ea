/** @file Typed amounts: units are taken, and what is wrong is said. */
import { describe, expect, test } from 'vitest';
import { amountsProblem, countProblem, readAmounts, wholeProblem } from './amounts.ts';

describe('amounts', () => {
  test.each([
    ['20', [20]],
    ['20 GB', [20]],
    ['20gb, 500 MB', [20, 0.5]],
    ['1 1.5 2', [1, 1.5, 2]],
    ['1e1 GB 2', [10, 2]],
  ])('%s', (text, values) => expect(readAmounts(text, 'GB')).toEqual(values));

  test('times have units of time', () => {
    expect(readAmounts('0.5 ms, 20 µs, 1 s', 'ms')).toEqual([0.5, 0.02, 1000]);
    expect(readAmounts('2 GB', 'ms')).toBeNull();
  });

  test.each(['abc', '-1', '1,,2', '5 apples', '1;2', ''])('%s is refused with the reason', (text) => {
    expect(readAmounts(text, 'GB')).toBeNull();
    expect(amountsProblem(text, 'GB')).toBe('numbers of at least 0, such as 2 or 1.5 GB');
  });

  test('a wrong number of values is said, with what becomes of it', () => {
    expect(countProblem(1, 8, 'stage')).toBeNull();
    expect(countProblem(8, 8, 'stage')).toBeNull();
    expect(countProblem(3, 8, 'stage')).toBe('3 values for 8 stages: the last is used for the rest');
    expect(countProblem(10, 8, 'rank')).toBe('10 values for 8 ranks: the last 2 ignored');
  });

  test('whole numbers within bounds', () => {
    expect(wholeProblem('8', 1024)).toBeNull();
    for (const text of ['', '0', '1.5', 'x', '1025', '-3'])
      expect(wholeProblem(text, 1024), text).toBe('a whole number from 1 to 1024');
  });
});
