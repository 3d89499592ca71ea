import { describe, expect, test } from 'vitest';
import { buildSchedule } from '../generate/build-schedule.ts';
import { lower } from '../lower/lower.ts';
import { addSendRecv } from '../lower/torch-send-recv.ts';
import { ScheduleError } from '../model/errors.ts';
import type { Schedule } from '../model/schedule.ts';
import { simulateSteps } from './dry-run.ts';

describe('simulateSteps', () => {
  test("PyTorch's example: who waited gets a second chance in the same step", () => {
    const order = [
      ['0F0', '2F0', '2B0', '0B0'],
      ['1F0', '3F0', '3B0', '1B0'],
    ];
    expect(simulateSteps(addSendRecv({ order })).toString()).toMatchInlineSnapshot(`
      "0F0 0SEND_F0 . 2RECV_F0 2F0 2SEND_F0 . . 2RECV_B0 2B0 2SEND_B0 . 0RECV_B0 0B0
      . 1RECV_F0 1F0 1SEND_F0 . 3RECV_F0 3F0 3B0 3SEND_B0 . 1RECV_B0 1B0 1SEND_B0"
    `);
  });

  test('replays composites and leaves out what nobody waits for', () => {
    const lowered = lower(buildSchedule('DualPipeV', { ranks: 2, microbatches: 4 }));
    const steps = simulateSteps(lowered);
    expect(steps.toString()).not.toMatch(/SHARD|REDUCE/);
    expect(steps.toString()).toContain('(0F3;3B1)OVERLAP_F_B');
  });

  test('an order that gets stuck is an error with the rows so far and who waits', () => {
    const computeOnly = buildSchedule('1F1B', { ranks: 2, microbatches: 2 });
    const error = (() => {
      try {
        simulateSteps(computeOnly);
      } catch (caught) {
        return caught as ScheduleError;
      }
      throw new Error('expected an error');
    })();
    expect([error.code, error.message]).toMatchInlineSnapshot(`
      [
        "DEADLOCK",
        "simulateSteps: no rank can go on: rank 0 at 0B0, rank 1 at 1F0; validate() shows why. A compute-only order of several ranks has to be lowered first",
      ]
    `);
    expect((error.details['partial'] as Schedule).toString()).toMatchInlineSnapshot(`
      "0F0 0F1 .
      . . ."
    `);
    expect(error.details['waiting']).toEqual([
      { rank: 0, action: '0B0' },
      { rank: 1, action: '1F0' },
    ]);
  });
});
