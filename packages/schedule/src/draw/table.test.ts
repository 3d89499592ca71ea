import { readFileSync } from 'node:fs';
import { describe, expect, test } from 'vitest';
import { parseAction } from '../model/action.ts';
import { ScheduleError } from '../model/errors.ts';
import { Schedule } from '../model/schedule.ts';
import { formatPipelineOrder, renderTable } from './table.ts';

const bfs = Schedule.from({
  order: [
    ['0F0', '2F0', null, null, '2B0', '0B0'],
    [null, '1F0', '3F0', '3B0', '1B0'],
  ],
});

describe('renderTable', () => {
  test('is a grid of steps and ranks with a marked step', () => {
    expect(renderTable(bfs, { mark: 3 }).replace(/ $/gm, '·')).toMatchInlineSnapshot(`
      "        Rank 0 Rank 1
      Step 0: 0F0         ·
      Step 1: 2F0    1F0  ·
      Step 2:        3F0  ·
      Step 3:        3B0    <-- ERROR HERE
      Step 4: 2B0    1B0  ·
      Step 5: 0B0         ·
      "
    `);
  });

  test('names the rank and the reason of a mark', () => {
    const text = renderTable(bfs, { mark: { slot: 3, rank: 1, note: 'never ready' } });
    expect(text).toContain('Step 3:        3B0    <-- rank 1: never ready\n');
  });

  test('equals the reference on every golden table', () => {
    const file = new URL('../../../../testdata/passes.json', import.meta.url);
    const { format } = JSON.parse(readFileSync(file, 'utf8')) as { format: [string[], number | null, string][] };
    expect(format.length).toBeGreaterThan(0);
    for (const [rows, marked, text] of format) {
      const order = rows.map((row) => row.split(',').map((cell) => parseAction(cell)));
      const mark = marked === null ? {} : { mark: marked };
      expect(renderTable({ order }, { compat: 'torch', ...mark })).toBe(text);
      expect(renderTable({ order }, mark)).toBe(text);
      expect(formatPipelineOrder(order, marked ?? undefined)).toBe(text);
    }
  });

  test('pads step numbers', () => {
    const order = [Array.from({ length: 11 }, (_, m) => `0F${m}`)];
    expect(renderTable({ order }).split('\n').slice(0, 3)).toEqual([
      '         Rank 0 ',
      'Step 00: 0F0    ',
      'Step 01: 0F1    ',
    ]);
  });

  test('draws fewer steps than ranks, and widens columns for long labels (gaps 36 and 37)', () => {
    const order = Array.from({ length: 11 }, (_, r) => [`${r}F0`]);
    expect(renderTable({ order })).toMatchInlineSnapshot(`
      "        Rank 0 Rank 1 Rank 2 Rank 3 Rank 4 Rank 5 Rank 6 Rank 7 Rank 8 Rank 9 Rank 10
      Step 0: 0F0    1F0    2F0    3F0    4F0    5F0    6F0    7F0    8F0    9F0    10F0   
      "
    `);
    expect(renderTable({ order }, { compat: 'torch' }).split('\n')[1]).toMatch(/ 10F0 {2}$/);
  });

  test('draws nothing at all', () => {
    expect(renderTable({ order: [] })).toBe('        \n');
    expect(renderTable({ order: [[], []] })).toBe('        Rank 0 Rank 1\n');
  });

  test('shows chosen ranks under their numbers, and a window of steps', () => {
    expect(renderTable(bfs, { ranks: [1], from: 1, to: 3 })).toBe('        Rank 1\nStep 1: 1F0   \nStep 2: 3F0   \n');
    expect(renderTable(bfs, { ranks: [1], compat: 'torch' })).toContain('Rank 0\n');
  });

  test('refuses what it does not know', () => {
    expect(() => renderTable(bfs, { marked: 3 } as object)).toThrowErrorMatchingInlineSnapshot(
      `[ScheduleError: renderTable: unknown option 'marked'; did you mean 'mark'?]`,
    );
    expect(() => renderTable(bfs, { ranks: [2] })).toThrowErrorMatchingInlineSnapshot(
      `[ScheduleError: renderTable: ranks names rank 2; this schedule has ranks 0 to 1]`,
    );
    expect(() => renderTable(bfs, { compat: 'torhc' as 'torch' })).toThrow(ScheduleError);
  });
});
