/** @file The V schedules against the figures of their papers: V-Min, V-Half, ZBV, the adaptive search, DualPipeV. */
import fc from 'fast-check';
import { describe, expect, it } from 'vitest';
import { lower } from '../../../lower/lower.ts';
import { simulate } from '../../../simulate/simulate.ts';
import { validate } from '../../../validate/validate.ts';
import { buildSchedule } from '../../build-schedule.ts';
import { buildingBlocks, repeatedPeak } from './blocks.ts';
import { VGrid } from './grid.ts';

describe('V-Min, V-Half and ZBV', () => {
  const table = [
    { ranks: 4, microbatches: 8, VMin: [59, 4], VHalf: [53, 6], ZBVZeroBubble: [48, 8] },
    { ranks: 8, microbatches: 24, VMin: [171, 8], VHalf: [161, 10], ZBVZeroBubble: [144, 16] },
    { ranks: 16, microbatches: 48, VMin: [347, 12], VHalf: [329, 18], ZBVZeroBubble: [288, 32] },
  ];
  for (const { ranks, microbatches, ...expected } of table) {
    for (const [name, [span, peak]] of Object.entries(expected)) {
      it(`${name}, p=${ranks}, m=${microbatches}: span ${span}, peak ${peak} chunks`, () => {
        const simulation = simulate(buildSchedule(name, { ranks, microbatches }));
        expect(simulation.span).toBe(span);
        expect(Math.max(...simulation.peakMemory)).toBe(peak);
        const whole = simulate(simulation.schedule, { retained: 1 });
        expect(Math.max(...whole.peakMemory)).toBe(peak);
      });
    }
  }

  it('peaks in microbatches: (p+4)//3, (p+2)//2 and p', () => {
    for (let ranks = 2; ranks <= 14; ranks++) {
      const microbatches = 3 * ranks;
      const peak = (name: string): number =>
        Math.max(...simulate(buildSchedule(name, { ranks, microbatches }), { retained: 1 }).peakMemory);
      expect(peak('VMin')).toBe(2 * Math.floor((ranks + 4) / 3));
      expect(peak('VHalf')).toBe(2 * Math.floor((ranks + 2) / 2));
      expect(peak('ZBVZeroBubble')).toBe(2 * ranks);
    }
  });

  it('ZBV has no bubble by span when F, I and W are equal', () => {
    for (const [ranks, microbatches] of [
      [1, 1],
      [2, 4],
      [3, 6],
      [5, 20],
    ] as const) {
      expect(simulate(buildSchedule('ZBVZeroBubble', { ranks, microbatches }), { F: 2, I: 2, W: 2 }).bubble.span).toBe(
        0,
      );
    }
  });

  it('are valid, lowered too, for any shape', () => {
    for (const name of ['VMin', 'VHalf']) {
      for (let ranks = 1; ranks <= 7; ranks++) {
        for (const microbatches of [1, 2, 3, 5, 8, 13]) {
          const schedule = buildSchedule(name, { ranks, microbatches });
          expect(validate(schedule)).toEqual([]);
          expect(validate(lower(schedule))).toEqual([]);
        }
      }
    }
  });

  it('refuse a limit their order does not keep', () => {
    expect(() => buildSchedule('VHalf', { ranks: 4, microbatches: 8, memoryLimit: 5 })).toThrow(
      /needs 6 on rank 0, memoryLimit is 5.*use ZB1P or AdaptiveV/,
    );
    expect(buildSchedule('VHalf', { ranks: 4, microbatches: 8, memoryLimit: 6 }).name).toBe('VHalf');
  });
});

describe('AdaptiveV', () => {
  const bubbles = (ranks: number, microbatches: number, memoryLimit: number): number => {
    const costs = { retained: 1 }; // the paper's peaks count whole chunks from F to W
    const simulation = simulate(buildSchedule('AdaptiveV', { ranks, microbatches, memoryLimit, costs }), costs);
    expect(Math.max(...simulation.peakMemory)).toBeLessThanOrEqual(memoryLimit);
    return simulation.span - 6 * microbatches;
  };

  it('p=4, m=8: fewest bubble slots by peak', () => {
    const found = Object.fromEntries([4, 5, 6, 7, 8].map((peak) => [peak, bubbles(4, 8, peak)]));
    expect(found).toEqual({ 4: 11, 5: 8, 6: 5, 7: 3, 8: 0 });
  });

  it('p=8, m=24: fewest bubble slots by peak', () => {
    const peaks = [8, 9, 10, 11, 12, 13, 14, 15, 16];
    const found = Object.fromEntries(peaks.map((peak) => [peak, bubbles(8, 24, peak)]));
    expect(found).toEqual({ 8: 23, 9: 20, 10: 17, 11: 14, 12: 11, 13: 8, 14: 5, 15: 3, 16: 0 });
    for (const k of peaks)
      expect(found[k]).toBe(3 * 8 - 1 - 3 * k + Math.max(24, 7 + 2 * (1 + Math.floor((k + 1) / 2))));
  });

  it('is never worse with real costs than the fixed V schedules of the same peak', () => {
    const costs = { F: 5, I: 6, W: 4, comm: 0.3, retained: 1 };
    for (const [name, memoryLimit] of [
      ['VMin', 6],
      ['VHalf', 8],
      ['ZBVZeroBubble', 12],
    ] as const) {
      const shape = { ranks: 6, microbatches: 14 };
      const fixed = simulate(buildSchedule(name, shape), costs);
      const fitted = simulate(buildSchedule('AdaptiveV', { ...shape, costs, memoryLimit }), costs);
      expect(fitted.span).toBeLessThanOrEqual(fixed.span + 1e-9);
    }
  });

  it('plans for any limit that holds one microbatch, and says so below that', () => {
    const spans = [2, 3, 4, 5].map((memoryLimit) => bubbles(4, 8, memoryLimit));
    expect(spans).toEqual([...spans].sort((a, b) => b - a));
    expect(() => buildSchedule('AdaptiveV', { ranks: 4, microbatches: 8, memoryLimit: 1.5 })).toThrow(
      /one microbatch on both stages needs 2 on rank 0, memoryLimit is 1.5/,
    );
  });

  it('keeps limits per rank with uneven stages and is valid, also with few microbatches', () => {
    const shape = fc.integer({ min: 1, max: 4 }).chain((ranks) => {
      const perStage = fc.array(fc.integer({ min: 1, max: 5 }), { minLength: 2 * ranks, maxLength: 2 * ranks });
      return fc.record({
        ranks: fc.constant(ranks),
        microbatches: fc.integer({ min: 1, max: 9 }),
        F: perStage,
        I: perStage,
        W: perStage,
        activation: perStage,
      });
    });
    fc.assert(
      fc.property(shape, ({ ranks, microbatches, ...costs }) => {
        const schedule = buildSchedule('AdaptiveV', { ranks, microbatches, costs });
        expect(validate(schedule)).toEqual([]);
        simulate(schedule, costs).memory.forEach(({ activationPeak, rank }) => {
          expect(activationPeak).toBeLessThanOrEqual(
            ranks * (costs.activation[rank]! + costs.activation[2 * ranks - 1 - rank]!) + 1e-9,
          );
        });
      }),
      { numRuns: 25 },
    );
  });

  it('searches blocks that repeat without collision', () => {
    for (const { block } of buildingBlocks(5)) {
      for (const starts of block) expect(new Set(starts.map((slot) => slot % 6)).size).toBe(4);
    }
  });

  it('knows what blocks hold when they repeat, without laying them out', () => {
    for (const ranks of [1, 2, 5, 9])
      for (const { block, peak } of buildingBlocks(ranks)) {
        const grid = VGrid.repeat(block, 2 * ranks + 2);
        grid.addWeights();
        expect(peak).toBe(grid.peak);
        const alike = block.map((starts) => repeatedPeak([...starts], 2 * ranks + 2, { takes: [3, 3], gives: [0, 0] }));
        expect(Math.max(...alike)).toBe(3 * peak);
      }
  });
});

describe('DualPipeV', () => {
  it.each([2, 4, 8])('d=%i: bubble of atomic and of separate parts, peak 2d+1 everywhere', (ranks) => {
    const microbatches = 4 * ranks;
    const schedule = buildSchedule('DualPipeV', { ranks, microbatches });
    const atomic = simulate(schedule);
    const parts = simulate(schedule, { overlap: 'parts' });
    expect(atomic.span - 6 * microbatches).toBe(2 * (ranks - 1));
    expect(parts.span - 6 * microbatches).toBe(ranks - 1);
    expect([...atomic.peakMemory]).toEqual(new Array(ranks).fill(2 * ranks + 1));
  });

  it('the closed form (PP/2-1)(F&B + B - 3W) with other costs', () => {
    for (const { F, I, W } of [
      { F: 2, I: 2, W: 1 },
      { F: 3, I: 3, W: 2 },
    ]) {
      const ranks = 4;
      const microbatches = 12;
      const span = simulate(buildSchedule('DualPipeV', { ranks, microbatches }), { F, I, W }).span;
      expect(span - 2 * microbatches * (F + I + W)).toBe((ranks - 1) * (F + I + W + I + W - 3 * W));
    }
  });
});
