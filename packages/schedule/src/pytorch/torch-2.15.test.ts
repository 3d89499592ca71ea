/** @file Against what the passes of PyTorch 2.15.0 give: waits, deferred receives, activation slots. */
import { readFileSync } from 'node:fs';
import { describe, expect, test } from 'vitest';
import { buildSchedule } from '../generate/build-schedule.ts';
import { lower } from '../lower/lower.ts';
import { formatCsv, parseCsv } from '../model/csv.ts';
import type { Schedule } from '../model/schedule.ts';
import { findDeadlock } from '../validate/channels.ts';
import { type ActivationGranularity, analyzePipelineActivationLiveness } from './activation-liveness.ts';
import { getScheduleOps } from './visualizer.ts';

interface Case {
  readonly name: string;
  readonly ranks: number;
  readonly stagesPerRank: number;
  readonly microbatches: number;
  readonly maxActive: number;
  readonly lowered: readonly string[];
  readonly deferred: readonly string[];
  readonly liveness: readonly [number, ActivationGranularity, number, readonly (readonly number[])[]][];
}

const cases = JSON.parse(
  readFileSync(new URL('../../../../testdata/torch-2.15.json', import.meta.url), 'utf8'),
) as Case[];

/** Waits for reductions right behind them: PyTorch's pass may post a receive in between, which changes nothing. */
const tidied = (rows: readonly string[]): string[] =>
  rows.map((row) =>
    row.replaceAll(/ \d+WAIT_REDUCE_GRAD/g, '').replaceAll(/(\d+)REDUCE_GRAD/g, '$1REDUCE_GRAD $1WAIT_REDUCE_GRAD'),
  );
const lines = (csv: string): string[] =>
  csv
    .trimEnd()
    .split('\r\n')
    .map((line) => line.replaceAll(',', ' '));

describe.each(cases)('$name, $ranks x $stagesPerRank x $microbatches', (golden) => {
  const { name, ranks, stagesPerRank, microbatches, maxActive } = golden;
  const isSingle = name === 'GPipe' || name === '1F1B'; // as lowered by PyTorch: without its own REDUCE_GRAD
  const built = buildSchedule(name, {
    ranks,
    stagesPerRank,
    microbatches,
    ...(isSingle ? {} : { compat: 'torch-2.15' }),
  });
  const torch = (deferReceives: boolean): Schedule =>
    lower(built, {
      compat: 'torch-2.15',
      deferReceives,
      dataParallel: { level: 'parameters', maxActiveStages: maxActive },
    });

  test('lowered, with its waits in CSV; read back without them', () => {
    const csv = formatCsv(torch(false), { compat: 'torch-2.15' });
    expect(lines(csv)).toEqual(tidied(golden.lowered));
    expect(parseCsv(csv).toString()).toBe(torch(false).toString());
  });

  test('receives put off, still without deadlock', () => {
    expect(lines(formatCsv(torch(true), { compat: 'torch-2.15' }))).toEqual(tidied(golden.deferred));
    expect(findDeadlock(torch(true), 'buffered')).toBe(null);
  });

  test('lifetimes and slots of activations', () => {
    for (const [ppRank, granularity, numSlots, pairs] of golden.liveness) {
      const plan = analyzePipelineActivationLiveness(built, { ppRank, granularity });
      expect(plan.numSlots).toBe(numSlots);
      expect(
        pairs.map(([stage, m]) => [stage, m, plan.slotFor(stage!, m!), ...plan.getActivationLifetime(stage!, m!)]),
      ).toEqual(pairs);
    }
  });
});

test('getScheduleOps puts receives off', () => {
  const rows = getScheduleOps('Interleaved1F1B', 2, 4, { withComms: true, deferPpRecv: true });
  const golden = cases.find(({ name, ranks }) => name === 'Interleaved1F1B' && ranks === 2)!;
  const texts = rows.map((row) => row.map((item) => `${item!.stage}${item!.kind}${item!.microbatch ?? ''}`).join(' '));
  expect(texts).toEqual(golden.deferred.map((row) => row.replaceAll(/ \d+WAIT_\w+/g, '')));
});

test('what is not there is refused', () => {
  const schedule = buildSchedule('1F1B', { ranks: 2, microbatches: 2 });
  const refused =
    (options: object): (() => unknown) =>
    () =>
      analyzePipelineActivationLiveness(schedule, { ppRank: 0, ...options });
  expect(refused({ stageIndices: [] })).toThrow('must be a list of different stages');
  expect(refused({ stageIndices: [1] })).toThrow('rank 0 has no 1F0 with a B or W after it');
  expect(refused({ ppRank: 2 })).toThrow('ppRank is 2; the schedule has ranks 0 to 1');
  expect(refused({ granularity: 'stage' })).toThrow('granularity');
  expect(() => analyzePipelineActivationLiveness(schedule, { ppRank: 0 }).slotFor(1, 0)).toThrow('were not looked at');
});
