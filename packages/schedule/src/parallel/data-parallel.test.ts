import fc from 'fast-check';
import { describe, expect, test } from 'vitest';
import { buildSchedule } from '../generate/build-schedule.ts';
import { type DataParallelPlan, lower } from '../lower/lower.ts';
import { formatAction } from '../model/action.ts';
import { Schedule } from '../model/schedule.ts';
import { simulate } from '../simulate/simulate.ts';
import { validate } from '../validate/validate.ts';
import { shardingLevels } from './data-parallel.ts';

const shapes = [
  ['GPipe', { ranks: 2, microbatches: 3 }],
  ['1F1B', { ranks: 3, microbatches: 4 }],
  ['LoopedBFS', { ranks: 2, stagesPerRank: 3, microbatches: 3 }],
  ['Interleaved1F1B', { ranks: 2, stagesPerRank: 3, microbatches: 4 }],
  ['InterleavedZeroBubble', { ranks: 2, stagesPerRank: 3, microbatches: 4 }],
  ['ZBVZeroBubble', { ranks: 2, microbatches: 4 }],
  ['DualPipeV', { ranks: 2, microbatches: 6 }],
  ['ZBH1', { ranks: 3, microbatches: 4 }],
  ['ZB1P', { ranks: 3, microbatches: 4 }],
  ['VHalf', { ranks: 3, microbatches: 4 }],
] as const;

/** Two stages of 100 bytes fit beside the shards; a third one does not. */
const limited = (schedule: Schedule): DataParallelPlan => ({
  level: 'parameters',
  parameters: 100,
  shards: 4,
  memoryLimit: 25 * Math.ceil(schedule.stagesPerRank) + 200,
});

const texts = (schedule: Schedule): string[][] => schedule.order.map((row) => row.map((item) => formatAction(item)));
const isCollective = (text: string): boolean => /UNSHARD|RESHARD|REDUCE_GRAD/.test(text);
const rebuilt = (schedule: Schedule, order: string[][]): Schedule =>
  Schedule.from({
    order,
    stages: schedule.stages,
    microbatches: schedule.microbatches,
    stageToRank: schedule.stageToRank,
  });

/** Peak bytes of parameters, counted action by action. */
function counted(row: readonly string[], stages: number, { bytes = 100, shards = 4 } = {}): number {
  let held = (stages * bytes) / shards;
  let peak = held;
  for (const text of row) {
    if (text.includes('UNSHARD')) held += bytes;
    if (text.includes('RESHARD')) held -= bytes;
    peak = Math.max(peak, held);
  }
  return peak;
}

describe.each(shapes)('%s', (name, shape) => {
  const built = buildSchedule(name, shape);
  const plan = limited(built);
  const lowered = lower(built, { dataParallel: plan });

  test('keeps all rules, the limit, and reduces every stage once', () => {
    expect(validate(lowered, { dataParallel: plan })).toEqual([]);
    const simulation = simulate(lowered, { parameters: 100, shards: 4, unshard: 0.7, reduceGrad: 0.4 });
    expect(Array.from(simulation.reductions)).toEqual(new Array(built.stages).fill(1));
    const gathers = new Array<number>(built.stages).fill(0);
    for (const text of texts(lowered).flat()) if (text.includes('UNSHARD')) gathers[Number.parseInt(text, 10)]!++;
    expect(Array.from(simulation.allGathers)).toEqual(gathers);
    texts(lowered).forEach((row, rank) => {
      const peak = counted(row, built.stagesOf(rank).length);
      expect(simulation.parameterPeak[rank]).toBe(peak);
      expect(peak).toBeLessThanOrEqual(plan.memoryLimit as number);
    });
    const compute = (schedule: Schedule): string[][] =>
      texts(schedule).map((row) => row.filter((text) => text !== '' && !isCollective(text) && !/SEND|RECV/.test(text)));
    expect(compute(lowered)).toEqual(compute(built));
  });

  test('without a limit every stage is gathered once', () => {
    const free = lower(built, { dataParallel: { level: 'parameters', shards: 2 } });
    expect(Array.from(simulate(free).allGathers)).toEqual(new Array(built.stages).fill(1));
    expect(validate(free, { dataParallel: { level: 'parameters', shards: 2 } })).toEqual([]);
  });

  test('every collective that is taken out is missed by name', () => {
    const order = texts(lowered);
    let tried = 0;
    order.forEach((row, rank) => {
      row.forEach((text, slot) => {
        if (!isCollective(text)) return;
        tried++;
        const without = order.map((cells, r) => (r === rank ? cells.filter((_, s) => s !== slot) : cells));
        const found = validate(rebuilt(lowered, without), { dataParallel: plan });
        expect(
          found.some(({ explanation }) => explanation.includes(text)),
          `${text} of rank ${rank}`,
        ).toBe(true);
      });
    });
    expect(tried).toBeGreaterThanOrEqual(3 * built.stages);
  });

  test('every collective that is moved before its cause is refused by name', () => {
    const order = texts(lowered);
    order.forEach((row, rank) => {
      row.forEach((text, slot) => {
        if (!isCollective(text)) return;
        const stage = Number.parseInt(text, 10);
        const uses = (cell: string): boolean =>
          !isCollective(cell) && !/SEND|RECV/.test(cell) && new RegExp(`(^|[(;])${stage}[FIWB]`).test(cell);
        // An UNSHARD goes behind the first use, the others go before the last one.
        const to = text.includes('UNSHARD')
          ? row.findIndex((cell, s) => s > slot && uses(cell))
          : row.findLastIndex((cell, s) => s < slot && uses(cell));
        const moved = [...row];
        moved.splice(slot, 1);
        moved.splice(to, 0, text);
        const found = validate(
          rebuilt(
            lowered,
            order.map((cells, r) => (r === rank ? moved : cells)),
          ),
          {
            dataParallel: plan,
          },
        );
        expect(
          found.some(({ explanation }) => explanation.includes(text)),
          `${text} of rank ${rank}`,
        ).toBe(true);
      });
    });
  });
});

describe('residency', () => {
  const schedule = buildSchedule('Interleaved1F1B', { ranks: 2, stagesPerRank: 4, microbatches: 8 });

  test('more room, fewer gathers; never more than with a window of as many stages', () => {
    const gathers = (memoryLimit: number): number =>
      simulate(
        lower(schedule, { dataParallel: { level: 'parameters', parameters: 1, shards: 4, memoryLimit } }),
      ).allGathers.reduce((sum, n) => sum + n, 0);
    const window = (stages: number): number =>
      simulate(lower(schedule, { unshardWindow: stages })).allGathers.reduce((sum, n) => sum + n, 0);
    expect([2, 3, 4].map((room) => gathers(1 + room))).toEqual(
      [...[2, 3, 4].map((room) => gathers(1 + room))].sort((a, b) => b - a),
    );
    for (const room of [2, 3, 4]) expect(gathers(1 + room)).toBeLessThanOrEqual(window(room));
    expect(gathers(5)).toBe(schedule.stages);
  });

  test('a limit that one stage does not fit in is refused with the rank and what it needs', () => {
    const dataParallel = { level: 'parameters', parameters: 100, shards: 4, memoryLimit: 150 } as const;
    expect(() => lower(schedule, { dataParallel })).toThrow(
      'lower: the shards of its stages and stage 0 whole needs 200 on rank 0, memoryLimit is 150 (bytes of parameters); raise memoryLimit to at least 200',
    );
  });

  test('as PyTorch does: a number of active stages', () => {
    const torch = lower(
      buildSchedule('Interleaved1F1B', { ranks: 2, stagesPerRank: 4, microbatches: 8, compat: 'torch' }),
      {
        compat: 'torch',
        dataParallel: { level: 'parameters', maxActiveStages: 2 },
      },
    );
    const same = lower(
      buildSchedule('Interleaved1F1B', { ranks: 2, stagesPerRank: 4, microbatches: 8, compat: 'torch' }),
      {
        compat: 'torch',
        unshardWindow: 2,
      },
    );
    expect(torch.toString()).toBe(same.toString());
    expect(() => lower(schedule, { dataParallel: { level: 'parameters', maxActiveStages: 2 } })).toThrow(
      "add compat: 'torch'",
    );
  });

  test('more bytes than the limit are found at the UNSHARD that brings them', () => {
    const rules = { level: 'parameters', parameters: 100, shards: 4 } as const;
    const lowered = lower(schedule, { dataParallel: rules });
    const [first] = validate(lowered, { dataParallel: { ...rules, memoryLimit: 300 } });
    expect(first).toMatchObject({ rule: 'resident-bytes', rank: 0 });
    expect(first!.action).toMatch(/UNSHARD/);
    expect(first!.explanation).toContain('holds 500 bytes of parameters, memoryLimit is 300');
  });

  test('the peak is the same at every speed', () => {
    const plan = limited(schedule);
    const lowered = lower(schedule, { dataParallel: plan });
    const expected = texts(lowered).map((row) => counted(row, 4));
    const cost = fc.double({ min: 0, max: 5, noNaN: true });
    fc.assert(
      fc.property(cost, cost, cost, cost, cost, (...[F, B, unshard, reduceGrad, reshard]) => {
        const simulation = simulate(lowered, { F, B, unshard, reduceGrad, reshard, parameters: 100, shards: 4 });
        expect(Array.from(simulation.parameterPeak)).toEqual(expected);
      }),
      { numRuns: 50 },
    );
  });
});

describe('levels', () => {
  const schedule = buildSchedule('1F1B', { ranks: 2, microbatches: 4 });

  test('only sharded parameters are gathered; every level reduces', () => {
    for (const level of shardingLevels) {
      const lowered = lower(schedule, { dataParallel: { level, shards: 2 } });
      const found = new Set(
        texts(lowered)
          .flat()
          .filter(isCollective)
          .map((text) => text.replace(/\d/g, '')),
      );
      expect([...found].sort()).toEqual(
        level === 'parameters' ? ['REDUCE_GRAD', 'RESHARD', 'UNSHARD'] : ['REDUCE_GRAD'],
      );
      expect(validate(lowered, { dataParallel: { level, shards: 2 } })).toEqual([]);
    }
  });

  test('an UNSHARD where nothing is sharded is refused', () => {
    const lowered = lower(schedule, { dataParallel: { level: 'parameters', shards: 2 } });
    expect(validate(lowered, { dataParallel: { level: 'replicate' } }).map(({ action }) => action)).toEqual([
      '0UNSHARD',
      '0RESHARD',
      '1UNSHARD',
      '1RESHARD',
    ]);
  });

  test('memory of gradients and parameters', () => {
    const costs = { parameters: 8, weightGradient: 8, activation: 0, shards: 4 } as const;
    const end = (sharding: 'optimizer' | 'gradients' | 'parameters'): number => {
      const lowered = lower(schedule, { dataParallel: { level: sharding, shards: 4 } });
      return simulate(lowered, { ...costs, sharding }).memory[0]!.amount.at(-1)!;
    };
    expect(end('optimizer')).toBe(16); // both whole
    expect(end('gradients')).toBe(10); // 8 + 8 / 4
    expect(end('parameters')).toBe(4); // 8 / 4 + 8 / 4
  });
});

describe('times', () => {
  const schedule = lower(buildSchedule('1F1B', { ranks: 1, microbatches: 1 }), {
    dataParallel: { level: 'parameters', shards: 4 },
  });

  test('a gathering is n - 1 rounds of a shard each; compute waits for its end', () => {
    const simulation = simulate(schedule, {
      F: 1,
      B: 2,
      parameters: 400,
      shards: 4,
      collective: { bandwidth: 100, latency: 0.5 },
    });
    expect(simulation.costs.unshard[0]).toBe(4.5); // 3 rounds of 0.5 + 100 / 100
    expect(simulation.startOf(0, 1)).toBe(4.5);
    expect(simulation.makespan).toBe(4.5 + 3 + 4.5);
    const hybrid = simulate(schedule, {
      parameters: 400,
      shards: 4,
      replicas: 2,
      collective: { bandwidth: 100, latency: 0.5 },
    });
    expect(hybrid.costs.reduceGrad[0]).toBe(4.5 + 2 * (0.5 + 50 / 100)); // each shard's 100 bytes over 2 replicas, twice
    const replicate = simulate(schedule, { parameters: 400, replicas: 4, collective: { bandwidth: 100 } });
    expect(replicate.costs.reduceGrad[0]).toBe(2 * 3);
  });

  test('with costs the placement is no slower than gathering at the last moment, and hides what it can', () => {
    const built = buildSchedule('Interleaved1F1B', { ranks: 4, stagesPerRank: 4, microbatches: 8 });
    const costs = { F: 1, B: 2, unshard: 1.5, reduceGrad: 1 };
    const plan = { level: 'parameters', parameters: 1, shards: 4, memoryLimit: 4 } as const;
    const chosen = simulate(lower(built, { dataParallel: { ...plan, costs } }), costs);
    const late = simulate(lower(built, { dataParallel: plan }), costs);
    expect(chosen.makespan).toBeLessThanOrEqual(late.makespan);
    const early = simulate(lower(built, { dataParallel: { ...plan, memoryLimit: 100, costs } }), costs);
    expect(early.makespan).toBeLessThanOrEqual(chosen.makespan);
    expect(early.makespan).toBeLessThanOrEqual(simulate(built, { F: 1, B: 2 }).makespan + 1.5 * 4 + 1 * 4);
  });
});

describe('replicas', () => {
  const lowered = lower(buildSchedule('Interleaved1F1B', { ranks: 2, stagesPerRank: 2, microbatches: 4 }), {
    dataParallel: { level: 'parameters', shards: 2 },
  });

  test('the same schedule starts the same collectives', () => {
    expect(validate(lowered, { replicas: [lowered, Schedule.from({ ...lowered.toJSON() })] })).toEqual([]);
  });

  test('two collectives in another order are found, with both names', () => {
    const order = texts(lowered);
    const places = order[1]!.flatMap((text, slot) => (/UNSHARD/.test(text) ? [slot] : []));
    const [a, b] = [places[0]!, places[1]!];
    [order[1]![a], order[1]![b]] = [order[1]![b]!, order[1]![a]!];
    const [first] = validate(lowered, { replicas: [rebuilt(lowered, order)] });
    expect(first).toMatchObject({ rule: 'collective-order', rank: 1, slot: a });
    expect(first!.explanation).toContain('replica 1 starts 3UNSHARD where this one starts 1UNSHARD');
  });
});
