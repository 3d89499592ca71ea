/** @file Plans as data: what is read, what is refused, and what follows from one. */
import { describe, expect, test } from 'vitest';
import { buildSchedule } from '../generate/build-schedule.ts';
import { simulate } from '../simulate/simulate.ts';
import { formatComparison } from './compare.ts';
import { heldPeaks } from './held-peaks.ts';
import { isPlan, type PipelinePlan, readPlan, type StageMemory } from './plan.ts';
import { planCosts, planSchedule, planSimulation } from './plan-simulation.ts';
import { predictPlan } from './refit.ts';

const costs = { F: 1, I: 1, W: 1, activation: 100, retained: 50, parameters: 1000, input: 10 };
const bare: PipelinePlan = {
  version: 1,
  schedule: '1F1B',
  ranks: 2,
  stages: 2,
  stageToRank: [0, 1],
  microbatches: 4,
  rows: 2,
  units: [['layers.0'], ['layers.1']],
  cutBefore: ['linear_1'],
  recompute: [false, false],
  costs: [costs, costs],
  stateFactor: 4,
  machine: {},
  predicted: { step: 1, rowsPerSecond: 1, bubble: 0, peak: [0, 0], held: [0, 0], messages: 0, messageBytes: 0 },
  why: '',
};

test('a plan travels as JSON, and its prediction follows from its costs', () => {
  const plan = predictPlan(readPlan(JSON.stringify(bare)));
  const simulation = simulate(buildSchedule('1F1B', { ranks: 2, microbatches: 4 }), { F: 1, I: 1, W: 1 });
  expect(plan.predicted).toEqual({
    step: simulation.makespan,
    rowsPerSecond: 8 / simulation.makespan,
    bubble: simulation.bubble.makespan,
    peak: [4200, 4100],
    held: [200, 100],
    messages: 8,
    messageBytes: 80,
  });
  expect(planSimulation(plan).makespan).toBe(simulation.makespan);
  expect(planCosts({ ...plan, machine: { slowness: [1, 2] } }).F).toEqual([1, 2]);
  expect(planSchedule({ ...bare, schedule: 'searched', order: planSchedule(bare).toJSON() }).toString()).toBe(
    planSchedule(bare).toString(),
  );
});

test.each([
  ['{"version":1', /not JSON/],
  ['[]', /a plan is an object/],
  ['{"version":2}', /version is 2/],
  [{ ...bare, ranks: 0 }, /ranks is 0/],
  [{ ...bare, stages: 1e9 }, /stages is 1000000000/],
  [{ ...bare, stageToRank: [0, 2] }, /stageToRank\[1\] is 2/],
  [{ ...bare, cutBefore: [] }, /cutBefore has not 1 entries/],
  [{ ...bare, costs: [costs, { ...costs, F: Number.NaN }] }, /costs\[1\]/],
  [{ ...bare, predicted: { ...bare.predicted, peak: [1] } }, /predicted.peak has not a number for each of the 2 ranks/],
  [{ ...bare, machine: null }, /machine is missing/],
  [{ ...bare, machine: { links: 3 } }, /machine.links is 3, not an array/],
  [{ ...bare, memory: [{}] }, /memory has not 2 entries/],
  [{ ...bare, memory: [{}, {}] }, /memory\[0\] is an object, not what a stage holds/],
])('%j is refused', (value, message) => {
  expect(() => readPlan(value as never)).toThrow(message);
  expect(() => readPlan(value as never)).toThrow(expect.objectContaining({ code: 'BAD_PLAN' }) as Error);
});

test('an order of another shape is refused, and plans are told from schedules', () => {
  const order = buildSchedule('1F1B', { ranks: 2, microbatches: 5 }).toJSON();
  expect(() => planSchedule({ ...bare, order })).toThrow(/the order is for 2 ranks, 2 stages and 5 microbatches/);
  expect(isPlan(bare)).toBe(true);
  expect(isPlan(order)).toBe(false);
  expect(isPlan(null)).toBe(false);
});

describe('held peaks', () => {
  const nothing = { bytes: 0, kept: 0 };
  const memory = (stage: number, kept: number): StageMemory => ({
    forward: 100,
    inputHalf: 60,
    end: 0,
    inputs: stage === 0 ? [] : [{ stage: stage - 1, bytes: 10, kept, gradient: { bytes: 10, kept: 0 } }],
    output: { bytes: 10, saved: 10, kept: 0, gradient: nothing },
  });

  test('of 1F1B: as many microbatches as are in flight', () => {
    expect(
      heldPeaks(
        buildSchedule('1F1B', { ranks: 4, microbatches: 8 }),
        [0, 1, 2, 3].map((s) => memory(s, 0)),
      ),
    ).toEqual([400, 300, 200, 100]);
  });

  test('stages of one rank share what they hand over', () => {
    const order = (text: string): number[] =>
      heldPeaks(
        planSchedule({
          ...bare,
          ranks: 1,
          stageToRank: [0, 0],
          microbatches: 1,
          order: { order: [text.split(' ')] } as never,
        }),
        [memory(0, 0), memory(1, 10)],
      );
    expect(order('0F0 1F0 1B0 0B0')).toEqual([190]);
    // After 1I the gradient for stage 0 is there; after 0I stage 1 still needs what stage 0 has given up.
    expect(order('0F0 1F0 1I0 0I0 1W0 0W0')).toEqual([190]);
  });
});

test.each([planCosts, planSchedule, planSimulation, predictPlan])(
  '$name refuses what is not a plan, by its own name',
  (take) => {
    expect(() => take({ ...bare, machine: { slowness: 2 } } as never)).toThrow(
      `${take.name}: machine.slowness is 2, not an array; give what pipewright plan wrote`,
    );
  },
);

test('a comparison says nothing of a difference from 0', () => {
  const compared = (predicted: number, recorded: number, error: number) => ({ predicted, recorded, error });
  const comparison = {
    steps: 7,
    step: compared(0.01, 0.011, 0.1),
    bubble: compared(0.25, 0.3, 0.2),
    stages: [],
    actions: [{ stage: 0, kind: 'F' as const, ...compared(0, 0.002, Number.NaN) }],
    memory: [compared(100, 100, 0), null],
    messages: compared(0, 0, Number.NaN),
  };
  expect(formatComparison(comparison)).toMatchInlineSnapshot(`
    "Predicted and recorded, 7 steps; activation memory in bytes
                   predicted  recorded  difference
      step          10.00 ms  11.00 ms      +10.0%
      bubble           25.0%     30.0%
      stage 0 F      0.00 ms   2.00 ms           –
      rank 0 held        100       100       equal"
  `);
});
