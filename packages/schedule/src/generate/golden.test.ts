import { readFileSync } from 'node:fs';
import { gunzipSync } from 'node:zlib';
import { describe, expect, test } from 'vitest';
import { lower } from '../lower/lower.ts';
import { mergeBackward } from '../lower/merge-backward.ts';
import { formatCsv, parseCsv } from '../model/csv.ts';
import { ScheduleError } from '../model/errors.ts';
import type { Schedule } from '../model/schedule.ts';
import { simulateSteps } from '../pytorch/dry-run.ts';
import { validate } from '../validate/validate.ts';
import { buildSchedule } from './build-schedule.ts';

type Rows = Record<string, string[]>;
interface Golden {
  readonly schedule: string;
  readonly ranks: number;
  readonly stagesPerRank: number;
  readonly microbatches: number;
  readonly error?: true;
  readonly order?: Rows;
  readonly merged?: Rows;
  readonly lowered?: Rows;
  readonly stageToRank?: number[];
  readonly simulatedSteps?: Record<string, number>;
  readonly simulated?: Rows;
}

const file = new URL('../../../../testdata/schedules.jsonl.gz', import.meta.url);
const records = gunzipSync(readFileSync(file))
  .toString('utf8')
  .trim()
  .split('\n')
  .map((line) => JSON.parse(line) as Golden);
const names = [...new Set(records.map((record) => record.schedule))];

/** One line per rank, so that a mismatch is one string to look at. */
const text = (schedule: Schedule): string =>
  schedule.rows.map((row) => Array.from(row, (word) => schedule.format(word)).join(',')).join('\n');
const expected = (rows: Rows): string =>
  Object.values(rows)
    .map((row) => row.join(','))
    .join('\n');

test('all configurations are there', () => {
  expect(records).toHaveLength(896);
});

describe.each(names)('%s equals PyTorch', (name) => {
  const own = records.filter((record) => record.schedule === name);

  test('order, merged, placement; the same refused', () => {
    for (const golden of own) {
      const { ranks, stagesPerRank, microbatches } = golden;
      const build = (): Schedule => buildSchedule(name, { ranks, stagesPerRank, microbatches, compat: 'torch' });
      if (golden.error) {
        expect(build, JSON.stringify(golden)).toThrow(ScheduleError);
        continue;
      }
      const schedule = build();
      expect(text(schedule)).toBe(expected(golden.order!));
      if (golden.merged) expect(text(mergeBackward(schedule))).toBe(expected(golden.merged));
      if (golden.stageToRank) expect(schedule.stageToRank).toEqual(golden.stageToRank);
      expect(parseCsv(formatCsv(schedule)).toString()).toBe(schedule.toString());
    }
  });

  test('lowered, simulated; both channel models free of deadlock', () => {
    for (const golden of own.filter((record) => record.lowered)) {
      const { ranks, stagesPerRank, microbatches } = golden;
      const lowered = lower(buildSchedule(name, { ranks, stagesPerRank, microbatches, compat: 'torch' }), {
        compat: 'torch',
      });
      expect(text(lowered)).toBe(expected(golden.lowered!));
      expect(validate(lowered)).toEqual([]);
      const steps = simulateSteps(lowered);
      if (golden.simulatedSteps)
        expect(steps.rows.map((row) => row.length)).toEqual(Object.values(golden.simulatedSteps));
      if (golden.simulated) expect(text(steps)).toBe(expected(golden.simulated));
    }
  });
});
