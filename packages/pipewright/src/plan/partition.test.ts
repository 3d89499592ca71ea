/** @file The partition against all partitions there are, on random chains with and without limits. */
import { describe, expect, test } from 'vitest';
import { PipelineError } from '../base/errors.ts';
import { type PartitionProblem, PartitionRules, partition } from './partition.ts';
import type { UnitCosts } from './unit-costs.ts';

/** Numbers that look random and are the same on every machine. */
function generator(seed: number): (most: number) => number {
  let state = seed * 2654435761 + 1;
  return (most) => {
    state = (Math.imul(state, 1664525) + 1013904223) >>> 0;
    return Math.floor((state / 2 ** 32) * most);
  };
}

function randomProblem(seed: number): PartitionProblem {
  const next = generator(seed);
  const units = Array.from({ length: 1 + next(12) }, (_, i): UnitCosts => {
    const activation = next(50);
    return {
      name: `unit ${i}`,
      begins: `node_${i}`,
      F: next(20),
      I: next(20),
      W: next(20),
      activation,
      retained: next(activation + 1),
      input: next(30),
      parameters: next(40),
    };
  });
  const stages = 1 + next(Math.min(4, units.length));
  const isLimited = next(3) > 0;
  return {
    units,
    stages,
    inFlight: Array.from({ length: stages }, (_, i) => stages - i + next(2)),
    slowness: Array.from({ length: stages }, () => 1 + next(3) / 2),
    secondsPerByte: next(2) / 4,
    stateFactor: 1 + next(4),
    mayRecompute: next(2) === 0,
    ...(isLimited ? { limits: Array.from({ length: stages }, () => (next(5) === 0 ? null : 100 + next(900))) } : {}),
  };
}

/** The best of all divisions, one after the other; null where none fits. */
function bruteForce(problem: PartitionProblem): { slowest: number; sent: number } | null {
  const rules = new PartitionRules(problem);
  const count = problem.units.length;
  let best: { slowest: number; sent: number } | null = null;
  const visit = (begins: readonly number[]): void => {
    if (begins.length < problem.stages) {
      for (let at = begins.at(-1)! + 1; at < count; at++) visit([...begins, at]);
      return;
    }
    let [slowest, sent] = [0, 0];
    for (const [stage, from] of begins.entries()) {
      const to = begins[stage + 1] ?? count;
      const ways = [false, ...(problem.mayRecompute === true ? [true] : [])]
        .map((recompute) => rules.place(stage, from, to, recompute))
        .filter(({ bytes }) => bytes <= (problem.limits?.[stage] ?? Number.POSITIVE_INFINITY));
      if (ways.length === 0) return;
      slowest = Math.max(slowest, Math.min(...ways.map(({ seconds }) => seconds)));
      if (from > 0) sent += problem.units[from]?.input as number;
    }
    if (best === null || slowest < best.slowest || (slowest === best.slowest && sent < best.sent))
      best = { slowest, sent };
  };
  visit([0]);
  return best;
}

function planned(problem: PartitionProblem): ReturnType<typeof partition> | null {
  try {
    return partition(problem);
  } catch (error) {
    expect(error).toBeInstanceOf(PipelineError);
    expect((error as PipelineError).code).toBe('MEMORY_LIMIT');
    return null;
  }
}

test('equals the best of all partitions in 600 random cases, of which many do not fit', () => {
  let refused = 0;
  let recomputed = 0;
  for (let seed = 1; seed <= 600; seed++) {
    const problem = randomProblem(seed);
    const [got, want] = [planned(problem), bruteForce(problem)];
    const where = `seed ${seed}`;
    expect(got === null, where).toBe(want === null);
    if (got === null || want === null) {
      refused++;
      continue;
    }
    expect(got.slowest, where).toBe(want.slowest);
    expect(got.sent, where).toBe(want.sent);
    if (got.recompute.includes(true)) recomputed++;
    const rules = new PartitionRules(problem);
    got.begins.forEach((from, stage) => {
      const to = got.begins[stage + 1] ?? problem.units.length;
      expect(to, where).toBeGreaterThan(from);
      const { bytes, seconds } = rules.place(stage, from, to, got.recompute[stage] as boolean);
      expect(bytes, where).toBeLessThanOrEqual(problem.limits?.[stage] ?? Number.POSITIVE_INFINITY);
      expect(seconds, where).toBeLessThanOrEqual(got.slowest);
    });
  }
  expect(refused).toBeGreaterThan(20);
  expect(recomputed).toBeGreaterThan(20);
});

describe('what cannot be', () => {
  const unit: UnitCosts = {
    name: 'a',
    begins: 'a',
    F: 1,
    I: 1,
    W: 1,
    activation: 10,
    retained: 5,
    input: 2,
    parameters: 100,
  };

  test('is refused with the stage and the bytes that are missing', () => {
    const problem = { units: [unit, unit, unit], stages: 2, limits: [1000, 500], inFlight: [2, 1], stateFactor: 4 };
    // Two units of 400 bytes and 10 or 20 of activations fit in the first stage, one unit in the second.
    expect(partition(problem).begins).toEqual([0, 2]);
    try {
      partition({ ...problem, limits: [700, 300] });
      expect.unreachable();
    } catch (error) {
      expect(error).toMatchObject({ code: 'MEMORY_LIMIT', details: { stage: 0, missingBytes: 140 } });
      expect((error as Error).message).toMatch(/stage 0 lacks at least 140 B; give more memory there/);
    }
  });

  test('and so is what is no problem at all', () => {
    expect(() => partition({ units: [unit], stages: 2 })).toThrow(/1 units make at most 1 stages/);
    expect(() => partition({ units: [], stages: 1 })).toThrow(/at least one unit/);
    expect(() => partition({ units: [{ ...unit, F: Number.NaN }], stages: 1 })).toThrow(/F of unit 0 \(a\) is NaN/);
    expect(() => partition({ units: [unit], stages: 1, limits: [] })).toThrow(/one entry for each of the 1 stages/);
    expect(() => partition(undefined as never)).toThrow(/the problem is undefined/);
    expect(() => partition({ units: [unit], stages: 1, memory: 3 } as never)).toThrow(/unknown option 'memory'/);
  });
});
