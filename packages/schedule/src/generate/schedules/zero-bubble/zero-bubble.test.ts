/** @file The zero-bubble schedules against the paper's own figures and closed forms. */
import { readFileSync } from 'node:fs';
import fc from 'fast-check';
import { describe, expect, it } from 'vitest';
import { optimalSchedule } from '../../../search/optimal-schedule.ts';
import { simulate } from '../../../simulate/simulate.ts';
import { validate } from '../../../validate/validate.ts';
import { buildSchedule } from '../../build-schedule.ts';

interface Row {
  readonly model: string;
  readonly ranks: number;
  readonly microbatches: number;
  readonly F: number;
  readonly I: number;
  readonly W: number;
  readonly comm: number;
  readonly rates: Readonly<Record<string, number>>;
}

const table = JSON.parse(
  readFileSync(new URL('../../../../../../testdata/zero_bubble_table5.json', import.meta.url), 'utf8'),
) as { readonly rows: readonly Row[] };

const names = { '1F1B': '1F1B', 'ZB-H1': 'ZBH1', 'ZB-H2': 'ZBH2', 'ZB-1p': 'ZB1P', 'ZB-2p': 'ZB2P' };
/** Chunks per rank that the paper's interleaved figures fit. */
const chunks: Readonly<Record<string, number>> = { '1.5B': 3, '6.2B': 4, '14.6B': 3, '28.3B': 2 };

describe("the paper's measured settings", () => {
  for (const row of table.rows) {
    const { ranks, microbatches, F, I, W, comm } = row;
    const costs = { F, I, W, comm };
    for (const [printed, name] of Object.entries(names)) {
      it(`${row.model}, p=${ranks}, m=${microbatches}: ${printed} to four decimals`, () => {
        const rate = simulate(buildSchedule(name, { ranks, microbatches, costs }), costs).bubble.span;
        expect(rate.toFixed(4)).toBe(row.rates[printed]!.toFixed(4));
      });
    }

    it(`${row.model}, p=${ranks}, m=${microbatches}: 1F1B-I by replaying the interleaved order`, () => {
      const v = chunks[row.model]!;
      const schedule = buildSchedule('Interleaved1F1B', { ranks, stagesPerRank: v, microbatches });
      const rate = simulate(schedule, { F: F / v, I: I / v, W: W / v, comm }).bubble.span;
      expect(Math.abs(rate - row.rates['1F1B-I']!)).toBeLessThan(0.005);
      const whole = F + I + W;
      const closed = microbatches * whole + ((ranks - 1) * whole) / v + (2 * ranks * (v - 1) + ranks - 2) * comm;
      expect((1 - (microbatches * whole) / closed).toFixed(4)).toBe(row.rates['1F1B-I']!.toFixed(4));
    });
  }

  it('ZB-2p at 6.2B has next to no bubble by span and a tenth by makespan', () => {
    const row = table.rows.find((r) => r.model === '6.2B' && r.microbatches === 24)!;
    const costs = { F: row.F, I: row.I, W: row.W, comm: row.comm };
    const { bubble } = simulate(buildSchedule('ZB2P', { ranks: 8, microbatches: 24, costs }), costs);
    expect(bubble.span.toFixed(4)).toBe('0.0029');
    expect(bubble.makespan.toFixed(4)).toBe('0.1003');
  });
});

describe('the heuristic under memory limits', () => {
  const cases = [
    { ranks: 4, microbatches: 8, costs: { F: 1, I: 1, W: 1 }, spans: [27, 26, 25, 24, 24] },
    { ranks: 8, microbatches: 24, costs: { F: 1, I: 1, W: 1 }, spans: [79, 77, 75, 73, 72] },
    { ranks: 4, microbatches: 12, costs: { F: 5, I: 6, W: 4 }, spans: [201, 193, 188, 183, 183] },
    { ranks: 8, microbatches: 16, costs: { F: 5, I: 6, W: 4 }, spans: [289, 272, 262, 259, 257] },
  ];
  for (const { ranks, microbatches, costs, spans } of cases) {
    it(`p=${ranks}, m=${microbatches}, F, I, W = ${Object.values(costs).join()}: spans at 1 to 2 times p microbatches`, () => {
      const found = [1, 1.25, 1.5, 1.75, 2].map((multiple) => {
        const memoryLimit = multiple * ranks;
        const simulation = simulate(buildSchedule('ZB1P', { ranks, microbatches, costs, memoryLimit }), costs);
        expect(Math.max(...simulation.peakMemory)).toBeLessThanOrEqual(memoryLimit);
        return simulation.span;
      });
      expect(found).toEqual(spans);
    });
  }

  const tight = [
    [3, 6],
    [4, 4],
  ].flatMap(([ranks, microbatches]) =>
    [
      { F: 1, I: 1, W: 1 },
      { F: 3, I: 4, W: 2, comm: 1 },
    ].flatMap((costs) => Array.from({ length: ranks! - 1 }, (_, i) => [ranks!, microbatches!, i + 1, costs] as const)),
  );
  it.each(tight)('p=%i, m=%i, memory for %i: within a tenth of the shortest order of all, %j', (...one) => {
    const [ranks, microbatches, memoryLimit, costs] = one;
    const schedule = buildSchedule('ZB1P', { ranks, microbatches, costs, memoryLimit });
    const { makespan, peakMemory } = simulate(schedule, costs);
    expect(Math.max(...peakMemory)).toBeLessThanOrEqual(memoryLimit);
    expect(makespan).toBeLessThanOrEqual(1.1 * optimalSchedule(schedule, { costs, memoryLimit }).makespan);
  });

  it('three quarters of the memory of 1F1B are enough to be faster', () => {
    for (const [ranks, microbatches] of [
      [8, 8],
      [8, 32],
      [16, 64],
    ] as const) {
      const usual = simulate(buildSchedule('1F1B', { ranks, microbatches })).makespan;
      const schedule = buildSchedule('ZB1P', { ranks, microbatches, memoryLimit: (3 / 4) * ranks });
      expect(validate(schedule)).toEqual([]);
      expect(simulate(schedule).makespan).toBeLessThan(usual);
    }
  });

  it('ZB1P and ZB2P are the limits p and 2p', () => {
    for (const [name, multiple] of [
      ['ZB1P', 1],
      ['ZB2P', 2],
    ] as const) {
      const shape = { ranks: 6, microbatches: 20, costs: { F: 3, I: 4, W: 2 } };
      const limited = buildSchedule('ZB1P', { ...shape, memoryLimit: 6 * multiple });
      expect(buildSchedule(name, shape).rows).toEqual(limited.rows);
    }
  });

  it('takes a limit per rank and refuses one below a microbatch', () => {
    const memoryLimit = [4, 4, 2, 1];
    const { peakMemory } = simulate(buildSchedule('ZB2P', { ranks: 4, microbatches: 8, memoryLimit }));
    peakMemory.forEach((peak, rank) => {
      expect(peak).toBeLessThanOrEqual(memoryLimit[rank]!);
    });
    expect(() => buildSchedule('ZB1P', { ranks: 4, microbatches: 8, memoryLimit: 0.5 })).toThrow(
      /one microbatch needs 1 on rank 0, memoryLimit is 0.5.*raise memoryLimit to at least 1/,
    );
    expect(() => buildSchedule('ZB1P', { ranks: 4, microbatches: 8, memoryLimit: [4, 4] })).toThrow(
      /one per rank \(4\)/,
    );
  });

  it('keeps every limit and stays valid for any shape, uneven stages and few microbatches included', () => {
    const stage = fc.integer({ min: 1, max: 9 });
    const shape = fc.integer({ min: 1, max: 6 }).chain((ranks) =>
      fc.record({
        ranks: fc.constant(ranks),
        microbatches: fc.integer({ min: 1, max: 12 }),
        F: fc.array(stage, { minLength: ranks, maxLength: ranks }),
        I: fc.array(stage, { minLength: ranks, maxLength: ranks }),
        W: fc.array(stage, { minLength: ranks, maxLength: ranks }),
        activation: fc.array(stage, { minLength: ranks, maxLength: ranks }),
        retained: fc.constantFrom(0, 0.25, 0.5, 1),
        comm: fc.constantFrom(0, 0.5, 3),
        room: fc.array(fc.integer({ min: 1, max: 2 * ranks }), { minLength: ranks, maxLength: ranks }),
      }),
    );
    fc.assert(
      fc.property(shape, ({ ranks, microbatches, room, ...costs }) => {
        const memoryLimit = room.map((chunks, rank) => chunks * costs.activation[rank]!);
        const schedule = buildSchedule('ZB1P', { ranks, microbatches, costs, memoryLimit });
        expect(validate(schedule)).toEqual([]);
        const { memory } = simulate(schedule, costs);
        memory.forEach(({ activationPeak }, rank) => {
          expect(activationPeak).toBeLessThanOrEqual(memoryLimit[rank]! + 1e-6);
        });
      }),
      { numRuns: 150 },
    );
  });
});

describe('closed forms', () => {
  it('bubbles of 1F1B, ZB-H1 and ZB-H2 by span', () => {
    // H2 has no bubble left to fill where W is longer than (F + I) / 2, so F and I are at least W here.
    const times = fc.record({
      W: fc.integer({ min: 1, max: 5 }),
      f: fc.integer({ min: 0, max: 4 }),
      ranks: fc.integer({ min: 1, max: 7 }),
    });
    fc.assert(
      fc.property(times, ({ W, f, ranks }) => {
        const costs = { F: W + f, I: W + f, W };
        const microbatches = 3 * ranks + 2;
        const bubbleOf = (name: string): number =>
          simulate(buildSchedule(name, { ranks, microbatches }), costs).span - microbatches * (costs.F + costs.I + W);
        expect(bubbleOf('1F1B')).toBe((ranks - 1) * (costs.F + costs.I + W));
        expect(bubbleOf('ZBH1')).toBe((ranks - 1) * (costs.F + costs.I - W));
        expect(bubbleOf('ZBH2')).toBe((ranks - 1) * (costs.F + costs.I - 2 * W));
      }),
      { numRuns: 60 },
    );
  });

  it('peaks of ZB-H1 and ZB-H2: whole microbatches and weight parts', () => {
    for (const ranks of [1, 2, 4, 7]) {
      for (const retained of [0.5, 0.9]) {
        const microbatches = 4 * ranks;
        const h1 = simulate(buildSchedule('ZBH1', { ranks, microbatches }), { retained }).peakMemory;
        const h2 = simulate(buildSchedule('ZBH2', { ranks, microbatches }), { retained }).peakMemory;
        for (let rank = 0; rank < ranks; rank++) {
          expect(h1[rank]).toBeCloseTo(ranks - rank + rank * retained, 9);
          expect(h2[rank]).toBeCloseTo(2 * (ranks - rank) - 1 + 2 * rank * retained, 9);
        }
      }
    }
  });

  it('the unit table: makespan 27 and 103, peaks 4 and 7', () => {
    for (const [ranks, microbatches, makespan] of [
      [4, 8, 27],
      [8, 32, 103],
    ] as const) {
      for (const name of ['ZBH1', 'ZBH2']) {
        expect(simulate(buildSchedule(name, { ranks, microbatches })).makespan).toBe(makespan);
      }
    }
    expect(Math.max(...simulate(buildSchedule('ZBH1', { ranks: 4, microbatches: 8 })).peakMemory)).toBe(4);
    expect(Math.max(...simulate(buildSchedule('ZBH2', { ranks: 4, microbatches: 8 })).peakMemory)).toBe(7);
  });
});

describe('any shape', () => {
  it('ZBH1, ZBH2, ZB1P and ZB2P are valid, also with fewer microbatches than ranks', () => {
    for (const name of ['ZBH1', 'ZBH2', 'ZB1P', 'ZB2P']) {
      for (let ranks = 1; ranks <= 6; ranks++) {
        for (let microbatches = 1; microbatches <= 9; microbatches++) {
          expect(validate(buildSchedule(name, { ranks, microbatches }))).toEqual([]);
        }
      }
    }
  });

  it('is found by the names of the paper too', () => {
    expect(buildSchedule('zb-h1', { ranks: 2, microbatches: 2 }).name).toBe('ZBH1');
    expect(buildSchedule('ZB-2p', { ranks: 2, microbatches: 2 }).name).toBe('ZB2P');
    expect(() => buildSchedule('ZBH3', { ranks: 2, microbatches: 2 })).toThrow(/did you mean 'ZBH/);
  });
});
