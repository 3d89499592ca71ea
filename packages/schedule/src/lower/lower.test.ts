import { describe, expect, test } from 'vitest';
import { buildSchedule } from '../generate/build-schedule.ts';
import { ScheduleError } from '../model/errors.ts';
import { Schedule, type StageEdge } from '../model/schedule.ts';
import { findDeadlock } from '../validate/channels.ts';
import { validate } from '../validate/validate.ts';
import { lower } from './lower.ts';

const bare = { unshardWindow: false, reduceGrad: 'none' } as const;

/** The code of the error a call ends in. */
function codeOf(run: () => unknown): string | undefined {
  try {
    run();
    return undefined;
  } catch (error) {
    expect(error).toBeInstanceOf(ScheduleError);
    return (error as ScheduleError).code;
  }
}

describe('lower', () => {
  test('1F1B: receives right before their use, or before the send that would otherwise hang', () => {
    expect(lower(buildSchedule('1F1B', { ranks: 2, microbatches: 3 }), bare).toString()).toMatchInlineSnapshot(`
      "0F0 0SEND_F0 0F1 0SEND_F1 0RECV_B0 0B0 0F2 0SEND_F2 0RECV_B1 0B1 0RECV_B2 0B2
      1RECV_F0 1F0 1B0 1RECV_F1 1SEND_B0 1F1 1B1 1RECV_F2 1SEND_B1 1F2 1B2 1SEND_B2"
    `);
  });

  test('Looped BFS with all actions, by default and as PyTorch does it', () => {
    const schedule = buildSchedule('LoopedBFS', { ranks: 2, stagesPerRank: 2, microbatches: 1 });
    expect(lower(schedule).toString()).toMatchInlineSnapshot(`
      "0UNSHARD 2UNSHARD 0F0 0SEND_F0 2RECV_F0 2F0 2SEND_F0 2RECV_B0 2B0 2SEND_B0 2REDUCE_GRAD 2RESHARD 0RECV_B0 0B0 0REDUCE_GRAD 0RESHARD
      1UNSHARD 3UNSHARD 1RECV_F0 1F0 1SEND_F0 3RECV_F0 3F0 3B0 3SEND_B0 3REDUCE_GRAD 3RESHARD 1RECV_B0 1B0 1SEND_B0 1REDUCE_GRAD 1RESHARD"
    `);
    expect(lower(schedule, { compat: 'torch' }).toString()).toMatchInlineSnapshot(`
      "0UNSHARD 2UNSHARD 0F0 0SEND_F0 2RECV_F0 2F0 2SEND_F0 2RECV_B0 2B0 2SEND_B0 2REDUCE_GRAD 2RESHARD 0RECV_B0 0B0 0REDUCE_GRAD 0RESHARD
      1UNSHARD 3UNSHARD 1RECV_F0 1F0 1SEND_F0 3RECV_F0 3F0 3B0 3SEND_B0 1RECV_B0 3REDUCE_GRAD 3RESHARD 1B0 1SEND_B0 1REDUCE_GRAD 1RESHARD"
    `);
  });

  test('overlapped actions: receives of all parts before, sends of all parts after', () => {
    expect(lower(buildSchedule('DualPipeV', { ranks: 2, microbatches: 4 }), bare).toString()).toMatchInlineSnapshot(`
      "0F0 0SEND_F0 0F1 0SEND_F1 0F2 0SEND_F2 3RECV_F0 3F0 3I0 3RECV_F1 3SEND_B0 3W0 3F1 (0F3;3B1)OVERLAP_F_B 0SEND_F3 3RECV_F2 3SEND_B1 0RECV_B0 (3F2;0B0)OVERLAP_F_B 3B2 3RECV_F3 3SEND_B2 0RECV_B1 (3F3;0B1)OVERLAP_F_B 3B3 3SEND_B3 0RECV_B2 0I2 0W2 0RECV_B3 0I3 0W3
      1RECV_F0 1F0 2F0 1RECV_F1 1RECV_F2 2SEND_F0 1F1 2F1 2SEND_F1 1F2 2RECV_B0 2B0 (2F2;1B0)OVERLAP_F_B 1RECV_F3 2SEND_F2 2RECV_B1 1SEND_B0 (1F3;2B1)OVERLAP_F_B (2F3;1B1)OVERLAP_F_B 2SEND_F3 2RECV_B2 1SEND_B1 2B2 1B2 2RECV_B3 1SEND_B2 2I3 1I3 1SEND_B3 2W3 1W3"
    `);
  });

  test('places communication independently of unsharding and reduction', () => {
    for (const name of ['Interleaved1F1B', 'InterleavedZeroBubble', 'ZBVZeroBubble', 'DualPipeV']) {
      const schedule = buildSchedule(name, { ranks: 3, microbatches: 7 });
      const plain = lower(schedule, bare).toString();
      const full = lower(schedule, { unshardWindow: 1, reduceGrad: 'end' }).toString();
      expect(full.replaceAll(/\d+(UNSHARD|RESHARD|REDUCE_GRAD) ?/g, '').replaceAll(/ $/gm, '')).toBe(plain);
    }
  });

  test('options: window in stages or bytes, reduction early, at the end or never, merged backwards', () => {
    const schedule = buildSchedule('InterleavedZeroBubble', { ranks: 1, stagesPerRank: 2, microbatches: 1 });
    expect(lower(schedule, { unshardWindow: 1 }).toString()).toMatchInlineSnapshot(
      `"0UNSHARD 0F0 0RESHARD 1UNSHARD 1F0 1I0 1W0 1REDUCE_GRAD 1RESHARD 0UNSHARD 0I0 0W0 0REDUCE_GRAD 0RESHARD"`,
    );
    expect(
      lower(schedule, { unshardWindow: { bytes: 3, stageBytes: [1, 2] }, reduceGrad: 'end' }).toString(),
    ).toMatchInlineSnapshot(`"0UNSHARD 1UNSHARD 0F0 1F0 1I0 1W0 1RESHARD 0I0 0W0 0RESHARD 0REDUCE_GRAD 1REDUCE_GRAD"`);
    expect(lower(schedule, { ...bare, merge: true }).toString()).toBe('0F0 1F0 1B0 0B0');
  });

  test('skip connections: one send for all receivers, one receive from all senders', () => {
    const edges: StageEdge[] = [
      [0, 1],
      [1, 2],
      [0, 2],
    ];
    const schedule = buildSchedule('1F1B', { ranks: 3, microbatches: 3 });
    const lowered = lower(schedule, { ...bare, edges });
    expect(lowered.toString()).toMatchInlineSnapshot(`
      "0F0 0SEND_F0 0F1 0RECV_B0 0SEND_F1 0F2 0RECV_B1 0SEND_F2 0B0 0B1 0RECV_B2 0B2
      1RECV_F0 1F0 1SEND_F0 1RECV_B0 1RECV_F1 1F1 1SEND_F1 1B0 1SEND_B0 1RECV_B1 1RECV_F2 1F2 1SEND_F2 1B1 1SEND_B1 1RECV_B2 1B2 1SEND_B2
      2RECV_F0 2F0 2B0 2SEND_B0 2RECV_F1 2F1 2B1 2SEND_B1 2RECV_F2 2F2 2B2 2SEND_B2"
    `);
    expect(lowered.edges).toEqual(edges);
    expect(validate(lowered)).toEqual([]);
    expect(findDeadlock(lowered, 'rendezvous')).toBeNull();
    // The graph travels with the schedule.
    expect(validate(Schedule.fromJSON(JSON.stringify(lowered)))).toEqual([]);
    expect(lower(schedule.with({ edges }), bare).equals(lowered)).toBe(true);
  });

  test('is pure and keeps names and numbers', () => {
    const schedule = buildSchedule('DualPipeV', { ranks: 2, microbatches: 4 });
    const before = JSON.stringify(schedule);
    const lowered = lower(schedule);
    expect(JSON.stringify(schedule)).toBe(before);
    expect(lowered).toMatchObject({
      name: 'DualPipeV',
      ranks: 2,
      stages: 4,
      microbatches: 4,
      stageToRank: [0, 1, 1, 0],
      isComputeOnly: false,
    });
    expect(lower(schedule).equals(lowered)).toBe(true);
  });

  test('refuses what cannot be lowered, with the way out', () => {
    const torchGPipe = buildSchedule('GPipe', { ranks: 2, microbatches: 2, compat: 'torch' });
    expect(() => lower(torchGPipe)).toThrowErrorMatchingInlineSnapshot(
      `[ScheduleError: lower: rank 0 slot 4 is 0REDUCE_GRAD; only compute actions and bubbles can be lowered. PyTorch's GPipe and 1F1B orders contain it: build without compat]`,
    );
    expect(() => lower(lower(buildSchedule('GPipe', { ranks: 2, microbatches: 2 })))).toThrow(/lowered already/);
    expect(() => lower({ order: [['0F0', '0B0', '0F1']] })).toThrowErrorMatchingInlineSnapshot(
      `[ScheduleError: lower: rank 0: stage 0 has no backward (0B1, or 0I1 and 0W1) for microbatch 1; add it; validate() lists what is wrong]`,
    );
    const schedule = buildSchedule('GPipe', { ranks: 2, microbatches: 2 });
    expect(codeOf(() => lower(schedule, { window: 3 } as never))).toBe('UNKNOWN_OPTION');
    expect(codeOf(() => lower(schedule, { compat: 'pytorch' as never }))).toBe('BAD_OPTION');
    expect(codeOf(() => lower(schedule, { reduceGrad: 'late' as never }))).toBe('BAD_OPTION');
    expect(codeOf(() => lower(schedule, { unshardWindow: 0 }))).toBe('BAD_OPTION');
    expect(codeOf(() => lower(schedule, { unshardWindow: { bytes: 1 } as never }))).toBe('BAD_OPTION');
    expect(codeOf(() => lower(schedule, { edges: [[1, 0]] }))).toBe('BAD_OPTION');
    expect(
      codeOf(() =>
        lower(schedule, {
          edges: [
            [0, 1],
            [0, 1],
          ],
        }),
      ),
    ).toBe('BAD_OPTION');
    expect(codeOf(() => lower(schedule, { compat: 'torch', edges: [[0, 1]] }))).toBe('UNSUPPORTED');
  });
});
