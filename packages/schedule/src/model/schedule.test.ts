import fc from 'fast-check';
import { describe, expect, test } from 'vitest';
import { buildSchedule } from '../generate/build-schedule.ts';
import { action, formatAction } from './action.ts';
import { ScheduleError } from './errors.ts';
import { Code, Layout, wordCode } from './packed.ts';
import { Schedule } from './schedule.ts';
import { ScheduleBuilder } from './schedule-builder.ts';

const small = Schedule.from({
  order: [
    ['0F0', null, '(0F1;3B0)OVERLAP_F_B', action('B', 0, 0)],
    ['1F0', '2F0', '1UNSHARD'],
  ],
});

describe('Schedule', () => {
  test('reads its numbers off the order', () => {
    expect(small).toMatchObject({
      name: 'custom',
      ranks: 2,
      stages: 4,
      microbatches: 2,
      stageToRank: [0, 1, 1, 0],
      edges: null,
      size: 7,
    });
    expect(small.toString()).toMatchInlineSnapshot(`
      "0F0 . (0F1;3B0)OVERLAP_F_B 0B0
      1F0 2F0 1UNSHARD"
    `);
  });

  test('the stages of a rank', () => {
    expect([small.stagesOf(0), small.stagesOf(1)]).toEqual([
      [0, 3],
      [1, 2],
    ]);
    expect(small.stagesPerRank).toBe(2);
    expect(Schedule.from({ order: [['0F0', '1F0'], ['2F0']] }).stagesPerRank).toBe(1.5);
    expect(Schedule.from({ order: [] }).stagesPerRank).toBe(0);
    expect(() => small.stagesOf(2)).toThrow(
      'Schedule.stagesOf: rank is 2, but the schedule is for 2 ranks; ranks count from 0',
    );
    expect(() => small.stagesOf(-1)).toThrow('Schedule.stagesOf: rank must be an integer of at least 0, got -1');
  });

  test('order is a frozen view of actions, made once', () => {
    expect(small.order[0]![0]).toEqual({ kind: 'F', stage: 0, microbatch: 0, parts: null });
    expect(small.order[0]![1]).toBeNull();
    expect(small.order[0]![2]).toEqual({
      kind: 'OVERLAP_F_B',
      stage: -1,
      microbatch: null,
      parts: [action('F', 0, 1), action('B', 3, 0)],
    });
    expect(small.order.map((row) => row.map(formatAction).join(' '))).toEqual([
      '0F0  (0F1;3B0)OVERLAP_F_B 0B0',
      '1F0 2F0 1UNSHARD',
    ]);
    expect(small.order[1]).toBe(small.order[1]);
    expect(Object.isFrozen(small)).toBe(true);
    expect(Object.isFrozen(small.order)).toBe(true);
    expect(Object.isFrozen(small.order[0])).toBe(true);
    expect(small.at(0, 9)).toBeNull();
  });

  test('JSON in and out', () => {
    const text = JSON.stringify(small);
    expect(text).toMatchInlineSnapshot(
      `"{"format":"pipewright-schedule","version":1,"name":"custom","ranks":2,"stages":4,"microbatches":2,"stageToRank":[0,1,1,0],"order":[["0F0",null,"(0F1;3B0)OVERLAP_F_B","0B0"],["1F0","2F0","1UNSHARD"]]}"`,
    );
    expect(Schedule.fromJSON(text).equals(small)).toBe(true);
    expect(Schedule.fromJSON(JSON.parse(text)).toString()).toBe(small.toString());
    const skip = Schedule.from({
      order: [['0F0', '1F0', '2F0']],
      edges: [
        [0, 1],
        [1, 2],
        [0, 2],
      ],
    });
    expect(Schedule.fromJSON(JSON.stringify(skip)).edges).toEqual([
      [0, 1],
      [1, 2],
      [0, 2],
    ]);
  });

  test('equals and diff', () => {
    const other = Schedule.from({
      order: [
        ['0F0', '0F1', '(0F1;3B1)OVERLAP_F_B'],
        ['1F0', '2F0', '1UNSHARD', '1F1'],
      ],
    });
    expect(small.equals(small)).toBe(true);
    expect(small.equals(Schedule.fromJSON(JSON.stringify(small)).with({ name: 'renamed' }))).toBe(true);
    expect(small.equals(other)).toBe(false);
    expect(
      small.diff(other).map((d) => `${d.what} ${d.rank}/${d.slot}: ${d.left} != ${d.right}`),
    ).toMatchInlineSnapshot(`
      [
        "cell 0/1:  != 0F1",
        "cell 0/2: (0F1;3B0)OVERLAP_F_B != (0F1;3B1)OVERLAP_F_B",
        "cell 0/3: 0B0 != null",
        "cell 1/3: null != 1F1",
      ]
    `);
    expect(small.diff(other, 2)).toHaveLength(2);
    expect(small.diff(small.with({ microbatches: 3 }))).toEqual([
      { what: 'microbatches', rank: null, slot: null, left: '2', right: '3' },
    ]);
  });

  test('refuses what is no schedule, with the way out', () => {
    const refused: [unknown, string][] = [
      [null, 'BAD_SCHEDULE'],
      [{ order: 'x' }, 'BAD_SCHEDULE'],
      [{ order: [['0F0'], 'x'] }, 'BAD_SCHEDULE'],
      [{ order: [['0F0']], ranks: 0 }, 'BAD_SCHEDULE'],
      [{ order: [['0X0']] }, 'BAD_ACTION'],
      [{ order: [[{ kind: 'G', stage: 0, microbatch: 0 }]] }, 'BAD_ACTION'],
      [{ order: [[{ kind: 'F', stage: -2, microbatch: 0 }]] }, 'BAD_ACTION'],
      [{ order: [[{ kind: 'F', stage: 0.5, microbatch: 0 }]] }, 'BAD_ACTION'],
      [{ order: [['0F0']], stages: -1 }, 'BAD_OPTION'],
      [{ order: [['0F0']], stageToRank: { 0: 0 } }, 'BAD_SCHEDULE'],
      [{ order: [['0F0', '1F0']], edges: [[1, 0]] }, 'BAD_OPTION'],
      [{ order: [['0F0']], microbatchs: 1 }, 'UNKNOWN_OPTION'],
      [{ order: [['200000F0', '0F200000']] }, 'PACKING_RANGE'],
    ];
    for (const [data, code] of refused) {
      expect(() => Schedule.from(data as never)).toThrow(ScheduleError);
      try {
        Schedule.from(data as never);
      } catch (error) {
        expect((error as ScheduleError).code).toBe(code);
      }
    }
    expect(() => Schedule.from({ order: [['0F0']], microbatchs: 1 } as never)).toThrowErrorMatchingInlineSnapshot(
      `[ScheduleError: Schedule.from: unknown option 'microbatchs'; did you mean 'microbatches'?]`,
    );
    expect(() => Schedule.fromJSON('{')).toThrow(/not JSON/);
    expect(() => Schedule.fromJSON('{"format":"x","order":[]}')).toThrow(/expected 'pipewright-schedule'/);
    expect(() => Schedule.fromJSON('{"version":2,"order":[]}')).toThrow(/version 2/);
  });
});

describe('packed columns', () => {
  test('a word holds kind, stage and microbatch; layouts widen where needed', () => {
    fc.assert(
      fc.property(fc.nat(30_000), fc.nat(3_000), fc.integer({ min: 1, max: 11 }), (stage, microbatch, code) => {
        const layout = Layout.holding(stage, microbatch);
        const word = layout.pack(code, stage, microbatch) | 0;
        expect([wordCode(word), layout.stage(word), layout.microbatch(word)]).toEqual([code, stage, microbatch]);
        expect(layout.microbatch(layout.pack(code, stage, -1))).toBe(-1);
      }),
    );
    expect(Layout.for(4, 8)).toBe(Layout.for(1000, 1000));
  });

  test('any numbers up to 2^28 pairs, in any order, survive', () => {
    const number = fc.oneof(fc.nat(50), fc.nat(100_000));
    const cell = fc
      .tuple(number, fc.nat(1500))
      .chain(([a, b]) => fc.constantFrom(action('F', a, b), action('B', b, a % 1500), action('UNSHARD', b)));
    fc.assert(
      fc.property(fc.array(fc.array(cell, { maxLength: 6 }), { maxLength: 4 }), (order) => {
        expect(Schedule.from({ order }).order).toEqual(order);
      }),
    );
  });

  test('the builder counts on demand and repacks when a number grows', () => {
    const builder = new ScheduleBuilder({ name: 'mine', ranks: 1 });
    builder.push(0, Code.F, 0, 0);
    builder.bubble(0, 2);
    builder.overlap(0, [builder.word(Code.F, 1, 0), builder.word(Code.B, 0, 0)]);
    builder.push(0, Code.B, 20_000, 3);
    builder.push(0, Code.W, 0, 4_000);
    expect(builder.finish().toString()).toBe('0F0 . . (1F0;0B0)OVERLAP_F_B 20000B3 0W4000');
  });

  test('schedules of the same cells are equal whatever their layouts', () => {
    const a = Schedule.from({ order: [['0F0', '(0F1;0B0)OVERLAP_F_B']] });
    const b = Schedule.from({ order: [['0F0', '(0F1;0B0)OVERLAP_F_B']], stages: 1, microbatches: 30_000 });
    expect(a.layout).not.toBe(b.layout);
    expect(a.diff(b).map((d) => d.what)).toEqual(['microbatches']);
  });

  test('forEachLeaf visits the parts of composites', () => {
    const schedule = buildSchedule('DualPipeV', { ranks: 2, microbatches: 4 });
    let leaves = 0;
    schedule.forEachLeaf(() => leaves++);
    expect(leaves).toBe(
      schedule.order.flat().reduce((n, item) => n + (item === null ? 0 : (item.parts?.length ?? 1)), 0),
    );
  });
});
