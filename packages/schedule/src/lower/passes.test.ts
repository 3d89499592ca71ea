import { readFileSync } from 'node:fs';
import { describe, expect, test } from 'vitest';
import { parseAction } from '../model/action.ts';
import { ScheduleError } from '../model/errors.ts';
import { type PlacementStyle, rankToStages, stageToRank } from '../model/placement.ts';
import { type Cell, Schedule } from '../model/schedule.ts';
import { simulateSteps } from '../pytorch/dry-run.ts';
import { validate } from '../validate/validate.ts';
import { addReduceGrad, addUnshardReshard } from './local-actions.ts';
import { addSendRecv } from './torch-send-recv.ts';

type OrError<T> = T | { error: true };
interface Passes {
  readonly mapping: {
    style: PlacementStyle;
    ranks: number;
    stages: number;
    stageToRank: OrError<[number, number][]>;
    rankToStages: OrError<[number, number[]][]>;
    error?: true;
  }[];
  readonly validate: [string[], number, number, number, OrError<Record<string, number>>][];
  readonly unshard: [string, number, string[]][];
  readonly sendrecv: [string[], number[], OrError<string[][]>, OrError<string[][]>][];
}

const passes = JSON.parse(readFileSync(new URL('../../../../testdata/passes.json', import.meta.url), 'utf8')) as Passes;
const cells = (row: string): Cell[] =>
  row === '' ? [] : row.split(',').map((cell) => parseAction(cell, { lenient: true }));
const texts = (schedule: Schedule): string[][] =>
  schedule.rows.map((row) => Array.from(row, (word) => schedule.format(word)));
const isError = <T>(value: OrError<T>): value is { error: true } =>
  typeof value === 'object' && value !== null && 'error' in value;

describe('passes equal PyTorch', () => {
  test.each(passes.mapping)('placement $style, $ranks ranks, $stages stages', (golden) => {
    const { ranks, stages, style } = golden;
    if (golden.error || isError(golden.stageToRank)) {
      expect(() => stageToRank({ ranks, stages, style })).toThrow(ScheduleError);
      return;
    }
    expect(stageToRank({ ranks, stages, style }).map((rank, stage) => [stage, rank])).toEqual(golden.stageToRank);
    if (isError(golden.rankToStages)) return;
    const held = rankToStages({ ranks, stages, style }).flatMap((list, rank) =>
      list.length > 0 ? [[rank, list]] : [],
    );
    expect(held).toEqual([...golden.rankToStages].sort((a, b) => a[0] - b[0]));
  });

  test.each(passes.validate)(
    'validation of %j (%d ranks, %d stages, %d microbatches)',
    (...[rows, ranks, stages, microbatches, golden]) => {
      const schedule = Schedule.from({ order: rows.map(cells), ranks, stages, microbatches });
      const violations = validate(schedule);
      if (isError(golden)) {
        expect(violations.length).toBeGreaterThan(0);
        return;
      }
      expect(violations).toEqual([]);
      expect(Object.fromEntries(schedule.stageToRank.map((rank, stage) => [String(stage), rank]))).toEqual(golden);
    },
  );

  test.each(passes.unshard)('unshard %s within %d stages', (row, window, golden) => {
    const order = [cells(row)];
    const schedule = Schedule.from({ order });
    expect(texts(addUnshardReshard(schedule, window))).toEqual([golden]);
    expect(schedule.equals({ order })).toBe(true);
  });

  test.each(passes.sendrecv)('sends and receives of %j', (rows, placement, golden, simulated) => {
    const schedule = Schedule.from({ order: rows.map(cells), stageToRank: placement, stages: placement.length });
    if (isError(golden)) {
      expect(() => addSendRecv(schedule)).toThrow(ScheduleError);
      return;
    }
    const lowered = addSendRecv(schedule);
    expect(texts(lowered)).toEqual(golden);
    // What PyTorch cannot replay (composites) is replayed here.
    if (isError(simulated)) expect(simulateSteps(lowered).size).toBeGreaterThanOrEqual(lowered.size);
    else expect(texts(simulateSteps(lowered))).toEqual(simulated);
  });
});

describe('passes of ours', () => {
  test('unshard within a budget of bytes', () => {
    const schedule = Schedule.from({ order: [['0F0', '1F0', '2F0', '2B0', '1B0', '0B0']] });
    expect(addUnshardReshard(schedule, { bytes: 25, stageBytes: [10, 15, 10] }).toString()).toMatchInlineSnapshot(
      `"0UNSHARD 1UNSHARD 0F0 0RESHARD 2UNSHARD 1F0 2F0 2B0 2RESHARD 0UNSHARD 1B0 1RESHARD 0B0 0RESHARD"`,
    );
    expect(addUnshardReshard(schedule, { bytes: 0, stageBytes: 1 }).toString()).toBe(
      addUnshardReshard(schedule, 1).toString(),
    );
    expect(addUnshardReshard(schedule, { bytes: 30, stageBytes: 10 }).toString()).toBe(
      addUnshardReshard(schedule, 3).toString(),
    );
    expect(() => addUnshardReshard(schedule, 0)).toThrow(/unshardWindow must be an integer of at least 1/);
    expect(() => addUnshardReshard(schedule, { bytes: 1, stageBytes: [1] })).toThrow(/one per stage \(3\)/);
  });

  test('reduce-grad counts the parts of composites', () => {
    const schedule = Schedule.from({
      order: [['0F0', '1F0', '(0F1;1B0)OVERLAP_F_B', '(1F1;0B0)OVERLAP_F_B', '1I1', '1W1', '0B1']],
    });
    expect(addReduceGrad(schedule).toString()).toMatchInlineSnapshot(
      `"0F0 1F0 (0F1;1B0)OVERLAP_F_B (1F1;0B0)OVERLAP_F_B 1I1 1W1 1REDUCE_GRAD 0B1 0REDUCE_GRAD"`,
    );
    expect(addReduceGrad(schedule, 'end').toString()).toMatchInlineSnapshot(
      `"0F0 1F0 (0F1;1B0)OVERLAP_F_B (1F1;0B0)OVERLAP_F_B 1I1 1W1 0B1 0REDUCE_GRAD 1REDUCE_GRAD"`,
    );
  });

  test('sends and receives: an order that cannot work is refused with the ranks that wait', () => {
    const stuck = {
      order: [
        ['0B0', '0F0'],
        ['1F0', '1B0'],
      ],
    };
    expect(() => addSendRecv(stuck)).toThrowErrorMatchingInlineSnapshot(
      `[ScheduleError: addSendRecv: no rank can go on: rank 0 slot 0 (0B0), rank 1 slot 0 (1F0) wait for actions that come later; validate() shows the cycle]`,
    );
    expect(() => addSendRecv({ order: [['0F0'], []], stages: 1 })).toThrow(/rank 1 has no actions/);
  });
});
