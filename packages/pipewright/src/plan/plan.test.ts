/** @file From a model to its plan and back: measured units, the plan's stages, a run of it, and the comparison. */
import { buildSchedule, type PipelinePlan, planSchedule, predictPlan } from '@pipewright/schedule';
import { float64, liveBytes, nn, randn, scope, type Tensor } from '@pipewright/torch';
import { expect, test } from 'vitest';
import { Chain, gradientsOf } from '../../testing/pipes.ts';
import {
  comparePlan,
  measureStages,
  measureUnits,
  PipelineRuntime,
  pipeline,
  planPipeline,
  Recorder,
  settlePlan,
  traceModule,
  tryPlan,
  tryPlans,
  worthTrying,
} from '../index.ts';

const lossFn = (output: Tensor, target: Tensor): Tensor => output.sub(target).square().mean();
const batch = (): Tensor => randn(8, 4, { dtype: float64 });

test('the units of a model are its layers, with the bytes that its tensors have', () => {
  const model = new Chain(6).double();
  const { rows, units } = measureUnits(model, [batch().narrow(0, 0, 2)], {
    lossFn,
    target: batch().narrow(0, 0, 2),
    rounds: 2,
  });
  expect(rows).toBe(2);
  expect(units.map(({ name }) => name)).toEqual([0, 1, 2, 3, 4, 5].map((i) => `layers.${i}`));
  for (const unit of units) {
    expect(unit.parameters).toBe((4 * 4 + 4) * 8);
    expect(unit.input).toBe(2 * 4 * 8);
    expect(Math.min(unit.F, unit.I + unit.W)).toBeGreaterThan(0);
  }
  // A layer keeps its input for the linear map, and the result of tanh.
  expect(units.slice(0, -1).map(({ activation }) => activation)).toEqual(units.slice(0, -1).map(() => 2 * 2 * 4 * 8));
  expect(model.parameters().every((each) => each.grad === null)).toBe(true);
});

test('layers that repeat have the same costs; those of another shape, frozen, first or with the loss have their own', () => {
  const wide = (): nn.Module => new nn.Sequential(new nn.Linear(8, 64), new nn.Tanh(), new nn.Linear(64, 8));
  const layers = new nn.ModuleList([wide(), wide(), wide(), new nn.Linear(8, 8), wide(), wide(), wide()]);
  for (const parameter of layers.at(5).parameters()) parameter.requiresGrad_(false);
  const { units } = measureUnits(new nn.Sequential(...layers), [randn(4, 8)], { rounds: 3 });
  const costs = units.map(({ F, I, W, B, inputGradient }) => [F, I, W, B, inputGradient].join());
  expect(costs).toHaveLength(7);
  expect(new Set([costs[1], costs[2], costs[4]]).size).toBe(1);
  expect(new Set(costs).size).toBe(5);
});

test('a plan cuts the model where it says, and its run computes what the model does', () => {
  const model = new Chain(6).double();
  const [x, target] = [batch(), batch()];
  const program = traceModule(model, [x.narrow(0, 0, 2)]);
  const table = measureUnits(program, [x.narrow(0, 0, 2)], { lossFn, target: target.narrow(0, 0, 2), rounds: 1 });
  const machine = { ranks: 1 };
  const schedules = ['Interleaved1F1B', 'LoopedBFS'] as const;
  const plan = planPipeline({ machine, tables: [table], batch: 8, schedules, stagesPerRank: [2] }).plans[0];
  if (plan === undefined) expect.unreachable();
  const pipe = pipeline(program, { plan });
  expect(pipe.numStages).toBe(2);
  const layers = [0, 1].map((i) => [
    ...new Set(pipe.getStageModule(i).namedParameters().map(([name]) => name.split('.').slice(0, 2).join('.'))),
  ]); // biome-ignore format: short
  expect(layers).toEqual(plan.units);
  const want = scope(() => {
    lossFn(model.forward(x), target).backward();
    return gradientsOf(model);
  });
  const recorder = new Recorder();
  const stages = [0, 1].map((i) => pipe.buildStage(i));
  using runtime = new PipelineRuntime(stages, plan, { lossFn, record: recorder });
  for (let step = 0; step < 2; step++) {
    for (const each of model.parameters()) each.grad = null;
    scope(() => runtime.step(x, { target }));
  }
  const got = gradientsOf(model);
  for (const [name, values] of Object.entries(want))
    (values as number[][]).flat().forEach((value, i) => {
      expect(Math.abs(value - ((got[name] as number[][]).flat()[i] as number)), name).toBeLessThan(1e-12);
    });
  const { step, stages: compared, messages } = comparePlan(plan, recorder.gather()!);
  expect(step.predicted).toBe(plan.predicted.step);
  expect(step.error).toBeCloseTo(step.recorded / step.predicted - 1, 9);
  expect(compared.every(({ forward, backward }) => forward.recorded > 0 && backward.recorded > 0)).toBe(true);
  expect(messages.recorded).toBe(0);
});

test('a model whose layers read a flag of the whole model is cut between its layers', () => {
  class Dropping extends nn.Module {
    layers = new nn.ModuleList(
      Array.from({ length: 4 }, () => new nn.Sequential(new nn.Linear(4, 4), new nn.Dropout(0.1))),
    );
    forward(x: Tensor): Tensor {
      let y = x;
      for (const layer of this.layers) y = layer.forward(y);
      return y;
    }
  }
  const program = traceModule(new Dropping(), [randn(2, 4)]);
  const { units } = measureUnits(program, [randn(2, 4)], { rounds: 1 });
  const cutBefore = units.slice(1).map(({ begins }) => begins);
  expect(new Set(cutBefore).size).toBe(3);
  expect(pipeline(program, { plan: { cutBefore } }).numStages).toBe(4);
});

test('a stage that the plan says to compute again is built so, and cuts that are not there are named', () => {
  const model = new Chain(4).double();
  const x = batch();
  const pipe = pipeline(model, { mbArgs: [x], plan: { cutBefore: [], recompute: [true] } });
  expect(pipe.buildStage(0).checkpoint).toBe(true);
  expect(pipe.buildStage(0, { checkpoint: false }).checkpoint).toBe(false);
  expect(() => pipeline(model, { mbArgs: [x], plan: { cutBefore: ['nosuch'] } })).toThrow(
    /the plan cuts before the node 'nosuch', which the graph does not have/,
  );
  expect(() => pipeline(model, { mbArgs: [x], stages: 2, plan: { cutBefore: [] } })).toThrow(
    /stages and plan are given/,
  );
  expect(() => measureUnits(new nn.Linear(2, 2), undefined as never)).toThrow(/mbArgs is undefined/);
});

test('where the bytes of stages cannot be counted, as on a GPU, a plan holds what its units hold', () => {
  const table = measureUnits(new Chain(6).double(), [batch().narrow(0, 0, 2)], { rounds: 1 });
  const schedules = ['LoopedBFS'] as const;
  const [plan] = planPipeline({ machine: { ranks: 2 }, tables: [table], batch: 8, schedules }).plans;
  if (plan === undefined) expect.unreachable();
  const uncounted = plan.costs.map((costs) => ({ costs: { ...costs, activation: 0, retained: 0 }, memory: null }));
  expect(settlePlan(plan, uncounted).predicted.peak).toEqual(plan.predicted.peak);
});

test('a plan that is tried is predicted from the steps that it took, and leaves nothing behind', () => {
  const model = new Chain(6).double();
  const [x, target] = [batch().narrow(0, 0, 2), batch().narrow(0, 0, 2)];
  const program = traceModule(model, [x]);
  const tables = [measureUnits(program, [x], { lossFn, target, rounds: 1 })];
  const [plan] = planPipeline({ machine: { ranks: 1 }, tables, batch: 8, schedules: ['1F1B'] }).plans;
  if (plan === undefined) expect.unreachable();
  const before = liveBytes();
  // A plan that is told to take an hour: the trial knows better.
  const slow = predictPlan({
    ...plan,
    costs: plan.costs.map((costs) => ({ ...costs, F: 900, B: 1800, I: 900, W: 900 })),
  });
  expect(slow.predicted.step).toBeGreaterThan(3600);
  const tried = tryPlan(pipeline(program, { plan }), slow, [x], { lossFn, target, steps: 4 });
  expect(tried.predicted.step).toBeLessThan(60);
  // Its actions are within its step, which has what passes between them besides.
  expect(tried.predicted.step).toBeGreaterThanOrEqual(predictPlan(tried).predicted.step);
  expect(tried.predicted.rowsPerSecond).toBeCloseTo(8 / tried.predicted.step, 6);
  expect(model.parameters().every((each) => each.grad === null)).toBe(true);
  expect(liveBytes()).toBe(before);
  const several = tryPlans(
    [slow, plan].map((each) => ({ pipe: pipeline(program, { plan: each }), plan: each, mbArgs: [x], target })),
    { lossFn, steps: 2 },
  );
  expect(several.map(({ predicted }) => predicted.step < 60)).toEqual([true, true]);
  expect(several.map(({ cutBefore }) => cutBefore)).toEqual([slow.cutBefore, plan.cutBefore]);
  expect(model.parameters().every((each) => each.grad === null)).toBe(true);
  expect(liveBytes()).toBe(before);
  expect(() => tryPlans({} as never)).toThrow(/the trials is .*; give an array of \{ pipe, plan, mbArgs, target \}/);
  expect(() => tryPlans([null as never])).toThrow(/the pipe is undefined/);
  const { plans } = planPipeline({ machine: { ranks: 2 }, tables, batch: 8, schedules: ['1F1B'] });
  const [other] = plans;
  if (other === undefined) expect.unreachable();
  expect(() => tryPlan(pipeline(program, { plan: other }), other, [x], { lossFn, target })).toThrow(
    /plan.ranks is 2; give a plan for the 1 ranks that there are/,
  );
});

test('plans that are worth trying: half the best, then the best of other sizes and of other backwards', () => {
  const unit = { F: 1, I: 1, W: 1, activation: 1, retained: 1, parameters: 1, input: 1 };
  const units = Array.from({ length: 8 }, (_, i) => ({ ...unit, name: `${i}`, begins: `${i}` }));
  const tables = [1, 2, 4].map((rows) => ({
    rows,
    units: units.map((each) => ({ ...each, F: rows, I: rows, W: rows })),
  }));
  const { plans } = planPipeline({ machine: { ranks: 2 }, tables, batch: 16, most: 40 });
  const chosen = worthTrying(plans, 10);
  expect(chosen.length).toBe(10);
  expect(chosen.slice(0, 3)).toEqual(plans.slice(0, 3));
  expect(new Set(chosen.map(({ rows }) => rows))).toEqual(new Set([1, 2, 4]));
  const isSplit = (plan: PipelinePlan): boolean =>
    planSchedule(plan)
      .order.flat()
      .some((cell) => cell?.kind === 'W');
  for (const rows of [1, 2, 4])
    for (const split of [false, true]) {
      const best = plans.find((plan) => plan.rows === rows && isSplit(plan) === split);
      expect(best === undefined || chosen.includes(best)).toBe(true);
    }
  const most = worthTrying(plans, 40);
  for (const plan of plans) {
    const like = (other: PipelinePlan): boolean =>
      other.rows === plan.rows && other.stages === plan.stages && isSplit(other) === isSplit(plan);
    expect(most).toContain(plans.find(like));
  }
  // One size was measured in a slow moment: it is tried all the same.
  const slow = tables.map((table) =>
    table.rows === 4 ? { ...table, units: units.map((each) => ({ ...each, F: 40, I: 40, W: 40 })) } : table,
  );
  const all = planPipeline({ machine: { ranks: 2 }, tables: slow, batch: 16, most: 200 }).plans;
  expect(all.slice(0, 16).some(({ rows }) => rows === 4)).toBe(false);
  expect(worthTrying(all, 8).some(({ rows }) => rows === 4)).toBe(true);
  expect(worthTrying(plans, 1)).toEqual(plans.slice(0, 1));
  expect(worthTrying([], 3)).toEqual([]);
  expect(() => worthTrying(plans, 0)).toThrow(/most is 0/);
});

test('stages are measured in the order of a schedule, and leave nothing behind', () => {
  const model = new Chain(6).double();
  const [x, target] = [batch().narrow(0, 0, 2), batch().narrow(0, 0, 2)];
  const pipe = pipeline(traceModule(model, [x]), { stages: 4 });
  // A schedule with whole backwards, one with halves, and none: every time is there, from its rows or from the stage alone.
  for (const name of ['GPipe', 'ZBH1', null]) {
    const schedule = name === null ? undefined : buildSchedule(name, { ranks: 4, microbatches: 20 });
    const before = liveBytes();
    const measured = measureStages(pipe, [x], { lossFn, target, rounds: 1, schedule });
    for (const parameter of model.parameters()) parameter.grad = null;
    expect(liveBytes()).toBe(before);
    expect(measured.length).toBe(4);
    measured.forEach(({ costs: { F, I, W, B = 0, inputGradient }, memory }, stage) => {
      expect(Math.min(F, I, W, B)).toBeGreaterThan(0);
      expect(memory?.forward).toBeGreaterThan(0);
      if (stage === 0) expect(inputGradient).toBeUndefined();
      else expect(inputGradient).toBeLessThanOrEqual(B);
    });
  }
  const schedule = buildSchedule('GPipe', { ranks: 2, microbatches: 2 });
  expect(() => measureStages(pipe, [x], { schedule })).toThrow(
    /schedule.stages is 2; give a schedule of the pipe's 4 stages/,
  );
  expect(() => measureStages(pipe, [x], { group: {} as never })).toThrow(/group is .*; give a process group/);
});
