/** @file The simulator: published tables, messages, memory, deadlock, costs. */
import { describe, expect, it } from 'vitest';
import type { Costs } from '../costs/costs.ts';
import { buildSchedule } from '../generate/build-schedule.ts';
import { scheduleNames } from '../generate/registry.ts';
import { lower } from '../lower/lower.ts';
import { action, formatAction } from '../model/action.ts';
import { ScheduleError } from '../model/errors.ts';
import { Schedule } from '../model/schedule.ts';
import { validate } from '../validate/validate.ts';
import { simulate } from './simulate.ts';

describe('unit table: F = 1, full backward = 2', () => {
  const table = [
    { ranks: 4, microbatches: 8, makespans: [33, 33, 28.5, 26.25, 28.5] },
    { ranks: 8, microbatches: 32, makespans: [117, 117, 106.5, 101.25, 106.5] },
  ];
  const columns = [
    ['GPipe', 1],
    ['1F1B', 1],
    ['Interleaved1F1B', 2],
    ['Interleaved1F1B', 4],
    ['LoopedBFS', 2],
  ] as const;
  for (const { ranks, microbatches, makespans } of table) {
    it.each(columns.map(([name, stagesPerRank], i) => ({ name, stagesPerRank, makespan: makespans[i]! })))(
      `p=${ranks}, m=${microbatches}: $name, $stagesPerRank stages per rank: $makespan`,
      ({ name, stagesPerRank, makespan }) => {
        const schedule = buildSchedule(name, { ranks, stagesPerRank, microbatches });
        expect(simulate(schedule, { F: 1 / stagesPerRank, B: 2 / stagesPerRank }).makespan).toBe(makespan);
      },
    );
  }

  it('peaks at p=4, m=8 in microbatches', () => {
    const peaks = (name: string, stagesPerRank: number): number[] =>
      Array.from(
        simulate(buildSchedule(name, { ranks: 4, stagesPerRank, microbatches: 8 })).peakMemory,
        (p) => p / stagesPerRank,
      );
    expect(peaks('GPipe', 1)).toEqual([8, 8, 8, 8]);
    expect(peaks('1F1B', 1)).toEqual([4, 3, 2, 1]);
    expect(peaks('Interleaved1F1B', 2)).toEqual([5.5, 4.5, 3.5, 2.5]);
    expect(peaks('Interleaved1F1B', 4)).toEqual([4.75, 4.25, 3.75, 3.25]);
    expect(peaks('LoopedBFS', 2)).toEqual([8, 8, 8, 8]);
  });

  it('interleaved: rank 0 holds dv + d - 1 chunks', () => {
    for (const ranks of [2, 3, 4, 6]) {
      for (const stagesPerRank of [2, 3, 5]) {
        const schedule = buildSchedule('Interleaved1F1B', { ranks, stagesPerRank, microbatches: 4 * ranks });
        expect(simulate(schedule).peakMemory[0]).toBe(ranks * stagesPerRank + ranks - 1);
      }
    }
  });
});

describe('times', () => {
  const schedule = Schedule.from({
    order: [
      ['0F0', '0F1', '0B0', '0B1'],
      ['1F0', '1B0', '1F1', '1B1'],
    ],
  });

  it('gives start and end of every action, in columns and one by one', () => {
    const simulation = simulate(schedule, { F: 1, B: 2, comm: 0.5 });
    expect(
      simulation.events().map((e) => `${e.rank} ${formatAction(e.action)} ${e.start}-${e.end}`),
    ).toMatchInlineSnapshot(`
      [
        "0 0F0 0-1",
        "0 0F1 1-2",
        "0 0B0 5-7",
        "0 0B1 8-10",
        "1 1F0 1.5-2.5",
        "1 1B0 2.5-4.5",
        "1 1F1 4.5-5.5",
        "1 1B1 5.5-7.5",
      ]
    `);
    expect(simulation.startOf(1, 2)).toBe(4.5);
    expect(simulation.end[simulation.offsets[1]! + 2]).toBe(5.5);
    expect(simulation.at(0, 9)).toBeNull();
  });

  it('adds up work, idle and message time', () => {
    const simulation = simulate(schedule, { F: 1, B: 2, comm: 0.5 });
    expect(simulation.makespan).toBe(10);
    expect(simulation.span).toBe(10);
    expect([...simulation.busy]).toEqual([6, 6]);
    expect([...simulation.idle]).toEqual([4, 4]);
    expect([...simulation.communication]).toEqual([1, 1]);
    expect([...simulation.exposed]).toEqual([1, 0.5]);
    expect(simulation.bubble).toEqual({ span: 0.4, makespan: 0.4 });
  });

  it('finds the critical path', () => {
    const { criticalPath, makespan } = simulate(schedule, { F: 1, B: 2, comm: 0.5 });
    expect(criticalPath.map((step) => formatAction(step.action)).join(' ')).toBe('0F0 1F0 1B0 1F1 1B1 0B1');
    expect(criticalPath.reduce((sum, step) => sum + step.wait + step.end - step.start, 0)).toBe(makespan);
  });

  it('bubbles take no time', () => {
    const spaced = Schedule.from({
      order: [
        ['0F0', null, null, '0B0'],
        [null, '1F0', '1B0', null],
      ],
    });
    expect(simulate(spaced, { F: 1, B: 2 }).makespan).toBe(6);
  });

  it('takes costs per stage; B is I + W unless given', () => {
    const simulation = simulate(schedule, { F: [1, 3], I: 2, W: [1, 4] });
    expect(simulation.endOf(0, 0)).toBe(1);
    expect(simulation.endOf(1, 0)).toBe(4);
    expect(simulation.endOf(1, 1) - simulation.startOf(1, 1)).toBe(6);
  });

  it('writes JSON', () => {
    const json = JSON.parse(JSON.stringify(simulate(schedule, { F: 1, B: 2 }))) as Record<string, unknown>;
    expect(json).toMatchObject({
      makespan: 9,
      busy: [6, 6],
      peakMemory: [2, 1],
      start: [
        [0, 1, 4, 7],
        [1, 2, 4, 5],
      ],
    });
  });

  it('waits for all edges of a stage graph with a skip connection', () => {
    const skipping = Schedule.from({
      edges: [
        [0, 1],
        [1, 2],
        [0, 2],
      ],
      order: [
        ['0F0', '0B0'],
        ['1F0', '1B0'],
        ['2F0', '2B0'],
      ],
    });
    const simulation = simulate(skipping, { F: 1, B: 1, comm: [5, 0, 0] });
    expect(simulation.startOf(2, 0)).toBe(7); // 1F0 (6 to 7) is later than the skip (1 + 5)
    expect(simulate(skipping, { F: 1, B: 1, comm: [0, 0, 4] }).startOf(0, 1)).toBe(9); // max(3+1+4 via 1, skip 4+4)
    expect(simulation.transfers()).toHaveLength(6);
  });
});

describe('messages by bytes', () => {
  const schedule = Schedule.from({
    order: [
      ['0F0', '0F1', '0B0', '0B1'],
      ['1F0', '1F1', '1B0', '1B1'],
    ],
  });

  it('share their link and take latency more', () => {
    const simulation = simulate(schedule, { F: 1, B: 1, comm: { bytes: 20, bandwidth: 10, latency: 0.25 } });
    // 0F0 leaves 1 to 3, 0F1 3 to 5; each arrives 0.25 later.
    expect(simulation.startOf(1, 0)).toBe(3.25);
    expect(simulation.startOf(1, 1)).toBe(5.25);
    const forward = simulation.transfers().filter((t) => !t.backward);
    expect(forward.map((t) => [t.departure, t.arrival])).toEqual([
      [1, 3.25],
      [3, 5.25],
    ]);
  });

  it('use the values of their link and of their direction', () => {
    const comm = {
      bytes: [10, 0],
      gradientBytes: [30, 0],
      bandwidth: 10,
      links: [{ from: 1, to: 0, bandwidth: 5, latency: 1 }],
    };
    const simulation = simulate(schedule, { F: 1, B: 1, comm });
    expect(simulation.startOf(1, 0)).toBe(2);
    expect(simulation.startOf(0, 2)).toBe(simulation.endOf(1, 2) + 30 / 5 + 1);
  });
});

describe('lowered orders', () => {
  it('take as long as their compute order with the same message delays', () => {
    for (const name of scheduleNames) {
      const shape = { ranks: 3, microbatches: 6 };
      const schedule = buildSchedule(name, shape);
      const costs: Costs = { F: 1, I: 1.25, W: 0.75, comm: 0.5 };
      const implied = simulate(schedule, costs);
      const explicit = simulate(lower(schedule), costs);
      expect([name, explicit.makespan, explicit.span]).toEqual([name, implied.makespan, implied.span]);
      expect([...explicit.peakMemory]).toEqual([...implied.peakMemory]);
      explicit.communication.forEach((time, rank) => {
        expect(time).toBeCloseTo(implied.communication[rank]!, 9);
      });
    }
  });

  const lowered = Schedule.from({
    stages: 2,
    order: [
      ['0UNSHARD', '0F0', '0SEND_F0', '0RECV_B0', '0B0', '0REDUCE_GRAD', '0RESHARD'],
      ['1UNSHARD', '1RECV_F0', '1F0', '1B0', '1SEND_B0', '1REDUCE_GRAD', '1RESHARD'],
    ],
  });

  it('have sends, receives and collectives as actions beside compute', () => {
    const simulation = simulate(lowered, { F: 1, B: 2, comm: 0.5, unshard: 3, reduceGrad: 4 });
    const at = (rank: number, slot: number): [number, number] => [
      simulation.startOf(rank, slot),
      simulation.endOf(rank, slot),
    ];
    expect(at(0, 1)).toEqual([3, 4]); // 0F0 waits for its parameters
    expect(at(0, 2)).toEqual([4, 4.5]); // the message is under way
    expect(at(1, 1)).toEqual([0, 4.5]); // its receive was posted at once
    expect(at(1, 2)).toEqual([4.5, 5.5]);
    expect(at(1, 4)).toEqual([7.5, 8]);
    expect(at(1, 5)).toEqual([7.5, 11.5]); // the reduction runs on
    expect(at(0, 5)).toEqual([10, 14]);
    expect(simulation.makespan).toBe(14);
    expect(simulation.span).toBe(7); // 0F0 to 0B0
  });

  it('can block on every communication', () => {
    const simulation = simulate(lowered, {
      F: 1,
      B: 2,
      comm: 0.5,
      unshard: 3,
      reduceGrad: 4,
      communication: 'blocking',
    });
    expect(simulation.startOf(1, 1)).toBe(3); // posted when the parameters are there
    expect(simulation.startOf(1, 5)).toBe(8); // the reduction waits for the send
    expect(simulation.makespan).toBe(14);
  });

  it('send late when the order says so', () => {
    const late = Schedule.from({
      order: [
        ['0F0', '0F1', '0SEND_F0', '0SEND_F1'],
        ['1RECV_F0', '1F0', '1RECV_F1', '1F1'],
      ],
    });
    expect(simulate(late, { comm: 0.5 }).startOf(1, 1)).toBe(2.5);
  });

  it('sends of a composite leave with the part that makes them where parts release separately', () => {
    const schedule = lower(buildSchedule('DualPipeV', { ranks: 2, microbatches: 4 }));
    expect(simulate(schedule, { overlap: 'parts' }).span).toBe(25);
    expect(simulate(schedule).span).toBe(26);
  });
});

describe('overlapped composites', () => {
  const schedule = Schedule.from({
    order: [
      ['0F0', '0F1', '(0F2;0B0)OVERLAP_F_B', '0B1', '0B2'],
      ['1F0', '1B0', '1F1', '1B1', '1F2', '1B2'],
    ],
  });

  it('are one block by default', () => {
    const simulation = simulate(schedule, { F: 1, B: 2 });
    expect([simulation.startOf(0, 2), simulation.endOf(0, 2)]).toEqual([4, 7]);
  });

  it('take their own time where one is given', () => {
    const simulation = simulate(schedule, { F: 1, B: 2, overlap: 2.5 });
    expect(simulation.endOf(0, 2)).toBe(6.5);
    expect(simulation.busy[0]).toBe(2 + 2.5 + 4);
  });

  it('release part by part', () => {
    const simulation = simulate(schedule, { F: 1, B: 2, overlap: { release: 'parts' } });
    expect(simulation.startOf(0, 2)).toBe(2); // 0F2 needs nothing of rank 1
    expect(simulation.endOf(0, 2)).toBe(6); // 0B0 from 4
    expect(simulation.busy[0]).toBe(9);
    const shorter = simulate(schedule, { F: 1, B: 2, overlap: { release: 'parts', duration: 1.5 } });
    expect(shorter.endOf(0, 2)).toBe(5);
  });
});

describe('memory', () => {
  const schedule = Schedule.from({ order: [['0F0', '0F1', '0I0', '0W0', '0I1', '0W1']] });

  it('rises with F, falls partly with I and to nothing with W', () => {
    const [rank] = simulate(schedule, { activation: 8, retained: 0.25 }).memory;
    expect([...rank!.time]).toEqual([0, 1, 3, 4, 5, 6]);
    expect([...rank!.amount]).toEqual([8, 16, 10, 8, 2, 0]);
    expect([rank!.peak, rank!.activationPeak]).toEqual([16, 16]);
  });

  it('counts parameters and weight gradients of each stage', () => {
    const [rank] = simulate(schedule, { activation: 1, parameters: 100, weightGradient: 40 }).memory;
    expect(rank!.amount[0]).toBe(101);
    expect(rank!.peak).toBe(100 + 40 + 1.5);
    expect(rank!.activationPeak).toBe(2);
    expect(rank!.amount[rank!.amount.length - 1]).toBe(140);
  });

  it('holds sharded parameters whole only from UNSHARD to RESHARD', () => {
    const sharded = Schedule.from({ order: [['0UNSHARD', '0F0', '0B0', '0RESHARD', '0REDUCE_GRAD']] });
    const [rank] = simulate(sharded, { activation: 0, parameters: 100, shards: 4 }).memory;
    expect([...rank!.time]).toEqual([0, 3]);
    expect([...rank!.amount]).toEqual([125, 25]);
  });

  it('is given up at once where nothing is trained', () => {
    expect(simulate(buildSchedule('ForwardOnly', { ranks: 2, microbatches: 6 })).peakMemory).toEqual(
      new Float64Array([1, 1]),
    );
  });
});

describe('orders that cannot go on', () => {
  function failure(order: readonly (readonly string[])[]): ScheduleError {
    try {
      simulate(Schedule.from({ order: order as string[][] }));
    } catch (error) {
      if (error instanceof ScheduleError) return error;
      throw error;
    }
    throw new Error('it went on');
  }

  it('names the ranks that wait for each other, and their slots', () => {
    const error = failure([
      ['0F0', '0B0', '0F1', '0B1'],
      ['1F0', '1F1', '1B0', '1B1'],
    ]);
    expect(error.code).toBe('DEADLOCK');
    expect(error.message).toMatchInlineSnapshot(
      `"simulate: ranks wait for each other: rank 0 waits at slot 1 (0B0) for the gradient of stage 1, microbatch 0, from rank 1; rank 1 waits at slot 1 (1F1) for the output of stage 0, microbatch 1, from rank 0. Move what is waited for ahead, or run validate(schedule) for the rule it breaks"`,
    );
    expect(error.details).toMatchObject({
      cycle: [0, 1],
      waiting: [
        { rank: 0, slot: 1, action: '0B0' },
        { rank: 1, slot: 1, action: '1F1' },
      ],
    });
  });

  it.each([
    [
      'a backward before its forward',
      [['0B0', '0F0']],
      /rank 0 waits at slot 0 \(0B0\) for 0F0 earlier in its own row/,
    ],
    ['a weight backward before its input backward', [['0F0', '0W0', '0I0']], /for 0I0 earlier in its own row/],
    [
      'a send before its forward',
      [
        ['0SEND_F0', '0F0'],
        ['1RECV_F0', '1F0'],
      ],
      /\(0SEND_F0\) for 0F0 earlier/,
    ],
    [
      'a receive after its forward',
      [
        ['0F0', '0SEND_F0'],
        ['1F0', '1RECV_F0'],
      ],
      /\(1F0\) for 1RECV_F0 earlier/,
    ],
    [
      'a receive nobody sends',
      [['0F0'], ['1RECV_F0']],
      /rank 1 waits at slot 0 \(1RECV_F0\) for the output of stage 0/,
    ],
    [
      'a forward whose input is in no row',
      [['0F0'], ['1F1']],
      /\(1F1\) for the output of stage 0, microbatch 1, from rank 0/,
    ],
  ])('%s', (_, order, message) => {
    const error = failure(order);
    expect(error.code).toBe('DEADLOCK');
    expect(error.message).toMatch(message);
  });
});

describe('actions that do not belong to the schedule', () => {
  it('are refused: no microbatch, or numbers out of range', () => {
    expect(() => simulate({ order: [[action('F', 0)]] })).toThrow(/0F \(cell 0\) has no microbatch or is outside/);
    expect(() => simulate({ stages: 1, microbatches: 1, order: [['0F1']] })).toThrow(
      /0F1 .*outside 1 stages and 1 microbatches/,
    );
    expect(() => simulate({ stages: 1, microbatches: 1, order: [['1UNSHARD']] })).toThrow(/1UNSHARD/);
  });
});

describe('costs', () => {
  const schedule = buildSchedule('1F1B', { ranks: 2, microbatches: 2 });
  it.each([
    [{ coms: 1 }, /unknown option 'coms'; did you mean 'comm'/],
    [{ F: -1 }, /F must be a finite number of at least 0, got -1/],
    [{ F: [1] }, /F has 1 values for 2 stages/],
    [{ W: [1, Number.NaN] }, /W\[1\] must be a finite number/],
    [{ retained: 2 }, /retained is a share from 0 to 1, got 2/],
    [{ overlap: 'atmoic' }, /overlap is 'atmoic'; did you mean 'atomic'/],
    [{ overlap: { relase: 'parts' } }, /unknown option 'relase'; did you mean 'release'/],
    [{ comm: { latency: 1 } }, /comm.bytes is missing/],
    [{ comm: { bytes: 1, bandwidth: 0 } }, /bandwidth must be above 0/],
    [{ comm: { bytes: 1, links: [{ from: 0 }] } }, /needs the ranks `from` and `to`/],
    [{ communication: 'block' }, /communication is 'block'/],
    [{ shards: 0 }, /shards must be at least 1/],
    [{ B: [2, 3], inputGradient: 2.5 }, /inputGradient is 2.5 for stage 0, after the end of its full backward at 2/],
    [null, /costs must be an object/],
  ])('%j is refused', (costs, message) => {
    expect(() => simulate(schedule, costs as Costs)).toThrow(message);
  });

  it('half of B each for I and W where only B is given', () => {
    const split = buildSchedule('ZBH1', { ranks: 2, microbatches: 2 });
    expect(simulate(split, { F: 1, B: 4 }).busy[0]).toBe(10);
  });
});

describe('gradients that leave in the middle of a full backward', () => {
  it('1F1B on 4 ranks with 16 microbatches of F = I = W = 1: 54 instead of 57', () => {
    const schedule = buildSchedule('1F1B', { ranks: 4, microbatches: 16 });
    expect(simulate(schedule, { F: 1, B: 2 }).makespan).toBe(57);
    expect(simulate(schedule, { F: 1, B: 2, inputGradient: 1 }).makespan).toBe(54);
    expect(simulate(lower(schedule), { F: 1, B: 2, inputGradient: 1 }).makespan).toBe(54);
  });
});

describe('a composite whose parts depend on each other', () => {
  for (const overlap of ['atomic', 'parts'] as const) {
    it(`${overlap}: parts in the order of their dependencies run inside the cell`, () => {
      expect(simulate({ order: [['(0F0;0B0)OVERLAP_F_B']] }, { overlap }).makespan).toBe(3);
      expect(simulate({ order: [['0F0', '(0I0;0W0)OVERLAP_F_B']] }, { overlap }).makespan).toBe(3);
      const two = { order: [['(0F0;1F0)OVERLAP_F_B', '(1B0;0B0)OVERLAP_F_B']], stageToRank: [0, 0] };
      expect(simulate(two, { overlap }).makespan).toBe(6);
      expect(validate(two)).toEqual([]);
      expect(validate({ order: [['(0F0;0B0)OVERLAP_F_B']] })).toEqual([]);
    });

    it(`${overlap}: parts in another order are refused with the reason`, () => {
      expect(() => simulate({ order: [['0F0', '(0W0;0I0)OVERLAP_F_B']] }, { overlap })).toThrow(
        /0I0, which comes after it in the same cell/,
      );
      expect(() => simulate({ order: [['0F0', '0W0', '0I0']] }, { overlap })).toThrow(/0I0 earlier in its own row/);
    });
  }

  it('inputs from another rank are still waited for', () => {
    const order = [['0F0', '0B0'], ['(1F0;1B0)OVERLAP_F_B']];
    expect(simulate({ order }, { F: 1, B: 2 }).makespan).toBe(6);
  });
});
