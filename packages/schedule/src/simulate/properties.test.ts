/** @file What must hold for every simulated step, whatever the schedule and the costs. */
import fc from 'fast-check';
import { describe, expect, it } from 'vitest';
import type { Costs } from '../costs/costs.ts';
import { buildSchedule } from '../generate/build-schedule.ts';
import { scheduleDefinitions, scheduleNames } from '../generate/registry.ts';
import { lower } from '../lower/lower.ts';
import { action } from '../model/action.ts';
import { Code, wordCode } from '../model/packed.ts';
import { Schedule } from '../model/schedule.ts';
import { improveSchedule } from '../search/improve-schedule.ts';
import { lowerBound } from '../search/lower-bound.ts';
import { simulate } from './simulate.ts';
import type { Simulation } from './simulation.ts';

const trainingNames = scheduleDefinitions.filter(({ hasBackward }) => hasBackward).map(({ name }) => name);

const anyShape = fc.record({
  name: fc.constantFrom(...trainingNames),
  ranks: fc.integer({ min: 1, max: 5 }),
  groups: fc.integer({ min: 1, max: 4 }),
  lowered: fc.boolean(),
  seeds: fc.array(fc.integer({ min: 1, max: 16 }), { minLength: 30, maxLength: 30 }),
  comm: fc.constantFrom(0, 0.5, 2),
  bytes: fc.boolean(),
  overlap: fc.constantFrom('atomic' as const, 'parts' as const),
});

/** A schedule with uneven costs, in quarters so that sums are exact. */
function example(shape: typeof anyShape extends fc.Arbitrary<infer T> ? T : never): {
  simulation: Simulation;
  costs: Costs;
} {
  const { name, ranks, groups, lowered, seeds, comm, overlap } = shape;
  const compute = buildSchedule(name, { ranks, microbatches: (name === 'DualPipeV' ? 2 : 1) * ranks * groups });
  const perStage = (from: number): number[] =>
    Array.from({ length: compute.stages }, (_, s) => seeds[(from + s) % seeds.length]! / 4);
  const costs: Costs = {
    F: perStage(0),
    I: perStage(10),
    W: perStage(20),
    activation: perStage(5),
    overlap,
    comm: shape.bytes ? { bytes: 2, bandwidth: 4, latency: comm } : comm,
  };
  return { simulation: simulate(lowered ? lower(compute) : compute, costs), costs };
}

describe('whatever the schedule and the costs', () => {
  it('no action starts before its inputs, and a rank does one thing at a time', () => {
    fc.assert(
      fc.property(anyShape, (shape) => {
        const { simulation } = example(shape);
        const { schedule } = simulation;
        const ends = new Map<string, number>();
        schedule.forEachLeaf(({ rank, slot, code, stage, microbatch, part }) => {
          const times = simulation.partTimes.get(simulation.offsets[rank]! + slot);
          ends.set(
            `${code}/${stage}/${microbatch}`,
            times === undefined ? simulation.endOf(rank, slot) : times[2 * part + 1]!,
          );
        });
        const endOf = (codes: readonly number[], stage: number, m: number): number =>
          Math.min(...codes.map((code) => ends.get(`${code}/${stage}/${m}`) ?? Number.POSITIVE_INFINITY));
        schedule.forEachLeaf(({ rank, slot, code, stage, microbatch, part }) => {
          const times = simulation.partTimes.get(simulation.offsets[rank]! + slot);
          const start = times === undefined ? simulation.startOf(rank, slot) : times[2 * part]!;
          const { F, I, B, W } = Code;
          if (code === F && stage > 0) expect(start).toBeGreaterThanOrEqual(endOf([F], stage - 1, microbatch));
          if (code === I || code === B) {
            expect(start).toBeGreaterThanOrEqual(endOf([F], stage, microbatch));
            if (stage + 1 < schedule.stages) expect(start).toBeGreaterThanOrEqual(endOf([I, B], stage + 1, microbatch));
          }
          if (code === W) expect(start).toBeGreaterThanOrEqual(endOf([I], stage, microbatch));
        });
        schedule.rows.forEach((row, rank) => {
          let free = 0;
          row.forEach((word, slot) => {
            const code = wordCode(word);
            if (code === Code.Bubble || (code > Code.B && code !== Code.Composite)) return;
            expect(simulation.startOf(rank, slot)).toBeGreaterThanOrEqual(free);
            free = simulation.endOf(rank, slot);
          });
        });
      }),
      { numRuns: 120 },
    );
  });

  it('busy time is the work, idle the rest, and the makespan no less than any order needs', () => {
    fc.assert(
      fc.property(anyShape, (shape) => {
        const { simulation, costs } = example(shape);
        const { schedule } = simulation;
        const work = new Float64Array(schedule.ranks);
        schedule.forEachLeaf(({ rank, code, stage }) => {
          const { F, I, W, B } = simulation.costs;
          if (code <= Code.B) work[rank]! += [0, F[stage]!, I[stage]!, W[stage]!, B[stage]!][code]!;
        });
        expect([...simulation.busy]).toEqual([...work]);
        simulation.idle.forEach((idle, rank) => {
          expect(idle).toBe(simulation.makespan - work[rank]!);
          expect(idle).toBeGreaterThanOrEqual(0);
          expect(simulation.exposed[rank]).toBeLessThanOrEqual(idle);
        });
        expect(simulation.span).toBeLessThanOrEqual(simulation.makespan);
        expect(simulation.bubble.span).toBeLessThanOrEqual(simulation.bubble.makespan);
        if (!shape.lowered && (shape.name !== 'DualPipeV' || shape.overlap === 'atomic')) {
          expect(simulation.makespan).toBeGreaterThanOrEqual(lowerBound(schedule, costs) - 1e-9);
        }
      }),
      { numRuns: 120 },
    );
  });

  it('the critical path is unbroken and as long as the makespan', () => {
    fc.assert(
      fc.property(anyShape, (shape) => {
        const { simulation } = example(shape);
        const path = simulation.criticalPath;
        expect(path[path.length - 1]!.end).toBe(simulation.makespan);
        expect(path[0]!.start).toBe(path[0]!.wait);
        for (let i = 1; i < path.length; i++) expect(path[i]!.start).toBeGreaterThanOrEqual(path[i - 1]!.start);
      }),
      { numRuns: 60 },
    );
  });

  it('memory is never negative and ends where it began', () => {
    fc.assert(
      fc.property(anyShape, (shape) => {
        const { simulation } = example(shape);
        for (const { activation, time, peak } of simulation.memory) {
          expect(Math.min(...activation)).toBeGreaterThanOrEqual(-1e-9);
          expect(activation[activation.length - 1]).toBeCloseTo(0, 9);
          expect(Math.max(...activation)).toBeLessThanOrEqual(peak + 1e-9);
          for (let i = 1; i < time.length; i++) expect(time[i]).toBeGreaterThan(time[i - 1]!);
        }
      }),
      { numRuns: 80 },
    );
  });

  it('a full backward whose gradient leaves in the middle takes a step as long as its halves, one right after the other', () => {
    const full = scheduleDefinitions
      .filter(({ hasBackward, name }) => hasBackward && name !== 'DualPipeV')
      .map(({ name }) => name);
    fc.assert(
      fc.property(anyShape, fc.constantFrom(...full), (shape, name) => {
        const { simulation, costs } = example({ ...shape, name, lowered: false });
        const { schedule } = simulation;
        const halves = Schedule.from({
          ...schedule.toJSON(),
          order: schedule.order.map((row) =>
            row.flatMap((cell) =>
              cell?.kind === 'B'
                ? [action('I', cell.stage, cell.microbatch), action('W', cell.stage, cell.microbatch)]
                : [cell],
            ),
          ),
        });
        const { I = 1 } = costs;
        const early = { ...costs, inputGradient: I };
        const expected = simulate(halves, costs).makespan;
        expect(simulate(schedule, early).makespan).toBe(expected);
        expect(simulate(lower(schedule), early).makespan).toBe(simulate(lower(halves), costs).makespan);
        if (costs.comm === undefined || typeof costs.comm === 'number')
          expect(improveSchedule(schedule, { costs: early, evaluations: 0 }).before).toBe(expected);
        expect(lowerBound(schedule, early)).toBeLessThanOrEqual(expected);
      }),
    );
  });

  it('longer messages never make a step shorter', () => {
    fc.assert(
      fc.property(anyShape, fc.integer({ min: 1, max: 8 }), (shape, more) => {
        const schedule = example({ ...shape, overlap: 'atomic' }).simulation.schedule;
        const short = simulate(schedule, { comm: shape.comm });
        const long = simulate(schedule, { comm: shape.comm + more / 4 });
        expect(long.makespan).toBeGreaterThanOrEqual(short.makespan);
      }),
      { numRuns: 60 },
    );
  });

  it('unit costs put every action into the slot its schedule gives it', () => {
    for (const name of scheduleNames) {
      const schedule = buildSchedule(name, { ranks: 3, microbatches: 6 });
      const simulation = simulate(schedule, { F: 1, I: 1, W: 1, B: 1, overlap: 1 });
      schedule.rows.forEach((row, rank) => {
        row.forEach((word, slot) => {
          if (word !== 0) expect([name, rank, simulation.startOf(rank, slot)]).toEqual([name, rank, slot]);
        });
      });
    }
  });
});
