/** @file The numbers of a rank's progress: what is of another step does not count, and nonsense is refused. */
import { describe, expect, test } from 'vitest';
import { parseLiveLine } from './live-line.ts';
import { checkProgress, progressFileOf, progressRankOf, readProgress } from './live-progress.ts';

const head = [1, 5, 1, 900, 100, 90, 0, 12]; // step 5 began at 100; the one before ended at 90 and took 12

describe('progress of a rank', () => {
  test('entries that have begun in this step; what is left of the step before is none', () => {
    const numbers = Float64Array.from([...head, ...[100, 101, 104], ...[104, 80, 85], ...[70, 71, 72], ...[60, 0, 61]]);
    expect(readProgress(3, numbers)).toEqual({
      ...{ rank: 3, step: 5, training: true, origin: 900, begin: 100, end: -1, before: 12, failed: -1, from: 0 },
      ...{ start: [100, 104], ready: [101, -1], stop: [104, -1] },
    });
    expect(readProgress(3, numbers, 1)).toMatchObject({ from: 1, start: [104], ready: [-1], stop: [-1] });
    expect(readProgress(3, numbers.subarray(0, 8), 0)).toMatchObject({ begin: 100, start: [] });
  });

  test('nothing before the first step, or from another version', () => {
    expect(readProgress(0, new Float64Array(20))).toBeNull();
    expect(readProgress(0, Float64Array.from([2, ...head.slice(1)]))).toBeNull();
    expect(readProgress(0, new Float64Array(0))).toBeNull();
  });

  test('a line keeps what is well formed', () => {
    const good = readProgress(3, Float64Array.from([...head, 100, 101, 104]))!;
    expect(checkProgress(JSON.parse(JSON.stringify(good)))).toEqual(good);
    for (const bad of [
      ...[null, 7, 'x', {}, { ...good, rank: -1 }, { ...good, from: 0.5 }, { ...good, begin: null }],
      ...[
        { ...good, start: [1, 2] },
        { ...good, stop: ['<b>'] },
        { ...good, ready: null },
      ],
    ])
      expect(checkProgress(bad), JSON.stringify(bad)).toBeNull();
    const line = { kind: 'status', places: [], ended: null, time: 1, clock: 2, progress: [good, 'nonsense'] };
    expect(parseLiveLine(JSON.stringify(line))).toEqual({ ...line, progress: [good] });
  });

  test('names of files', () => {
    expect(progressRankOf(progressFileOf(12))).toBe(12);
    for (const name of ['rank-1.jsonl', '../rank-1.progress', 'rank-x.progress', 'rank-1.progress.new'])
      expect(progressRankOf(name)).toBeNull();
    expect(() => progressFileOf(-1)).toThrow('rank is -1');
  });
});
