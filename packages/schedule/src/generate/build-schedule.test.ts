import fc from 'fast-check';
import { describe, expect, test } from 'vitest';
import { ScheduleError } from '../model/errors.ts';
import { buildSchedule } from './build-schedule.ts';
import { findSchedule, scheduleNames } from './registry.ts';

const shape = { ranks: 2, microbatches: 4 };
const failure = (run: () => unknown): ScheduleError => {
  try {
    run();
  } catch (error) {
    expect(error).toBeInstanceOf(ScheduleError);
    return error as ScheduleError;
  }
  throw new Error('expected an error');
};

describe('buildSchedule', () => {
  test('knows these schedules', () => {
    expect(scheduleNames).toEqual(
      expect.arrayContaining([
        'ForwardOnly',
        'GPipe',
        '1F1B',
        'LoopedBFS',
        'Interleaved1F1B',
        'InterleavedZeroBubble',
        'ZBVZeroBubble',
        'DualPipeV',
      ]),
    );
  });

  test.each([
    ['gpipe', 'GPipe'],
    ['SCHEDULEGPIPE', 'GPipe'],
    ['Schedule1F1B', '1F1B'],
    ['1f1b', '1F1B'],
    ['looped-bfs', 'LoopedBFS'],
    ['Schedule Interleaved 1F1B', 'Interleaved1F1B'],
    ['zbv', 'ZBVZeroBubble'],
    ['_ScheduleForwardOnly', 'ForwardOnly'],
  ])('finds %s', (name, found) => {
    expect(buildSchedule(name, shape).name).toBe(found);
  });

  test('suggests near misses and lists the rest', () => {
    expect(failure(() => buildSchedule('1F1', shape)).message).toContain(`did you mean '1F1B'?`);
    expect(failure(() => buildSchedule('Interleaved1F1', shape)).message).toContain(`did you mean 'Interleaved1F1B'?`);
    expect(failure(() => buildSchedule('DaulPipeV', shape)).message).toContain(`did you mean 'DualPipeV'?`);
    const lost = failure(() => buildSchedule('PipelineScheduleMulti', shape));
    expect([lost.code, lost.message]).toEqual([
      'UNKNOWN_SCHEDULE',
      expect.stringContaining('known schedules: ForwardOnly, GPipe, 1F1B'),
    ]);
    expect(failure(() => buildSchedule(7 as never, shape)).code).toBe('UNKNOWN_SCHEDULE');
  });

  test('refuses bad options by name, value and rule', () => {
    const refused: [object, string][] = [
      [{ ranks: 2 }, 'BAD_OPTION'],
      [{ ranks: 0, microbatches: 1 }, 'BAD_OPTION'],
      [{ ranks: 2, microbatches: 1.5 }, 'BAD_OPTION'],
      [{ ranks: 2, microbatches: 2, stagesPerRank: 0 }, 'BAD_OPTION'],
      [{ ranks: 2, microbatches: 2, compat: 'pytorch' }, 'BAD_OPTION'],
      [{ ranks: 2, microbatch: 2 }, 'UNKNOWN_OPTION'],
      [{ ranks: 2, microbatches: 2, stagesPerRank: 2 }, 'BAD_SHAPE'],
    ];
    for (const [options, code] of refused)
      expect(failure(() => buildSchedule('GPipe', options as never)).code).toBe(code);
    expect(failure(() => buildSchedule('GPipe', undefined as never)).code).toBe('BAD_OPTION');
    const messages = [
      () => buildSchedule('GPipe', { ranks: 2, microbatchs: 2 } as never),
      () => buildSchedule('1F1B', { ranks: 2, microbatches: 4, stagesPerRank: 2 }),
      () => buildSchedule('DualPipeV', { ranks: 2, microbatches: 4, stagesPerRank: 3 }),
      () => buildSchedule('1F1B', { ranks: 4, microbatches: 2, compat: 'torch' }),
      () => buildSchedule('Interleaved1F1B', { ranks: 4, microbatches: 11, compat: 'torch' }),
      () => buildSchedule('DualPipeV', { ranks: 4, microbatches: 4, compat: 'torch' }),
    ].map((run) => failure(run).message);
    expect(messages.join('\n')).toMatchInlineSnapshot(`
      "buildSchedule: unknown option 'microbatchs'; did you mean 'microbatches'?
      1F1B: it has exactly 1 stage per rank (ranks 2, stagesPerRank 2, microbatches 4); leave stagesPerRank out, or use LoopedBFS or Interleaved1F1B
      DualPipeV: it has exactly 2 stages per rank (ranks 2, stagesPerRank 3, microbatches 4); use stagesPerRank: 2
      1F1B: the reference needs at least as many microbatches as stages (4) (ranks 4, stagesPerRank 1, microbatches 2); use 4 microbatches or leave compat out
      Interleaved1F1B: the reference needs microbatches (11) to be a multiple of its rounds (2) (ranks 4, stagesPerRank 2, microbatches 11); use 10 or 12 microbatches or leave compat out
      DualPipeV: the reference needs at least as many microbatches as stages (8) (ranks 4, stagesPerRank 2, microbatches 4); use 8 microbatches or leave compat out"
    `);
  });
});

describe('by the number of all stages', () => {
  test('is the same as by stages per rank; both may be said', () => {
    const wanted = buildSchedule('Interleaved1F1B', { ranks: 2, stagesPerRank: 3, microbatches: 4 });
    expect(buildSchedule('Interleaved1F1B', { ranks: 2, stages: 6, microbatches: 4 }).equals(wanted)).toBe(true);
    const both = { ranks: 2, stages: 6, stagesPerRank: 3, microbatches: 4 };
    expect(buildSchedule('Interleaved1F1B', both).equals(wanted)).toBe(true);
    expect(wanted.stagesPerRank).toBe(3);
  });

  test('refuses what the ranks or the schedule cannot hold', () => {
    const refusals = [
      ['GPipe', { ranks: 2, stages: 0, microbatches: 4 }],
      ['LoopedBFS', { ranks: 4, stages: 6, microbatches: 4 }],
      ['LoopedBFS', { ranks: 4, stages: 3, microbatches: 4 }],
      ['LoopedBFS', { ranks: 4, stages: 8, stagesPerRank: 3, microbatches: 4 }],
      ['1F1B', { ranks: 2, stages: 4, microbatches: 4 }],
      ['DualPipeV', { ranks: 2, stages: 6, microbatches: 4 }],
    ] as const;
    const errors = refusals.map(([name, options]) => failure(() => buildSchedule(name, options)));
    expect(errors.map(({ code, message }) => `${code} ${message}`).join('\n')).toMatchInlineSnapshot(`
      "BAD_OPTION buildSchedule: stages must be an integer of at least 1, got 0
      BAD_SHAPE buildSchedule: stages (6) must be a multiple of ranks (4), so that every rank has as many; use 4 or 8 stages, or write a schedule with a placement of your own
      BAD_SHAPE buildSchedule: stages (3) must be a multiple of ranks (4), so that every rank has as many; use 4 stages, or write a schedule with a placement of your own
      BAD_SHAPE buildSchedule: stages is 8, but stagesPerRank 3 on 4 ranks makes 12; leave one of the two out
      BAD_SHAPE 1F1B: it has exactly 1 stage per rank (ranks 2, stagesPerRank 2, microbatches 4); leave stages out, or use LoopedBFS or Interleaved1F1B
      BAD_SHAPE DualPipeV: it has exactly 2 stages per rank (ranks 2, stagesPerRank 3, microbatches 4); use stages: 4"
    `);
  });

  test('the numbers of stages that a refusal names work', () => {
    const odd = fc.record({ ranks: fc.integer({ min: 2, max: 9 }), stages: fc.integer({ min: 1, max: 60 }) });
    fc.assert(
      fc.property(odd, ({ ranks, stages }) => {
        fc.pre(stages % ranks !== 0);
        const { code, message } = failure(() => buildSchedule('LoopedBFS', { ranks, stages, microbatches: 1 }));
        expect(code).toBe('BAD_SHAPE');
        const named = /; use ([\d or]+) stages/.exec(message)![1]!.split(' or ').map(Number);
        for (const fitting of named) {
          expect(Math.abs(fitting - stages)).toBeLessThan(ranks);
          expect(buildSchedule('LoopedBFS', { ranks, stages: fitting, microbatches: 1 }).stages).toBe(fitting);
        }
      }),
    );
  });
});

describe('the default is right where PyTorch is not', () => {
  const print = (name: string, options: object = {}): string =>
    buildSchedule(name, { ranks: 3, microbatches: 4, ...options }).toString();

  test('1F1B is numbered from 0 on every rank, keeps its bubbles and has no REDUCE_GRAD', () => {
    expect(print('1F1B')).toMatchInlineSnapshot(`
      "0F0 0F1 0F2 . . 0B0 0F3 0B1 . 0B2 . 0B3
      . 1F0 1F1 . 1B0 1F2 1B1 1F3 1B2 . 1B3
      . . 2F0 2B0 2F1 2B1 2F2 2B2 2F3 2B3"
    `);
    expect(print('1F1B', { compat: 'torch' })).toMatchInlineSnapshot(`
      "0F0 0F1 0F2 0B0 0F3 0B1 0B2 0B3 0REDUCE_GRAD
      1F0 1F1 1B0 1F2 1B1 1F3 1B2 1B3 1REDUCE_GRAD
      2F1 2B0 2F2 2B1 2F3 2B2 2F4 2B3 2REDUCE_GRAD"
    `);
    expect(print('1F1B', { microbatches: 2 })).toMatchInlineSnapshot(`
      "0F0 0F1 . . . 0B0 . 0B1
      . 1F0 1F1 . 1B0 . 1B1
      . . 2F0 2B0 2F1 2B1"
    `);
  });

  test('GPipe keeps its bubbles', () => {
    expect(print('GPipe', { microbatches: 2 })).toMatchInlineSnapshot(`
      "0F0 0F1 . . . . 0B0 0B1
      . 1F0 1F1 . . 1B0 1B1
      . . 2F0 2F1 2B0 2B1"
    `);
  });

  test('interleaved 1F1B has cool-down bubbles only where a rank waits, and takes any number of microbatches', () => {
    expect(buildSchedule('Interleaved1F1B', { ranks: 2, microbatches: 4 }).toString()).toMatchInlineSnapshot(`
      "0F0 0F1 2F0 2F1 0F2 2B0 0F3 2B1 2F2 0B0 2F3 0B1 . 2B2 . 2B3 0B2 0B3
      . 1F0 1F1 3F0 3B0 3F1 3B1 1F2 1B0 1F3 1B1 3F2 3B2 3F3 3B3 1B2 1B3"
    `);
    expect(buildSchedule('Interleaved1F1B', { ranks: 4, microbatches: 11 }).microbatches).toBe(11);
  });

  test('ZBV and DualPipeV with fewer microbatches than they plan for', () => {
    expect(buildSchedule('ZBVZeroBubble', { ranks: 2, microbatches: 2 }).toString()).toMatchInlineSnapshot(`
      "0F0 0F1 . 3F0 3I0 3W0 3F1 3I1 3W1 0I0 0W0 . 0I1 0W1
      . 1F0 2F0 1F1 2F1 2I0 2W0 1I0 1W0 2I1 2W1 1I1 1W1"
    `);
    expect(buildSchedule('DualPipeV', { ranks: 2, microbatches: 2 }).toString()).toMatchInlineSnapshot(`
      "0F0 0F1 . 3F0 3I0 3W0 3F1 3B1 0B0 . 0B1
      . 1F0 2F0 1F1 2F1 2B0 1B0 . 2B1 1B1"
    `);
  });
});

describe("PyTorch's class names", () => {
  test('build the schedule of that name', () => {
    const classes = {
      ScheduleForwardOnly: 'ForwardOnly',
      ScheduleGPipe: 'GPipe',
      Schedule1F1B: '1F1B',
      ScheduleLoopedBFS: 'LoopedBFS',
      ScheduleInterleaved1F1B: 'Interleaved1F1B',
      ScheduleInterleavedZeroBubble: 'InterleavedZeroBubble',
      ScheduleZBVZeroBubble: 'ZBVZeroBubble',
      ScheduleDualPipeV: 'DualPipeV',
    };
    for (const [className, name] of Object.entries(classes)) {
      expect(buildSchedule(className, shape).name).toBe(name);
      expect(findSchedule(className)).toBe(findSchedule(name));
    }
  });
});
