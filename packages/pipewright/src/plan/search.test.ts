/** @file The planner: never slower than any of our schedules, within the memory, exact about what it predicts. */
import {
  buildSchedule,
  lower,
  type PipelinePlan,
  planCosts,
  predictPlan,
  readPlan,
  type ShardingLevel,
  scheduleDefinitions,
  shardingLevels,
  simulate,
} from '@pipewright/schedule';
import { describe, expect, test } from 'vitest';
import type { PipelineError } from '../base/errors.ts';
import { formatBytes } from '../pipe/picture.ts';
import { formatPlans, sensitivities } from './report.ts';
import { type PlanOptions, planPipeline } from './search.ts';
import type { UnitCosts } from './unit-costs.ts';

/** A model of layers with a cheap beginning and an expensive end, as language models are. */
function units(count: number, rows = 1): UnitCosts[] {
  return Array.from({ length: count }, (_, i) => {
    const weight = i === 0 ? 0.3 : i === count - 1 ? 2.5 : 1;
    return {
      name: i === 0 ? 'embed' : i === count - 1 ? 'head' : `layers.${i - 1}`,
      begins: `node_${i}`,
      F: 1e-3 * weight * rows,
      I: 1.2e-3 * weight * rows,
      W: 0.9e-3 * weight * rows,
      activation: 1e6 * rows,
      retained: 4e5 * rows,
      input: 1e5 * rows,
      parameters: 2e6 * weight,
    };
  });
}

const base: PlanOptions = { machine: { ranks: 4 }, tables: [{ rows: 1, units: units(18) }], batch: 16 };

test('the first stage has no input half: all of its backward is in the weight half, as in a run', () => {
  const [plan] = planPipeline({ ...base, schedules: ['ZBH1'] }).plans;
  const [first, second] = plan?.costs ?? [];
  const own = units(18).slice(0, plan?.units[0]?.length);
  expect(first?.I).toBe(0);
  expect(first?.W).toBeCloseTo(
    own.reduce((sum, { I, W }) => sum + I + W, 0),
    12,
  );
  expect(second?.I).toBeGreaterThan(0);
});

test('the best plan is at least as fast as every schedule with equal numbers of layers', () => {
  const { plans, refused } = planPipeline(base);
  const [best] = plans;
  expect(plans.length).toBe(5);
  expect(plans.map(({ predicted }) => predicted.step)).toEqual(
    plans.map(({ predicted }) => predicted.step).toSorted((a, b) => a - b),
  );
  const all = units(18);
  for (const { name, hasBackward, stagesPerRank } of scheduleDefinitions) {
    if (!hasBackward) continue;
    const per = stagesPerRank.default;
    const stages = 4 * per;
    const cut = (key: 'F' | 'I' | 'W'): number[] =>
      Array.from({ length: stages }, (_, s) =>
        all
          .slice(Math.round((s * 18) / stages), Math.round(((s + 1) * 18) / stages))
          .reduce((sum, u) => sum + u[key], 0),
      );
    const costs = { F: cut('F'), I: cut('I'), W: cut('W') };
    const equal = simulate(buildSchedule(name, { ranks: 4, microbatches: 16, stagesPerRank: per, costs }), costs);
    expect(best?.predicted.step, name).toBeLessThanOrEqual(equal.makespan + 1e-12);
  }
  expect(refused.every(({ why }) => why.length > 0)).toBe(true);
});

test.each([
  ['no limit', { ranks: 4 }],
  ['a slow rank', { ranks: 4, slowness: [1, 1.5, 1, 1], bandwidth: 1e9 }],
  ['little memory', { ranks: 2, memory: 120e6 }],
])('no schedule of ours is faster on the stages that were chosen: %s', (_, machine) => {
  const [best] = planPipeline({ ...base, machine }).plans;
  if (best === undefined) expect.unreachable();
  const limit = 'memory' in machine ? (machine.memory as number) : Number.POSITIVE_INFINITY;
  let compared = 0;
  for (const { name, hasBackward, stagesPerRank } of scheduleDefinitions) {
    const perRank = best.stages / best.ranks;
    if (!hasBackward || perRank < stagesPerRank.least || perRank > stagesPerRank.most) continue;
    const shape = { ranks: best.ranks, stages: best.stages, microbatches: best.microbatches };
    const placed = { ...best, stageToRank: buildSchedule(name, shape).stageToRank };
    const order = buildSchedule(name, { ...shape, costs: planCosts(placed) });
    const simulation = simulate(order, planCosts(placed));
    if (Math.max(...simulation.peakMemory) > limit) continue;
    compared++;
    expect(best.predicted.step, name).toBeLessThanOrEqual(simulation.makespan * (1 + 1e-12));
  }
  expect(compared).toBeGreaterThan(2);
});

test('the predicted step is what the simulator says of the stages of the plan', () => {
  for (const schedule of ['1F1B', 'GPipe', 'Interleaved1F1B'] as const) {
    const [plan] = planPipeline({ ...base, schedules: [schedule] }).plans;
    if (plan === undefined) expect.unreachable();
    const costs = { F: plan.costs.map(({ F }) => F), I: plan.costs.map(({ I }) => I), W: plan.costs.map(({ W }) => W) };
    const order = buildSchedule(schedule, { ranks: 4, microbatches: 16, stages: plan.stages });
    expect(order.stageToRank).toEqual(plan.stageToRank);
    expect(simulate(order, costs).makespan).toBeCloseTo(plan.predicted.step, 12);
  }
});

test('plans are plain data, hold every unit once, and keep within the memory', () => {
  for (const memory of [undefined, 60e6]) {
    const { plans } = planPipeline({ ...base, machine: { ranks: 4, bandwidth: 1e9, latency: 1e-5, memory } });
    for (const plan of plans) {
      expect(JSON.parse(JSON.stringify(plan))).toEqual(plan);
      expect(plan.units.flat()).toEqual(units(18).map(({ name }) => name));
      expect(plan.cutBefore).toEqual(
        plan.units.slice(1).map(([first]) => units(18).find(({ name }) => name === first)?.begins),
      );
      if (memory !== undefined) expect(Math.max(...plan.predicted.peak)).toBeLessThanOrEqual(memory);
      expect(plan.predicted.rowsPerSecond).toBeCloseTo(16 / plan.predicted.step, 6);
    }
  }
});

test('memory decides: with less of it the step never gets shorter, and stages compute again before it is refused', () => {
  const schedules = ['1F1B', 'GPipe'] as const;
  let before = 0;
  let recomputed = 0;
  let missing = Number.POSITIVE_INFINITY;
  for (const memory of [120e6, 70e6, 56e6, 50e6, 30e6]) {
    try {
      const [best] = planPipeline({ ...base, schedules, machine: { ranks: 4, memory } }).plans;
      expect(missing).toBe(Number.POSITIVE_INFINITY); // nothing fits again after it did not
      expect(best?.predicted.step).toBeGreaterThanOrEqual(before);
      before = best?.predicted.step ?? 0;
      recomputed += best?.recompute.filter(Boolean).length ?? 0;
    } catch (error) {
      expect(error).toMatchObject({ code: 'MEMORY_LIMIT' });
      const { details, message } = error as PipelineError;
      missing = details['missingBytes'] as number;
      expect(message).toContain(`rank ${String(details['rank'])} lacks ${formatBytes(missing)}`);
    }
  }
  expect(recomputed).toBeGreaterThan(0);
  expect(missing).toBeGreaterThan(0);
  expect(missing).toBeLessThan(30e6);
});

test('a slow rank gets less to do, and the size of microbatches is chosen', () => {
  const slowness = [1, 1, 2, 1];
  const { plans } = planPipeline({ ...base, schedules: ['1F1B'], machine: { ranks: 4, slowness } });
  const counts = plans[0]?.costs.map(({ F, I, W }) => F + I + W) ?? [];
  expect(counts[2]).toBeLessThan(Math.min(counts[0] as number, counts[1] as number));
  const tables = [1, 4].map((rows) => ({
    rows,
    units: units(18, rows).map((unit) => ({ ...unit, F: unit.F + 2e-3 })),
  }));
  const chosen = planPipeline({ ...base, tables, schedules: ['1F1B'] }).plans[0];
  const alone = tables.map((table) => planPipeline({ ...base, tables: [table], schedules: ['1F1B'] }).plans[0]);
  expect(chosen?.predicted.step).toBe(Math.min(...alone.map((plan) => plan?.predicted.step as number)));
});

test('what would help: a faster stage never makes the step longer, and more memory only where memory is short', () => {
  const options: PlanOptions = { ...base, schedules: ['1F1B'], machine: { ranks: 4, memory: 56e6 } };
  const [best] = planPipeline(options).plans;
  const found = sensitivities(options, best as never);
  expect(found.length).toBeGreaterThan(0);
  for (const { gain } of found) expect(gain).toBeGreaterThan(0);
  expect(found.map(({ gain }) => gain)).toEqual(found.map(({ gain }) => gain).toSorted((a, b) => b - a));
  expect(found.some(({ change }) => /stage \d 10% faster/.test(change))).toBe(true);
  const text = formatPlans(planPipeline(options), found);
  expect(text).toMatch(/^ {2}schedule +stages +microbatches x rows +step +rows\/s +bubble +peak +why/m);
  expect(text).toMatch(/1F1B +4 +16 x 1/);
});

describe('pipelines beside each other', () => {
  /** Few layers on eight ranks: little to divide into stages. */
  const few = (machine: Partial<PlanOptions['machine']>, more: Partial<PlanOptions> = {}): PlanOptions => ({
    machine: { ranks: 8, latency: 1e-6, ...machine },
    tables: [{ rows: 1, units: units(9) }],
    batch: 32,
    replicas: 'all',
    schedules: ['1F1B', 'GPipe', 'ZBH1'],
    ...more,
  });

  test('a fast link makes replicas worth it, a slow one does not', () => {
    const [fast] = planPipeline(few({ bandwidth: 1e12 })).plans;
    const [slow] = planPipeline(few({ bandwidth: 2e7 })).plans;
    expect(fast?.dataParallel?.replicas).toBeGreaterThan(1);
    expect(slow?.dataParallel).toBeUndefined();
    expect(fast?.ranks).toBe(8 / (fast?.dataParallel?.replicas ?? 1));
    expect(fast?.microbatches).toBe(32 / (fast?.dataParallel?.replicas ?? 1));
    expect(fast?.predicted.rowsPerSecond).toBeCloseTo(32 / (fast?.predicted.step ?? 1), 6);
  });

  test('the step counts the sum of gradients, as the simulator does it', () => {
    const options = few({ ranks: 4, bandwidth: 1e9 }, { replicas: [2], schedules: ['1F1B'], mayRecompute: false });
    for (const level of shardingLevels) {
      const [plan] = planPipeline({ ...options, levels: [level] }).plans;
      if (plan === undefined) expect.unreachable();
      expect(plan.dataParallel).toEqual({ replicas: 2, level });
      const order = buildSchedule('1F1B', { ranks: 2, microbatches: 16 });
      const bytes = plan.costs.map(({ parameters }) => parameters);
      const lowered = lower(order, { dataParallel: { level, shards: 2, parameters: bytes, memoryLimit: 'least' } });
      const { F = 1, I = 1, W = 1, comm = 0 } = planCosts(plan);
      const simulation = simulate(lowered, {
        ...{ F, I, W, comm, overlap: 'parts' },
        ...(level === 'replicate' ? { replicas: 2 } : { shards: 2, sharding: level }),
        collective: { bandwidth: 1e9, latency: 1e-6, parameterBytes: bytes, gradientBytes: bytes },
        parameters: bytes,
      });
      // What only gradients or optimizer states are divided of is gathered before the first action of a step.
      const before = level === 'optimizer' || level === 'gradients' ? 1e-6 + (bytes[0] ?? 0) / 2 / 1e9 : 0;
      expect(plan.predicted.step, level).toBeGreaterThanOrEqual(simulation.makespan * (1 - 1e-9));
      expect(plan.predicted.step, level).toBeLessThanOrEqual((simulation.makespan + before) * (1 + 1e-9));
      expect(plan.predicted.parameters, level).toEqual(level === 'parameters' ? [...simulation.parameterPeak] : bytes);
    }
  });

  test('a limit that only shards can meet is met by shards, and what nothing meets is named', () => {
    // Every rank holds the whole model, in one stage or in four; its state is four times its parameters.
    const common = { replicas: [4], mayRecompute: false } as const;
    const one = few({ bandwidth: 1e12, ranks: 4 }, { ...common, schedules: ['1F1B'] });
    const four = few({ bandwidth: 1e12, ranks: 4 }, { ...common, schedules: ['LoopedBFS'], stagesPerRank: [4] });
    const planFor = (options: PlanOptions, level: ShardingLevel): PipelinePlan | undefined =>
      planPipeline({ ...options, levels: [level] }).plans[0];
    const needs = (options: PlanOptions): number[] =>
      shardingLevels.map((level) => planFor(options, level)!.predicted.peak[0]!);
    const whole = units(9).reduce((sum, { parameters }) => sum + parameters, 0);
    const activations = units(9).reduce((sum, { activation }) => sum + activation, 0);
    expect(needs(one)).toEqual([
      4 * whole + activations,
      2 * whole + (2 * whole) / 4 + activations,
      2 * whole + (2 * whole) / 4 + activations, // gradients are whole until they are summed
      (3 * whole) / 4 + 2 * whole + activations, // and so is the only stage, beside its shard
    ]);
    const [replicate, optimizer, gradients, parameters] = needs(four) as [number, number, number, number];
    expect([replicate - optimizer > whole, gradients <= optimizer, parameters < gradients]).toEqual([true, true, true]);
    const plan = planFor(four, 'parameters');
    const largest = Math.max(...(plan?.costs.map((stage) => stage.parameters) ?? []));
    expect(plan?.predicted.parameters).toEqual([whole / 4 + largest]);
    const tight = { ...four, machine: { ...four.machine, memory: parameters } };
    const limited = planPipeline(tight).plans[0];
    expect(limited?.dataParallel?.level).toBe('parameters');
    expect(Math.max(...(limited?.predicted.peak ?? []))).toBeLessThanOrEqual(parameters);
    expect(() => planPipeline({ ...tight, levels: ['replicate', 'optimizer', 'gradients'] })).toThrow(
      /no plan fits; the closest is LoopedBFS, 4 shards of (optimizer|gradients), 4 stages.*rank 0 lacks [\d.]+ \w?i?B/,
    );
    const missing = 1000;
    try {
      const machine = { ...one.machine, memory: [1e12, 1e12, (needs(one)[1] as number) - missing, 1e12] };
      planPipeline({ ...one, machine });
      expect.unreachable();
    } catch (error) {
      expect(error).toMatchObject({ code: 'MEMORY_LIMIT', details: { rank: 2, missingBytes: missing } });
      expect((error as Error).message).toMatch(
        /the closest is 1F1B, 4 shards of (optimizer|gradients), 1 stage,.*rank 2 lacks 1000 B/,
      );
    }
  });

  test('a pipeline is as slow as the slowest of its ranks, and links are those between rows of a mesh', () => {
    const links = [
      { from: 0, to: 2, bandwidth: 1e6 },
      { from: 0, to: 1, bandwidth: 5e6 },
      { from: 1, to: 2, bandwidth: 1 }, // neither of a pipeline nor of replicas
    ];
    const machine = {
      ranks: 4,
      bandwidth: 1e9,
      latency: 1e-6,
      slowness: [1, 3, 1, 1],
      memory: [4e9, 3e9, 2e9, 1e9],
      links,
    };
    const [plan] = planPipeline({ ...base, machine, replicas: [2], levels: ['replicate'], schedules: ['1F1B'] }).plans;
    if (plan === undefined) expect.unreachable();
    const { F, comm, collective } = planCosts(plan);
    expect((F as readonly number[])[0]).toBeCloseTo(3 * (plan.costs[0]?.F ?? 0), 12);
    expect((F as readonly number[])[1]).toBeCloseTo(plan.costs[1]?.F ?? 0, 12);
    expect(comm).toMatchObject({ bandwidth: 1e9, links: [{ from: 0, to: 1, bandwidth: 1e6, latency: 1e-6 }] });
    expect(collective).toMatchObject({ bandwidth: 5e6, latency: 1e-6 });
    expect(formatPlans({ plans: [plan], refused: [], simulated: 1 })).toMatch(/1F1B +2 x 2, replicas +2 +8 x 1/);
    expect(predictPlan(plan).predicted).toEqual(plan.predicted);
    const text = JSON.stringify(plan);
    expect(readPlan(text)).toEqual(plan);
    expect(() => readPlan(text.replace('"replicate"', '"everything"'))).toThrow(
      /dataParallel is .* with a level of replicate/,
    );
  });

  test('what is no number of pipelines is refused', () => {
    expect(() => planPipeline({ ...base, replicas: [3] })).toThrow(/numbers that divide the 4 ranks/);
    expect(() => planPipeline({ ...base, replicas: 2 as never })).toThrow(/replicas is 2/);
    expect(() => planPipeline({ ...base, levels: ['all'] as never })).toThrow(/some of replicate, optimizer/);
    const { refused } = planPipeline({ ...base, batch: 6, replicas: 'all', schedules: ['1F1B'] });
    expect(refused).toContainEqual({
      what: '4 replicas, microbatches of 1 row',
      why: 'a batch of 6 rows is not divided evenly',
    });
  });
});

describe('speed and refusals', () => {
  test('8 ranks x 48 layers x 64 microbatches over all schedules', () => {
    const result = planPipeline({
      machine: { ranks: 8, memory: 400e6 },
      tables: [{ rows: 1, units: units(50) }],
      batch: 64,
    });
    expect(result.plans.length).toBe(5);
    expect(result.simulated).toBeLessThan(20_000);
  }, 60_000);

  test('what is no question is refused', () => {
    expect(() => planPipeline(undefined as never)).toThrow(/the options is undefined/);
    expect(() => planPipeline({ ...base, machine: { ranks: 0 } })).toThrow(/machine.ranks is 0/);
    expect(() => planPipeline({ ...base, machine: { ranks: 4, memory: [1] } })).toThrow(
      /machine\.memory is an array of 1; give .* one for each of the 4 ranks/,
    );
    expect(() => planPipeline({ ...base, tables: [] })).toThrow(/tables is an array of 0/);
    expect(() => planPipeline({ ...base, batch: 15, tables: [{ rows: 2, units: units(18) }] })).toThrow(
      /a multiple of 2 rows/,
    );
    expect(() => planPipeline({ ...base, tables: [{ rows: 1, units: units(3) }] })).toThrow(
      /the model has only 3 layers, too few for 4 stages/,
    );
  });
});
