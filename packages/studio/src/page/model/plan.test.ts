/** @file A plan as settings: the page simulates what the plan predicts. */
import { buildSchedule, predictPlan } from '@pipewright/schedule';
import { describe, expect, test } from 'vitest';
import { plan } from '../../../testing/plan.ts';
import { bestOf, explore, exploreAll, recommend } from './explore.ts';
import { findIn } from './open-files.ts';
import { openPlan, planAmong, planSettings, sayOrigin } from './plan.ts';
import { formatSettings, parseSettings } from './settings.ts';

const text = JSON.stringify(plan);
const opened = openPlan('plan.json', text)!;

describe('a plan', () => {
  test('is shown with the step and the peaks that it predicts, slow ranks and limits included', () => {
    const settings = planSettings(opened);
    const { makespan, simulation, fits } = explore(settings.schedule, settings, { draw: false, plan: opened });
    expect(makespan / 1000 / plan.predicted.step).toBeCloseTo(1, 12);
    Array.from(simulation!.peakMemory).forEach((peak, rank) =>
      expect((peak * 1e9) / plan.predicted.peak[rank]!).toBeCloseTo(1, 12),
    );
    expect(settings.limit).toEqual([20, 20, 20, 16]);
    expect(fits).toBe(true);
  });

  test('costs with many digits, links that differ, collectives and recomputed stages: the numbers are those of the plan', () => {
    const odd = plan.costs.map((stage, at) => ({
      ...stage,
      ...{ F: stage.F / 3, I: stage.I / 7, W: stage.W / 11, B: stage.I / 7 + stage.W / 11, inputGradient: stage.I / 6 },
      ...{ activation: 1e9 / 3 + at, retained: 1e8 / 7, input: 1e6 * (at + 1), again: 5e8 },
    }));
    const links = [
      { from: 0, to: 1, latency: 1e-4, bandwidth: 3e9 },
      { from: 1, to: 0, latency: 2e-3, bandwidth: 1e9 },
    ];
    const machine = { ...plan.machine, links, latency: 1e-5, bandwidth: 7e9 };
    const alone = predictPlan({ ...plan, costs: odd, machine });
    const shared = predictPlan({
      ...plan,
      costs: odd,
      machine: { memory: 20e9, latency: 1e-5, bandwidth: 7e9 },
      dataParallel: { replicas: 2, level: 'parameters' },
    });
    for (const one of [alone, shared]) {
      const read = openPlan('plan.json', JSON.stringify(one))!;
      const settings = parseSettings(formatSettings(planSettings(read)));
      const { makespan, bubble, peak } = explore('plan', settings, { draw: false, plan: read });
      expect(makespan / 1000 / one.predicted.step).toBeCloseTo(1, 12);
      expect(bubble).toBeCloseTo(one.predicted.bubble, 12);
      expect((peak * 1e9) / Math.max(...one.predicted.peak)).toBeCloseTo(1, 12);
    }
    // The same order by its name costs the same; a changed cost takes the place of the plan's.
    const read = openPlan('plan.json', JSON.stringify(alone))!;
    const settings = planSettings(read);
    const byName = explore('1F1B', settings, { draw: false, plan: read });
    expect(byName.makespan / 1000 / alone.predicted.step).toBeCloseTo(1, 12);
    const twice = { ...settings, costs: { ...settings.costs, F: settings.costs.F.map((value) => value * 2) } };
    const slower = explore('plan', twice, { draw: false, plan: read });
    expect(slower.makespan).toBeGreaterThan(byName.makespan * 1.1);
    expect(Array.from(slower.simulation!.costs.F)).toEqual(twice.costs.F);
    expect(slower.simulation!.costs.message!.links).toHaveLength(2);
  });

  test('stays in the address, but for an order that has no name', () => {
    const settings = planSettings(opened);
    expect(parseSettings(formatSettings(settings))).toEqual(settings);
    expect(explore('plan', settings, { draw: false, plan: null }).problem).toMatch(/open the file/);
  });

  test('other schedules are compared on the same work, whatever their number of stages', () => {
    const settings = planSettings(opened);
    const all = exploreAll(settings, opened);
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
    const few = exploreAll(tight, opened);
    const best = bestOf(few);
    expect(few.find(({ name }) => name === 'GPipe')).toMatchObject({ fits: false, missingRank: 3 });
    expect(best === null || best.peak <= 11).toBe(true);
    expect(recommend(few, tight)).toMatch(best === null ? /No schedule fits/ : new RegExp(`${best.name}.*do not fit`));
    expect(recommend(exploreAll({ ...settings, limit: [1] }, null), { ...settings, limit: [1] })).toMatch(
      /^No schedule fits 4 ranks with 1 GB and 8 microbatches: \w+ comes closest, [\d.]+ GB short on rank \d\.$/,
    );
  });

  test('that was tried says what a step took, since its simulation is shorter', () => {
    const settings = planSettings(opened);
    expect(sayOrigin(opened, settings)).toBe('Costs from plan.json.');
    expect(sayOrigin(opened, { ...settings, costs: { ...settings.costs, F: [1] } })).toBe(
      'Costs from plan.json, except those that were changed.',
    );
    const tried = { ...plan, predicted: { ...plan.predicted, step: 0.75 } };
    expect(sayOrigin({ ...opened, plan: tried }, settings)).toMatchInlineSnapshot(
      `"Costs from plan.json. When the plan was tried, a step took 750 ms; its simulation takes 380.7 ms, without what a run adds to every action. Of schedules that are close to each other here, another one may be faster in a run."`,
    );
  });

  test('is not beside schedules of another shape, which do other work', () => {
    const settings = planSettings(opened);
    const why = 'The plan is for 4 ranks, 4 stages and 8 microbatches, and not for this shape';
    for (const other of [{ ranks: 8 }, { microbatches: 16 }, { stagesPerRank: 2 }]) {
      const changed = { ...settings, ...other };
      const all = exploreAll(changed, opened);
      expect(all.find(({ name }) => name === 'plan')).toMatchObject({ problem: why, fits: false });
      expect(bestOf(all)?.name).not.toBe('plan');
      expect(sayOrigin(opened, changed)).toBe('');
    }
  });

  test('whose order was found by search holds a schedule, and is a plan all the same', () => {
    const order = buildSchedule('ZBH1', { ranks: 4, microbatches: 8 }).toJSON();
    const searched = JSON.stringify({ ...plan, schedule: 'searched', order }, null, 2);
    expect(openPlan('x', searched)?.schedule.toString()).toBe(
      buildSchedule('ZBH1', { ranks: 4, microbatches: 8 }).toString(),
    );
    expect(findIn([{ name: 'x.json', text: searched }])).toMatchObject({ plan: { name: 'x.json' } });
    expect(() => openPlan('x', searched.slice(0, -20))).toThrow(/not JSON/);
  });

  test('is told from a schedule; a damaged one is refused with the reason', () => {
    expect(openPlan('x', JSON.stringify(buildSchedule('1F1B', { ranks: 2, microbatches: 2 })))).toBeNull();
    expect(() => openPlan('x', text.replace('"stages":4', '"stages":0'))).toThrow(/stages is 0/);
    expect(planAmong([{ name: 'x', text: text.replace('"stages":4', '"stages":0') }])).toBeNull();
    expect(planAmong([{ name: 'x', text }])?.plan.ranks).toBe(4);
  });
});
