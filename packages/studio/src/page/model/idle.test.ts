/** @file Idle time by cause: the parts add up to the bubble that the simulator finds. */
import { buildSchedule, type Costs, scheduleDefinitions, simulate } from '@pipewright/schedule';
import { describe, expect, test } from 'vitest';
import { idleByCause, sayIdle } from './idle.ts';

describe('idle time', () => {
  test('of 1F1B is all filling and draining: rank 0 waits for its first gradient, the last rank for its first activation', () => {
    const simulation = simulate(buildSchedule('1F1B', { ranks: 4, microbatches: 8 }));
    expect(idleByCause(simulation)).toMatchObject([
      { rank: 0, busy: 24, fill: 6, drain: 3, activation: 0, gradient: 0, message: 0 },
      { rank: 1, busy: 24, fill: 5, drain: 4, activation: 0, gradient: 0, message: 0 },
      { rank: 2, busy: 24, fill: 4, drain: 5, activation: 0, gradient: 0, message: 0 },
      { rank: 3, busy: 24, fill: 3, drain: 6, activation: 0, gradient: 0, message: 0 },
    ]);
    expect(simulation.bubble.makespan).toBeCloseTo(9 / 33, 12);
    expect(sayIdle(simulation)).toBe(
      'Idle: 13.7% while the pipeline fills, 13.6% while it drains, 0.0% in between. More microbatches reduce it.',
    );
  });

  test('of a step without a backward is what comes before the first and after the last action of a rank', () => {
    const [first, last] = idleByCause(
      simulate({
        order: [
          ['0F0', '0F1'],
          ['1F0', '1F1'],
        ],
      }),
    );
    expect(first).toMatchObject({ fill: 0, drain: 1 });
    expect(last).toMatchObject({ fill: 1, drain: 0 });
  });

  test.each(scheduleDefinitions.map(({ name }) => name))('of %s adds up, and so does what is said of it', (name) => {
    for (const costs of [{}, { comm: 0.3 }, { F: [1, 1.2, 2, 1, 1, 1, 1, 1], comm: 0.1 }] satisfies Costs[]) {
      const schedule = buildSchedule(name, { ranks: 4, microbatches: 8 });
      const spread = 'F' in costs ? { ...costs, F: costs.F!.slice(0, schedule.stages) } : costs;
      const simulation = simulate(schedule, spread);
      const { makespan, bubble } = simulation;
      for (const { busy, fill, drain, activation, gradient, message } of idleByCause(simulation))
        expect(busy + fill + drain + activation + gradient + message).toBeCloseTo(makespan, 9);
      const said = sayIdle(simulation);
      if (!said.startsWith('Idle:')) continue;
      const shares = [...said.split('in between.')[0]!.matchAll(/([\d.]+)%/g)].map(([, text]) => Number(text));
      expect(shares).toHaveLength(3);
      expect(shares.reduce((a, b) => a + b, 0)).toBeCloseTo(Math.round(bubble.makespan * 1000) / 10, 9);
    }
  });
});
