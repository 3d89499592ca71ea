import fc from 'fast-check';
import { describe, expect, test } from 'vitest';
import { anySchedule } from '../../testing/any-schedule.ts';
import { buildSchedule } from '../generate/build-schedule.ts';
import { lower } from '../lower/lower.ts';
import { Schedule, type StageEdge } from '../model/schedule.ts';
import { findDeadlock } from './channels.ts';
import { validate } from './validate.ts';
import type { Violation } from './violation.ts';

type Order = (string | null)[][];

describe('deadlock', () => {
  const bothSend = [
    ['0F0', '0SEND_F0', '0F1', '0SEND_F1', '0RECV_B0', '0B0', '0RECV_B1', '0B1'],
    ['1RECV_F0', '1F0', '1B0', '1SEND_B0', '1RECV_F1', '1F1', '1B1', '1SEND_B1'],
  ];

  test('two sends that wait for each other: fine with buffers, a cycle without', () => {
    const schedule = Schedule.from({ order: bothSend });
    expect(findDeadlock(schedule, 'buffered')).toBeNull();
    const violations = validate(schedule);
    expect(violations.map(({ rule }) => rule)).toEqual(['deadlock-rendezvous']);
    expect(violations[0]!.explanation).toMatchInlineSnapshot(
      `"deadlock if sends wait for receives: rank 0 slot 3 (0SEND_F1) waits for 1RECV_F1 at rank 1 slot 4; rank 1 slot 3 (1SEND_B0) waits for 0RECV_B0 at rank 0 slot 4; move one of the receives ahead"`,
    );
    expect(violations[0]!.cycle).toMatchInlineSnapshot(`
      [
        {
          "action": "0SEND_F1",
          "rank": 0,
          "slot": 3,
          "waitsFor": {
            "action": "1RECV_F1",
            "rank": 1,
            "slot": 4,
          },
        },
        {
          "action": "1SEND_B0",
          "rank": 1,
          "slot": 3,
          "waitsFor": {
            "action": "0RECV_B0",
            "rank": 0,
            "slot": 4,
          },
        },
      ]
    `);
  });

  test('two receives that wait for each other: a cycle in both models', () => {
    const schedule = Schedule.from({
      order: [
        ['0RECV_B0', '0F0', '0SEND_F0', '0B0'],
        ['1RECV_F0', '1F0', '1B0', '1SEND_B0'],
      ],
    });
    const violations = validate(schedule);
    expect(violations.map(({ rule, rank, slot }) => [rule, rank, slot])).toEqual([
      ['deadlock-buffered', 0, 0],
      ['deadlock-rendezvous', 0, 0],
    ]);
    expect(violations[0]!.explanation).toMatchInlineSnapshot(
      `"deadlock even if sends never wait: rank 0 slot 0 (0RECV_B0) waits for 1SEND_B0 at rank 1 slot 3; rank 1 slot 0 (1RECV_F0) waits for 0SEND_F0 at rank 0 slot 2; move what is waited for ahead"`,
    );
  });

  test('a cycle through three ranks is shown whole', () => {
    const order = [
      [
        '0F0',
        '0SEND_F0',
        '0F1',
        '0SEND_F1',
        '3RECV_F0',
        '3F0',
        '3B0',
        '3SEND_B0',
        '3RECV_F1',
        '3F1',
        '3B1',
        '3SEND_B1',
        '0RECV_B0',
        '0B0',
        '0RECV_B1',
        '0B1',
      ],
      [
        '1RECV_F0',
        '1F0',
        '1SEND_F0',
        '1RECV_F1',
        '1F1',
        '1SEND_F1',
        '1RECV_B0',
        '1B0',
        '1SEND_B0',
        '1RECV_B1',
        '1B1',
        '1SEND_B1',
      ],
      [
        '2RECV_F0',
        '2F0',
        '2SEND_F0',
        '2RECV_F1',
        '2F1',
        '2SEND_F1',
        '2RECV_B0',
        '2B0',
        '2SEND_B0',
        '2RECV_B1',
        '2B1',
        '2SEND_B1',
      ],
    ];
    const fine = Schedule.from({ order });
    expect(validate(fine).map(({ rule }) => rule)).toEqual(['deadlock-rendezvous']);
    const cycle = validate(fine)[0]!.cycle!;
    expect(cycle.map(({ rank, action }) => `${rank} ${action}`)).toMatchInlineSnapshot(`
      [
        "0 3SEND_B0",
        "2 2SEND_F1",
      ]
    `);
    expect(cycle.every((step, i) => step.waitsFor.rank === cycle[(i + 1) % cycle.length]!.rank)).toBe(true);
  });

  test('a compute-only order whose ranks wait for each other', () => {
    const order = [
      ['0F0', '0B0', '0F1', '0B1'],
      ['1F1', '1F0', '1B0', '1B1'],
    ];
    const violations = validate({ order });
    expect(violations.map(({ rule }) => rule)).toEqual(['compute-deadlock']);
    expect(violations[0]!.explanation).toMatchInlineSnapshot(
      `"ranks wait for each other: rank 0 slot 1 (0B0) waits for 1B0 at rank 1 slot 2; rank 1 slot 0 (1F1) waits for 0F1 at rank 0 slot 2; change the order of one of them"`,
    );
    expect(() => lower({ order })).toThrow(/never gets past/);
  });
});

describe('validate', () => {
  test('explains with rank, slot, rule and way out', () => {
    const explain = (order: Order, head: object = {}): string[] =>
      validate({ order, ...head }).map((v: Violation) => `${v.rule}: ${v.explanation}`);
    expect(explain([['0B0', '0F0']])).toMatchInlineSnapshot(`
      [
        "forward-first: rank 0 slot 0 (0B0): 0F0 is not before it; move the forward ahead",
      ]
    `);
    expect(explain([['0F0', '0B0', '0F1']])).toMatchInlineSnapshot(`
      [
        "missing: rank 0: stage 0 has no backward (0B1, or 0I1 and 0W1) for microbatch 1; add it",
      ]
    `);
    expect(
      explain(
        [
          ['0F0', '0B0', '5F0'],
          ['1F0', '1B0'],
        ],
        { stages: 2 },
      ),
    ).toMatchInlineSnapshot(`
      [
        "stage-range: rank 0 slot 2 (5F0): stage 5 is out of range; the schedule has stages 0 to 1",
      ]
    `);
    expect(
      explain([
        ['0F0', '0SEND_F0', '0B0'],
        ['1F0', '1B0'],
      ]),
    ).toMatchInlineSnapshot(`
      [
        "receive-first: rank 0 slot 2 (0B0): its gradient comes from another rank, but 0RECV_B0 is not before it",
        "receive-first: rank 1 slot 0 (1F0): its input comes from another rank, but 1RECV_F0 is not before it",
        "unmatched-send: rank 0 slot 1 (0SEND_F0): nobody receives it; add 1RECV_F0 on rank 1 or remove it",
      ]
    `);
  });

  test('stops at the limit', () => {
    expect(validate({ order: [['0F0']], stages: 50, microbatches: 50 }, { limit: 3 })).toHaveLength(3);
    expect(() => validate({ order: [] }, { limits: 3 } as never)).toThrow(/did you mean 'limit'/);
  });

  test('an order without any backward is for inference', () => {
    expect(
      validate({
        order: [
          ['0F0', '0F1'],
          ['1F0', '1F1'],
        ],
      }),
    ).toEqual([]);
    expect(
      validate(
        lower({
          order: [
            ['0F0', '0F1'],
            ['1F0', '1F1'],
          ],
        }),
      ),
    ).toEqual([]);
  });

  test("PyTorch's own faults are found", () => {
    const rules = new Set(
      validate(buildSchedule('1F1B', { ranks: 2, microbatches: 3, compat: 'torch' })).map(({ rule }) => rule),
    );
    expect([...rules].sort()).toEqual(['forward-first', 'microbatch-range', 'missing']);
    expect(validate(buildSchedule('GPipe', { ranks: 2, microbatches: 3, compat: 'torch' }))).toEqual([]);
  });

  test('skip connections: every graph over every schedule lowers free of deadlock', () => {
    const graph = (stages: number): fc.Arbitrary<StageEdge[]> =>
      fc
        .subarray(
          Array.from({ length: stages }, (_, a) => Array.from({ length: stages }, (_, b): StageEdge => [a, b]))
            .flat()
            .filter(([a, b]) => b > a + 1),
        )
        .map((extra) => [...Array.from({ length: stages - 1 }, (_, s): StageEdge => [s, s + 1]), ...extra]);
    fc.assert(
      fc.property(
        anySchedule.chain((schedule) => graph(schedule.stages).map((edges) => ({ schedule, edges }))),
        ({ schedule, edges }) => {
          const lowered = lower(schedule, { edges });
          expect(validate(lowered)).toEqual([]);
          expect(findDeadlock(lowered, 'buffered')).toBeNull();
          expect(lowered.edges).toEqual(edges);
        },
      ),
      { numRuns: 60 },
    );
  });
});
