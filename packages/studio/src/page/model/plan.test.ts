/** @file A plan as settings: the page simulates what the plan predicts. */
import { buildSchedule } from '@pipewright/schedule';
import { describe, expect, test } from 'vitest';
import { plan } from '../../../testing/plan.ts';
import { bestOf, explore, exploreAll, recommend } from './explore.ts';
import { openPlan, planAmong, planSettings } from './plan.ts';
import { formatSettings, parseSettings } from './settings.ts';

const text = JSON.stringify(plan);
const opened = openPlan('plan.json', text)!;

describe('a plan', () => {
  test('is shown with the step and the peaks that it predicts, slow ranks and limits included', () => {
    const settings = planSettings(opened);
    const { makespan, simulation, fits } = explore(settings.schedule, settings, { draw: false, plan: opened.schedule });
    expect(makespan).toBeCloseTo(plan.predicted.step * 1000, 3);
    Array.from(simulation!.peakMemory).forEach((peak, rank) =>
      expect(peak).toBeCloseTo(plan.predicted.peak[rank]! / 1e9, 3),
    );
    expect(settings.limit).toEqual([20, 20, 20, 16]);
    expect(fits).toBe(true);
  });

  test('stays in the address, but for an order that has no name', () => {
    const settings = planSettings(opened);
    expect(parseSettings(formatSettings(settings))).toEqual(settings);
    expect(explore('plan', settings, { draw: false, plan: null }).problem).toMatch(/open the file/);
  });

  test('other schedules are compared on the same work, whatever their number of stages', () => {
    const settings = planSettings(opened);
    const all = exploreAll(settings, opened.schedule);
    expect(all[0]).toMatchObject({ name: 'plan', problem: null });
    const whole = { B: 0, halves: 0 };
    plan.costs.forEach(({ F, I, W, B }, at) => {
      const slow = (plan.machine.slowness?.[at] ?? 1) * plan.microbatches * 1000;
      whole.B += (F + B!) * slow;
      whole.halves += (F + I + W) * slow;
    });
    const built = all.filter(({ problem, name }) => problem === null && !/DualPipe/.test(name));
    expect(built.length).toBeGreaterThan(8);
    for (const { simulation, name } of built) {
      const work = simulation!.busy.reduce((sum, time) => sum + time, 0);
      expect(work, name).toBeGreaterThan(whole.B - 0.01);
      expect(work, name).toBeLessThan(whole.halves + 0.01);
    }
    const tight = { ...settings, limit: [11, 11, 11, 11] };
    const few = exploreAll(tight, opened.schedule);
    const best = bestOf(few);
    expect(few.find(({ name }) => name === 'GPipe')).toMatchObject({ fits: false, missingRank: 3 });
    expect(best === null || best.peak <= 11).toBe(true);
    expect(recommend(few, tight)).toMatch(best === null ? /No schedule fits/ : new RegExp(`${best.name}.*do not fit`));
    expect(recommend(exploreAll({ ...settings, limit: [1] }, null), { ...settings, limit: [1] })).toMatch(
      /^No schedule fits 4 ranks with 1 GB and 8 microbatches: \w+ comes closest, [\d.]+ GB short on rank \d\.$/,
    );
  });

  test('is told from a schedule; a damaged one is refused with the reason', () => {
    expect(openPlan('x', JSON.stringify(buildSchedule('1F1B', { ranks: 2, microbatches: 2 })))).toBeNull();
    expect(() => openPlan('x', text.replace('"stages":4', '"stages":0'))).toThrow(/stages is 0/);
    expect(planAmong([{ name: 'x', text: text.replace('"stages":4', '"stages":0') }])).toBeNull();
    expect(planAmong([{ name: 'x', text }])?.plan.ranks).toBe(4);
  });
});
