import { describe, expect, test } from 'vitest';
import { lower } from '../lower/lower.ts';
import { buildSchedule } from './build-schedule.ts';
import { scheduleDefinitions } from './registry.ts';

/** Words a schedule holds before anybody asks for its slots. */
const wordsOf = (name: string, ranks: number, microbatches: number): number =>
  buildSchedule(name, { ranks, microbatches }).denseRows.reduce((sum, row) => sum + row.buffer.byteLength / 4, 0);

describe('what a schedule holds is in proportion to its actions', () => {
  for (const { name } of scheduleDefinitions) {
    if (name === 'AdaptiveV') continue; // a search
    test(`${name}: twice the ranks, twice the words`, () => {
      const small = wordsOf(name, 128, 4);
      expect(wordsOf(name, 256, 4)).toBeLessThanOrEqual(2.2 * small);
    });
  }

  for (const name of ['VHalf', 'VMin']) {
    // A grid of all slots would have 16,384 rows of about 98,000 slots.
    test(`${name}: 16,384 ranks are built from their cells alone`, () => {
      const schedule = buildSchedule(name, { ranks: 16_384, microbatches: 2 });
      expect(schedule.denseRows.every((row) => row.length === 12)).toBe(true);
    });
  }

  test('8,000 ranks are built and lowered without a row of bubbles', () => {
    const schedule = buildSchedule('1F1B', { ranks: 8000, microbatches: 4 });
    expect(schedule.denseRows.every((row) => row.length === 8)).toBe(true);
    expect(lower(schedule, { reduceGrad: 'none', unshardWindow: false }).rows[4000]!.length).toBe(24);
  });
});

test('rows with bubbles are made when they are asked for, once', () => {
  const schedule = buildSchedule('1F1B', { ranks: 2, microbatches: 3 });
  expect(schedule.denseRows[0]!.length).toBe(6);
  expect(schedule.rows[0]!.length).toBe(8);
  expect(schedule.rows).toBe(schedule.rows);
  const renamed = schedule.with({ name: 'mine' });
  expect(renamed.toString()).toBe(schedule.toString());
  expect(renamed.name).toBe('mine');
});
