import { describe, expect, test } from 'vitest';
import { scheduleDefinitions } from '../generate/registry.ts';
import { formatAction } from '../model/action.ts';
import type { ScheduleOrder } from '../model/schedule.ts';
import { addScheduleOpSpacing, getScheduleOps, visualizeSchedule } from './visualizer.ts';

const text = (rows: ScheduleOrder): string =>
  rows.map((row) => row.map((item) => formatAction(item) || '·').join(' ')).join('\n');

describe('getScheduleOps', () => {
  test('spaces ZBV with every action in its own rank’s row (gap 119)', () => {
    expect(text(getScheduleOps('ZBVZeroBubble', 2, 4, { addSpacing: true }))).toMatchInlineSnapshot(`
      "0F0 0F1 0F2 3F0 3I0 3W0 3F1 3I1 3W1 0F3 0I0 0W0 3F2 3I2 3W2 0I1 0W1 3F3 3I3 3W3 0I2 0W2 0I3 0W3 ·
      · 1F0 2F0 1F1 2F1 2I0 2W0 1F2 1I0 1W0 2F2 2I1 2W1 1F3 1I1 1W1 2F3 2I2 2W2 1I2 2I3 1I3 1W2 2W3 1W3"
    `);
  });

  test('gives rows as built and with communication', () => {
    expect(text(getScheduleOps('ScheduleLoopedBFS', 2, 1))).toBe('0F0 · 2F0 · · 2B0 · 0B0\n· 1F0 · 3F0 3B0 · 1B0');
    expect(text(getScheduleOps('LoopedBFS', 2, 1, { withComms: true }))).toContain('SEND_F');
  });

  test('spaces every schedule, also GPipe, 1F1B and a single rank (gaps 120 and 121)', () => {
    for (const { name } of scheduleDefinitions) {
      for (const ranks of [1, 3]) {
        const rows = getScheduleOps(name, ranks, 6, { addSpacing: true });
        const width = rows.map((row) =>
          row.reduce(
            (sum, item) => sum + (item === null ? 1 : item.kind === 'B' ? 2 : item.kind === 'OVERLAP_F_B' ? 3 : 1),
            0,
          ),
        );
        expect(new Set(width).size, name).toBe(1);
      }
    }
  });

  test('refuses both modes at once, and rows that are not compute', () => {
    expect(() =>
      getScheduleOps('GPipe', 2, 2, { addSpacing: true, withComms: true }),
    ).toThrowErrorMatchingInlineSnapshot(
      `[ScheduleError: getScheduleOps: addSpacing and withComms exclude each other; choose one]`,
    );
    expect(() => addScheduleOpSpacing({ order: [['0F0', '0SEND_F0']] })).toThrowErrorMatchingInlineSnapshot(
      `[ScheduleError: addScheduleOpSpacing: 'SEND_F' is no compute action; space the rows before lowering them]`,
    );
    expect(() => addScheduleOpSpacing({ order: [['0B0', '0F0']] })).toThrow(/rank 0 waits for ever at 0B0/);
    expect(() => getScheduleOps('GPipes', 2, 2)).toThrow(/did you mean 'GPipe'/);
  });
});

test('visualizeSchedule draws rows as they stand, communication included (gap 122)', () => {
  const rows = getScheduleOps('LoopedBFS', 2, 1, { withComms: true });
  const svg = visualizeSchedule(rows);
  for (const label of ['Forward', 'Full backward', 'Unshard', 'Send forward', 'Receive backward', '0SEND_F0'])
    expect(svg).toContain(label);
});
