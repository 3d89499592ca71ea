/** @file Lanes add up: whatever stretch of time is asked for, shares of kinds are what a sum over all bars gives. */

import { fc, test } from '@fast-check/vitest';
import { buildSchedule, lower, pictureOf, scheduleDefinitions, simulate, visualOrder } from '@pipewright/schedule';
import { describe, expect } from 'vitest';
import { barAt, lanesOf, sharesOf } from './lanes.ts';

const shapes = fc.record({
  name: fc.constantFrom(...scheduleDefinitions.filter(({ hasBackward }) => hasBackward).map(({ name }) => name)),
  ranks: fc.integer({ min: 1, max: 5 }),
  microbatches: fc.integer({ min: 1, max: 12 }),
  lowered: fc.boolean(),
  costs: fc.record({
    F: fc.double({ min: 0.1, max: 3, noNaN: true }),
    B: fc.double({ min: 0.1, max: 3, noNaN: true }),
    comm: fc.double({ min: 0, max: 1, noNaN: true }),
  }),
  from: fc.double({ min: 0, max: 1, noNaN: true }),
  to: fc.double({ min: 0, max: 1, noNaN: true }),
});

describe('lanes', () => {
  test.prop([shapes], { numRuns: 150 })('shares of any stretch equal a sum over all bars', (shape) => {
    const { name, ranks, microbatches, costs, lowered } = shape;
    let schedule: ReturnType<typeof buildSchedule>;
    try {
      schedule = buildSchedule(name, { ranks, microbatches });
    } catch {
      return; // a shape that this schedule does not have
    }
    const picture = pictureOf(simulate(lowered ? lower(schedule) : schedule, costs));
    const { lanes, makespan } = lanesOf(picture);
    const [from, to] = [shape.from * makespan, shape.to * makespan].toSorted((a, b) => a - b) as [number, number];
    if (to - from < makespan * 1e-6) return;
    for (const { main, rank } of lanes) {
      const shares = sharesOf(main, from, to);
      main.kinds.forEach((kind, which) => {
        let sum = 0;
        for (let i = 0; i < main.count; i++)
          if (main.kind[i] === kind)
            sum += Math.max(0, Math.min(to, main.end[i] as number) - Math.max(from, main.start[i] as number));
        expect(shares[which], `${visualOrder[kind]} on rank ${rank}`).toBeCloseTo(sum / (to - from), 9);
      });
      const whole = sharesOf(main, 0, makespan).reduce((a, b) => a + b, 0);
      expect(whole).toBeCloseTo((picture.busy[rank] as number) / makespan, 9);
    }
  });

  test.prop([shapes, fc.integer({ min: 0, max: 100 })], { numRuns: 50 })(
    'a bar is found from any first guess',
    (shape, guess) => {
      const { lanes, makespan } = lanesOf(
        pictureOf(buildSchedule('1F1B', { ranks: 3, microbatches: shape.microbatches })),
      );
      const time = shape.from * makespan;
      for (const { main } of lanes) {
        const at = barAt(main, time, guess);
        const expected = Array.from(main.start).findLastIndex((start) => start <= time);
        expect(at).toBe(expected);
      }
    },
  );
});
