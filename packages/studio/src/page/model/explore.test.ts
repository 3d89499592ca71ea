/** @file Which schedule to take: those that adapt to a memory limit get it, and all do the same work. */
import { scheduleDefinitions } from '@pipewright/schedule';
import { describe, expect, test } from 'vitest';
import { bestOf, type Explored, explore, exploreAll, recommend, refused } from './explore.ts';
import { defaults, type Settings } from './settings.ts';

const limited: Settings = {
  ...defaults,
  ...{ ranks: 8, microbatches: 16, limit: [20] },
  costs: { ...defaults.costs, activation: [2], parameters: [8] },
};
const named = (all: readonly Explored[], name: string): Explored => all.find((one) => one.name === name)!;

describe('explore', () => {
  test('8 ranks with 20 GB: schedules that adapt get what the parameters leave', () => {
    const all = exploreAll(limited, null);
    const best = bestOf(all)!;
    expect(best).toMatchObject({ name: 'AdaptiveV', makespan: 53.5, peak: 20, fits: true });
    for (const name of ['ZB1P', 'ZB2P']) expect(named(all, name)).toMatchObject({ fits: true, problem: null });
  });

  test('gradients count too, ranks differ, and one may have no limit', () => {
    const costs = { ...limited.costs, gradients: [1] };
    const all = exploreAll({ ...limited, costs, limit: [20, 20, 20, 20, 20, 20, 20, 0] }, null);
    for (const name of ['AdaptiveV', 'ZB1P', 'ZB2P']) expect(named(all, name)).toMatchObject({ fits: true });
  });

  test('where the limit is too low for any order, what is missing is said', () => {
    for (const limit of [9, 8, 4]) {
      const one = named(exploreAll({ ...limited, limit: [limit] }, null), 'ZB1P');
      expect(one).toMatchObject({ fits: false, problem: null });
      expect(one.missing).toBeGreaterThan(0);
    }
  });

  test('schedules made for several stages per rank have two, with the same work per rank', () => {
    const all = exploreAll(defaults, null);
    const times = ['Interleaved1F1B', 'LoopedBFS', 'InterleavedZeroBubble', '1F1B'].map((name) => named(all, name));
    expect(times.map(({ makespan }) => makespan)).toEqual([28.5, 28.5, 25.5, 33]);
    expect(times.map(({ stages }) => stages)).toEqual([8, 8, 8, 4]);
    const more = named(exploreAll({ ...defaults, stagesPerRank: 4 }, null), 'Interleaved1F1B');
    expect(more.stages).toBe(16);
  });

  test('a limit that leaves room makes nothing longer', () => {
    const free = exploreAll({ ...limited, limit: [0] }, null);
    for (const one of exploreAll({ ...limited, limit: [1000] }, null))
      expect(one.makespan, one.name).toBeLessThanOrEqual(named(free, one.name).makespan);
  });

  test('a step with too many actions is continued from fewer microbatches, and comes out as if all were simulated', () => {
    const costs = { ...defaults.costs, F: [1, 1.4, 0.9, 1], comm: [0.1] };
    const long: Settings = { ...defaults, ranks: 4, microbatches: 160, costs };
    for (const { name } of scheduleDefinitions.filter(({ hasBackward }) => hasBackward)) {
      const whole = explore(name, long, { draw: false, plan: null });
      const part = explore(name, long, { draw: false, plan: null, most: 1000 });
      expect(whole).toMatchObject({ problem: null, simulated: null });
      expect(part, name).toMatchObject({
        ...{ problem: null, simulated: { ranks: 4, microbatches: 32 }, stages: whole.stages },
      });
      expect(part.schedule!.microbatches, name).toBe(32);
      expect(part.messages, name).toBe(whole.messages);
      expect(part.makespan / whole.makespan, name).toBeCloseTo(1, 2);
      expect(part.bubble, name).toBeCloseTo(whole.bubble, 2);
      expect(part.peak / whole.peak, name).toBeCloseTo(1, 9);
    }
    const few = explore('1F1B', { ...long, microbatches: 30 }, { draw: true, plan: null, most: 200 });
    expect(few.problem).toBe('360 actions are too many to draw here; with 16 microbatches they are few enough');
  });

  test('one with many ranks too is continued from fewer ranks, where all stages are alike', () => {
    const most = 20_000;
    const costs = { ...defaults.costs, parameters: [3] };
    const wide: Settings = { ...defaults, ranks: 64, microbatches: 256, costs };
    for (const { name } of scheduleDefinitions.filter(({ hasBackward }) => hasBackward)) {
      const whole = explore(name, wide, { draw: false, plan: null });
      const part = explore(name, wide, { draw: false, plan: null, most });
      expect(part, name).toMatchObject({ problem: null, messages: whole.messages, stages: whole.stages });
      expect(part.simulated!.ranks, name).toBeLessThan(64);
      expect(Math.abs(part.makespan / whole.makespan - 1), name).toBeLessThan(0.03);
      expect(Math.abs(part.bubble - whole.bubble), name).toBeLessThan(0.03);
      expect(Math.abs(part.peak / whole.peak - 1), name).toBeLessThan(0.1);
    }
    const one = (changes: Partial<Settings>, name = '1F1B'): Explored =>
      explore(name, { ...wide, ...changes }, { draw: false, plan: null, most });
    const refusal = '49,152 actions are too many to simulate here; with 104 microbatches they are few enough';
    expect(one({ costs: { ...costs, F: [1, 2] } }).problem).toBe(refusal);
    expect(one({ limit: [20, 30] }).problem).toBe(refusal);
    expect(one({ limit: [90] }, 'ZB1P').problem).toBe(refusal); // its order depends on the limit
    expect(one({ limit: [50] })).toMatchObject({ peak: 67, missing: 17, missingRank: 0 });
  });

  test('which schedule for 1024 ranks and 4096 microbatches', () => {
    const largest: Settings = { ...defaults, ranks: 1024, microbatches: 4096 };
    const some = ['GPipe', '1F1B', 'ZBH1'].map((name) => explore(name, largest, { draw: false, plan: null }));
    // (4096 + 1023) * 3, as for any number of ranks; ZBH1 fills a third of that idle time more.
    expect(some[1]).toMatchObject({ makespan: 15357, peak: 1024, messages: 2 * 1023 * 4096, stages: 1024 });
    expect(recommend(some, largest)).toMatch(
      /^Fastest for 1024 ranks and 4096 microbatches: ZBH1, about 13\d{3} ms.* and a peak of about 1024 GB/,
    );
  });

  test('64 ranks and 512 microbatches get an answer, also while some schedules are still missing', () => {
    const large: Settings = { ...defaults, ranks: 64, microbatches: 512 };
    const some = ['1F1B', 'ZBH1'].map((name) => explore(name, large, { draw: false, plan: null }));
    expect(recommend(some, large)).toMatch(/^Fastest for 64 ranks and 512 microbatches: ZBH1, 1599 ms/);
    expect(recommend(some, large, 3)).toMatch(
      /^Fastest for 64 ranks and 512 microbatches so far \(3 of 5 schedules are still being simulated\): ZBH1/,
    );
    expect(recommend([refused('1F1B', 'no')], large)).toBe(
      'No schedule can be simulated for 64 ranks and 512 microbatches; the table says why.',
    );
    expect(recommend(some, large, 1)).toContain('(1 of 3 schedules is still being simulated)');
    expect(recommend([], large, 5)).toBe('Simulating 5 schedules for 64 ranks and 512 microbatches…');
  });
});
