/** @file Ranks that share cores, and the time that communication takes of its rank: exact small cases, and what holds for all orders. */
import { describe, expect, it } from 'vitest';
import type { Costs } from '../costs/costs.ts';
import { buildSchedule } from '../generate/build-schedule.ts';
import { scheduleNames } from '../generate/registry.ts';
import { lower } from '../lower/lower.ts';
import { formatAction } from '../model/action.ts';
import { ScheduleError } from '../model/errors.ts';
import { Schedule } from '../model/schedule.ts';
import { simulate } from './simulate.ts';

/** Every action with its times, rank by rank. */
function times(order: readonly (readonly string[])[], costs: Costs): string[] {
  return simulate(Schedule.from({ order: order.map((row) => [...row]) }), costs)
    .events()
    .map(({ action, start, end }) => `${formatAction(action)} ${start}-${end}`);
}

const forwards = (ranks: number): string[][] =>
  Array.from({ length: ranks }, (_, stage) => [`${stage}F0`, `${stage}F1`]);

/** All schedules at a size that each of them takes, without and with messages. */
const orders = scheduleNames.flatMap((name) => {
  const schedule = buildSchedule(name, { ranks: 4, microbatches: 8 });
  return [
    [name, schedule],
    [`${name}, lowered`, lower(schedule, { unshardWindow: 2 })],
  ] as const;
});

describe('cores', () => {
  it('two ranks on one core: what overlaps takes twice as long', () => {
    expect(times(forwards(2), { F: 1, cores: 1 })).toEqual(['0F0 0-1', '0F1 1-3', '1F0 1-3', '1F1 3-4']);
    expect(times(forwards(2), { F: 1, cores: 2 })).toEqual(['0F0 0-1', '0F1 1-2', '1F0 1-2', '1F1 2-3']);
  });

  it('what begins later slows down what is under way', () => {
    // 0F1 has half of its work done when 1F0 joins it: the other half takes twice as long, and then 1F0 is alone again.
    const costs: Costs = { F: [2, 4], comm: 1, cores: 1 };
    expect(times(forwards(2), costs)).toEqual(['0F0 0-2', '0F1 2-5', '1F0 3-8', '1F1 8-12']);
  });

  it('one core and a half: two ranks get three quarters each', () => {
    expect(times(forwards(2), { F: 3, cores: 1.5 })).toEqual(['0F0 0-3', '0F1 3-7', '1F0 3-7', '1F1 7-10']);
  });

  it('machines of two ranks: only neighbours share', () => {
    expect(times(forwards(4), { F: 1, cores: { count: 1, ranks: 2 } })).toEqual([
      ...['0F0 0-1', '0F1 1-3', '1F0 1-3', '1F1 3-4'],
      ...['2F0 3-4', '2F1 4-6', '3F0 4-6', '3F1 6-7'],
    ]);
    expect(times(forwards(2), { F: 1, cores: { count: 1, ranks: 1 } })).toEqual(times(forwards(2), { F: 1 }));
  });

  it('collectives and messages under way need no core', () => {
    const order = [
      ['0UNSHARD', '0F0', '0SEND_F0'],
      ['1RECV_F0', '1F0'],
    ];
    expect(times(order, { F: 1, unshard: 2, comm: 3, cores: 0.5 })).toEqual([
      ...['0UNSHARD 0-2', '0F0 2-4', '0SEND_F0 4-7'],
      ...['1RECV_F0 0-7', '1F0 7-9'],
    ]);
  });

  it('one core that is never idle: the step is all of the work', () => {
    for (const microbatches of [1, 4, 16]) {
      const schedule = buildSchedule('1F1B', { ranks: 2, microbatches });
      expect(simulate(schedule, { F: 1, B: 2, cores: 1 }).makespan).toBe(2 * 3 * microbatches);
    }
  });

  it.each(orders)('%s: no shorter than with cores for all, nor than the work on all cores', (_, schedule) => {
    const costs: Costs = { F: 1, I: 1.25, W: 0.75, comm: 0.125, unshard: 0.5, reduceGrad: 1, overlap: 'parts' };
    const alone = simulate(schedule, costs);
    const work = alone.busy.reduce((sum, busy) => sum + busy, 0);
    for (const cores of [1, 2, 3]) {
      const { makespan, busy } = simulate(schedule, { ...costs, cores });
      expect(makespan).toBeGreaterThanOrEqual(Math.max(alone.makespan, work / cores) - 1e-9);
      expect(makespan).toBeLessThanOrEqual((alone.makespan * 4) / cores + 1e-9);
      busy.forEach((time, rank) => expect(time).toBeGreaterThanOrEqual(alone.busy[rank]! - 1e-9));
    }
  });

  it.each(orders)('%s: a hair less than a core for each changes a hair', (_, schedule) => {
    const times = { F: 1, I: 1.25, W: 0.75, unshard: 0.5, reshard: 0.25, reduceGrad: 1 };
    const overhead = { send: 0.0625, unshard: 0.25, reduceGrad: 0.5 };
    // Sends after a composite leave with their part where every rank has a core, and after it where not.
    for (const overlap of schedule.isComputeOnly ? (['atomic', 'parts'] as const) : (['atomic'] as const))
      for (const communication of schedule.isComputeOnly
        ? (['overlap', 'blocking'] as const)
        : (['overlap'] as const)) {
        const costs: Costs = { ...times, overhead, overlap, communication };
        const alone = simulate(schedule, costs);
        const shared = simulate(schedule, { ...costs, cores: 4 - 1e-9 });
        // Each action takes at most 1e-9 / 4 of its time longer, and so does the step until its end; the rest is rounding.
        shared.end.forEach((end, i) => expect(Math.abs(end - alone.end[i]!)).toBeLessThanOrEqual(1e-9 * alone.end[i]!));
      }
  });

  it.each([
    [0, 'cores must be a number above 0, or { count, ranks } with such a count, got 0'],
    [Number.NaN, 'cores must be a number above 0'],
    ['2', "cores must be a number above 0, or { count, ranks } with such a count, got '2'"],
    [null, 'cores must be a number above 0'],
    [{ count: -1 }, 'cores must be a number above 0'],
    [{ count: 2, ranks: 0 }, 'cores.ranks must be an integer of at least 1, the ranks of one machine, got 0'],
    [{ count: 2, ranks: 1.5 }, 'cores.ranks must be an integer of at least 1'],
    [{ count: 2, machines: 2 }, "simulate: cores: unknown option 'machines'"],
  ])('%j is refused', (cores, message) => {
    const run = (): unknown => simulate({ order: [['0F0']] }, { cores: cores as number });
    expect(run).toThrow(ScheduleError);
    expect(run).toThrow(message);
  });
});

describe('overhead', () => {
  it('a send takes its rank as long, then the message leaves', () => {
    const order = [
      ['0F0', '0SEND_F0', '0F1', '0SEND_F1'],
      ['1RECV_F0', '1F0', '1RECV_F1', '1F1'],
    ];
    expect(times(order, { F: 1, comm: 0.25, overhead: { send: [0.5, 0] } })).toEqual([
      ...['0F0 0-1', '0SEND_F0 1-1.75', '0F1 1.5-2.5', '0SEND_F1 2.5-3.25'],
      ...['1RECV_F0 0-1.75', '1F0 1.75-2.75', '1RECV_F1 2.75-3.25', '1F1 3.25-4.25'],
    ]);
  });

  it('an UNSHARD takes its rank first, then runs beside it, and a REDUCE_GRAD likewise', () => {
    const order = [['0UNSHARD', '1UNSHARD', '0F0', '1F0', '1B0', '1REDUCE_GRAD', '0B0', '0REDUCE_GRAD']];
    const costs: Costs = { F: 1, B: 2, unshard: 2, reduceGrad: 4, overhead: { unshard: 0.5, reduceGrad: 1 } };
    expect(times(order, costs)).toEqual([
      ...['0UNSHARD 0-2.5', '1UNSHARD 0.5-4.5', '0F0 2.5-3.5', '1F0 4.5-5.5', '1B0 5.5-7.5'],
      ...['1REDUCE_GRAD 7.5-12.5', '0B0 8.5-10.5', '0REDUCE_GRAD 10.5-16.5'],
    ]);
  });

  it('is work that needs a core', () => {
    const order = [
      ['0UNSHARD', '0F0'],
      ['1UNSHARD', '1F0'],
    ];
    expect(times(order, { F: 1, overhead: { unshard: 1 }, cores: 1 })).toEqual([
      ...['0UNSHARD 0-2', '0F0 2-3'],
      ...['1UNSHARD 0-2', '1F0 3-4'],
    ]);
  });

  it('has names and values that are checked', () => {
    const run = (overhead: object) => (): unknown => simulate({ order: [['0F0']] }, { overhead });
    expect(run({ recv: 1 })).toThrow("simulate: overhead: unknown option 'recv'");
    expect(run({ send: [1, 2] })).toThrow('overhead.send has 2 values for 1 stages');
    expect(run({ unshard: -1 })).toThrow('overhead.unshard must be a finite number of at least 0, got -1');
  });
});
