// @ts-check
/**
 * @file Predicted against recorded: pipelines are planned, run on 2 thread ranks with a core each, and compared.
 *
 *   node bench/plan.mjs                 all of it, for a quiet machine; under 8 minutes
 *   node bench/plan.mjs --only predict  (or hand, unbalanced)
 *   node bench/plan.mjs --models U-Net,GPT  models whose names begin so; the table can be made in portions
 *   node bench/plan.mjs --schedules GPipe   of predict, only these
 *   node bench/plan.mjs --save FOLDER   of predict, every plan and its recording as JSON
 *   node bench/plan.mjs --ranks 4       with as many cores
 *   node bench/plan.mjs --device cuda   threads that share a GPU
 *   node bench/plan.mjs --quick         every row with few steps: whether it runs
 *   node bench/plan.mjs --actions       every action, predicted against recorded
 */
import { readFileSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { isMainThread } from 'node:worker_threads';
import { planSchedule, recordedSimulation } from '@pipewright/schedule';
import { cuda, distributed, manualSeed, scope } from '@pipewright/torch';
import {
  comparePlan,
  formatComparison,
  launch,
  measureLink,
  measureStages,
  measureUnits,
  PipelineRuntime,
  pipeline,
  planPipeline,
  Recorder,
  rankPlans,
  settlePlan,
  tryPlan,
  tryPlans,
  worthTrying,
} from 'pipewright';
import { models, unbalanced } from './plan-models.mjs';

/** @typedef {import('./plan-models.mjs').Model} Model */
/** @typedef {import('pipewright').PipelinePlan} PipelinePlan */

/** A run of a plan that can take turns with others: all that it needs, on all ranks. */
class Run {
  /** @param {Model} model @param {PipelinePlan} plan */
  constructor(model, plan) {
    const group = distributed.getDefaultGroup();
    this.pipe = pipeline(model.program(plan.rows), { plan });
    this.recorder = new Recorder();
    this.runtime = new PipelineRuntime(
      planSchedule(plan)
        .stagesOf(group.rank)
        .map((stage) => this.pipe.buildStage(stage)),
      plan,
      { lossFn: model.lossFn, record: this.recorder },
    );
    this.args = model.args(model.batch);
    this.target = model.target(model.batch);
  }

  /** @param {number} steps */
  run(steps) {
    const target = this.target === undefined ? {} : { target: this.target };
    for (let step = 0; step < steps; step++)
      scope(() => this.runtime.step(...this.args, { ...target, returnOutputs: false }));
  }

  /** What was recorded, on rank 0. */
  end() {
    const recording = this.recorder.gather();
    this.runtime.dispose();
    for (const parameter of this.pipe.parameters()) parameter.grad = null;
    return recording;
  }
}

/** @param {readonly number[]} values */
function median(values) {
  return values.toSorted((a, b) => a - b)[values.length >> 1] ?? Number.NaN;
}

/** The median step of a recording, in ms. @param {import('@pipewright/schedule').Recording} recording */
function stepOf(recording) {
  return median(recording.steps.slice(2).map((_, i) => recordedSimulation(recording, i + 2).makespan));
}

/** Seconds of processors that others have used since the machine was started; 0 where that is not known. */
function othersSeconds() {
  try {
    const [total = ''] = readFileSync('/proc/stat', 'utf8').split('\n', 1);
    const [, user = 0, nice = 0, system = 0, , , irq = 0, soft = 0, stolen = 0] = total.split(/\s+/).map(Number);
    const own = process.cpuUsage();
    return (user + nice + system + irq + soft + stolen) / 100 - (own.user + own.system) / 1e6;
  } catch {
    return 0;
  }
}

/** What others use of the machine from now on, in percent of one core. */
function watchOthers() {
  const [time, others] = [performance.now(), othersSeconds()];
  return () => `${((100_000 * (othersSeconds() - others)) / (performance.now() - time)).toFixed(0)}%`;
}

/** A plan that all ranks agree on. @param {() => PipelinePlan} make @returns {PipelinePlan} */
function agreed(make) {
  const group = distributed.getDefaultGroup();
  return /** @type {any} */ (group.broadcastObject(/** @type {any} */ (group.rank === 0 ? make() : null), 0));
}

/** Plans that all ranks agree on. @param {() => readonly PipelinePlan[]} make @returns {PipelinePlan[]} */
function agreedPlans(make) {
  return /** @type {any} */ (agreed(() => /** @type {any} */ ({ plans: make() }))).plans;
}

/** The plan as its own stages predict it. @param {Model} model @param {PipelinePlan} plan */
function settled(model, plan) {
  const group = distributed.getDefaultGroup();
  const pipe = pipeline(model.program(plan.rows), { plan });
  const [mbArgs, target] = [model.args(plan.rows), model.target(plan.rows)];
  const given = { lossFn: model.lossFn, ...(target === undefined ? {} : { target }) };
  const measured = measureStages(pipe, mbArgs, { ...given, rounds: usualRounds, schedule: planSchedule(plan), group });
  return { pipe, plan: agreed(() => settlePlan(plan, measured)), mbArgs, target };
}

/** The best plan, as `pipewright plan` finds it: the fastest of sixteen that look best, tried in turns.
 * @param {Model} model @param {import('pipewright').Machine} machine @param {import('pipewright').UnitTable[]} tables */
function bestOf(model, machine, tables) {
  const plans = agreedPlans(() =>
    worthTrying(planPipeline({ machine, tables, batch: model.batch, most: 200 }).plans, 16),
  );
  const trials = plans.map((plan) => settled(model, plan));
  const tried = tryPlans(trials, { lossFn: model.lossFn });
  return agreed(() => /** @type {PipelinePlan} */ (rankPlans(tried)[0]));
}

/** @param {Model} model @param {readonly number[]} rows */
function tablesOf(model, rows) {
  const group = distributed.getDefaultGroup();
  return rows.map((each) =>
    measureUnits(model.program(each), model.args(each), {
      lossFn: model.lossFn,
      target: model.target(each),
      rounds: Math.ceil(usualRounds / 2),
      beforeUnit: () => group.barrier(),
    }),
  );
}

/** Schedules that one would try by hand. */
const byHand = /** @type {const} */ (['1F1B', 'GPipe', 'Interleaved1F1B', 'ZBH1', 'ZBVZeroBubble']);
/** Steps of a run and rounds of a measurement in a turn, and turns: the speed of a machine changes in the course of minutes. */
let [usualSteps, usualRounds, turns] = [6, 4, 3];

/** What every rank runs.
 * @param {{ only: string, models: string, schedules: string, save: string, device: 'cpu' | 'cuda', quick: boolean, actions: boolean }} options */
export function main({ only, models: names, schedules: orders, save, device, quick, actions }) {
  if (quick) [usualSteps, usualRounds, turns] = [2, 1, 1];
  const group = distributed.initProcessGroup();
  const say = (/** @type {string} */ text) => void (group.rank === 0 && console.log(text));
  const ranks = group.size;
  const link = measureLink(group) ?? {};
  const machine = { ranks, ...link };
  const wants = (/** @type {string} */ what) => only === '' || only === what;
  const chosen = Object.entries(models).filter(([name]) => names.split(',').some((begin) => name.startsWith(begin)));
  if (wants('predict')) {
    say(
      '| model | schedule | microbatches | from stages ms | tried ms | recorded ms | difference from stages | difference, tried | beside |\n| --- | --- | --- | --- | --- | --- | --- | --- | --- |',
    );
    /** @type {number[]} */
    const errors = [];
    /** @type {number[]} */
    const errorsUntried = [];
    for (const [name, make] of chosen) {
      manualSeed(1);
      const model = make(device);
      const tables = tablesOf(model, [model.batch / 8]);
      for (const schedule of byHand.filter((each) => orders.split(',').some((begin) => each.startsWith(begin)))) {
        const beside = watchOthers();
        const [found] = agreedPlans(
          () => planPipeline({ machine, tables, batch: model.batch, schedules: [schedule] }).plans,
        );
        const plan = /** @type {PipelinePlan} */ (found);
        const run = new Run(model, plan);
        const begin = performance.now();
        run.run(2);
        // Short steps need more of them: slow moments of the machine last tenths of a second.
        const seconds = /** @type {number} */ (group.broadcastObject((performance.now() - begin) / 2000, 0));
        const agreedTurns = quick ? 1 : Math.min(12, Math.max(turns, Math.ceil(1.5 / (usualSteps * seconds))));
        /** @type {PipelinePlan[]} */
        const untried = [];
        /** @type {PipelinePlan[]} */
        const tried = [];
        for (let turn = 0; turn < agreedTurns; turn++) {
          const { pipe, plan: own, mbArgs, target } = settled(model, plan);
          untried.push(own);
          const given = { lossFn: model.lossFn, ...(target === undefined ? {} : { target }) };
          tried.push(tryPlan(pipe, own, mbArgs, { ...given, steps: usualSteps }));
          run.run(usualSteps);
        }
        const recording = run.end();
        if (recording === null) continue;
        if (save !== '')
          writeFileSync(join(save, `${name} ${schedule}.json`), JSON.stringify({ untried, tried, recording }));
        const last = /** @type {PipelinePlan} */ (tried.at(-1));
        if (actions) say(formatComparison(comparePlan(last, recording)));
        const recorded = comparePlan(last, recording).step.recorded;
        const predicted = [untried, tried].map((plans) => median(plans.map((each) => each.predicted.step)));
        const differences = predicted.map((step) => recorded / step - 1);
        errorsUntried.push(Math.abs(differences[0] ?? 0));
        errors.push(Math.abs(differences[1] ?? 0));
        const ms = [...predicted, recorded].map((seconds) => (1000 * seconds).toFixed(2));
        const shares = differences.map((share) => `${(100 * share).toFixed(1)}%`);
        say(`| ${[name, schedule, plan.microbatches, ...ms, ...shares, beside()].join(' | ')} |`);
      }
    }
    const percent = (/** @type {number | undefined} */ share) => `${(100 * (share ?? 0)).toFixed(1)}%`;
    for (const [how, list] of /** @type {const} */ ([
      ['from stages', errorsUntried],
      ['tried', errors],
    ])) {
      list.sort((a, b) => a - b);
      say(`\n${list.length} runs, ${how}: median ${percent(median(list))}, worst ${percent(list.at(-1))}`);
    }
  }
  if (wants('hand')) {
    say(
      '| model | plan | best of ten by hand | plan ms | by hand ms | plan ahead by | in 95 of 100 cases | turns | beside |\n| --- | --- | --- | --- | --- | --- | --- | --- | --- |',
    );
    for (const [name, make] of chosen) {
      manualSeed(1);
      const model = make(device);
      const beside = watchOthers();
      const sizes = [model.batch / 16, model.batch / 8, model.batch / 4];
      const tables = tablesOf(model, sizes);
      const best = bestOf(model, machine, tables);
      const plans = [];
      for (const rows of [model.batch / 4, model.batch / 8])
        for (const schedule of byHand) {
          const table = /** @type {any} */ (tables.find((each) => each.rows === rows));
          plans.push(equalLayers(schedule, table, machine, model.batch));
        }
      const byHandBest = fastestOf(model, plans, quick, actions ? say : () => {});
      // Whoever is chosen as the best of ten has had luck: the two are measured anew, against each other.
      const { planned, hand, shares } = duel(model, [best, byHandBest], quick);
      if (group.rank !== 0) continue;
      const titles = [best, byHandBest].map(({ schedule, microbatches }) => `${schedule}, ${microbatches}`);
      const percent = (/** @type {number} */ share) => `${(100 * share).toFixed(1)}%`;
      const { middle, low, high } = medianRange(shares);
      const columns = [planned.toFixed(2), hand.toFixed(2), percent(middle)];
      const range = `${percent(low)} to ${percent(high)}`;
      say(`| ${[name, ...titles, ...columns, range, shares.length, beside()].join(' | ')} |`);
    }
    say('');
  }
  if (wants('unbalanced')) {
    manualSeed(1);
    const model = unbalanced(device);
    const tables = tablesOf(model, [model.batch / 16, model.batch / 8]);
    const best = bestOf(model, machine, tables);
    const equal = equalLayers('1F1B', /** @type {any} */ (tables[1]), machine, model.batch);
    const runs = [best, equal].map((plan) => new Run(model, plan));
    for (const run of runs) run.run(2);
    for (let turn = 0; turn < turns; turn++) for (const run of runs) run.run(usualSteps);
    const [planned, plain] = runs.map((run) => run.end());
    if (!planned || !plain) return;
    if (actions) say(formatComparison(comparePlan(best, planned)));
    say(
      `unbalanced MLP: equal layers with 1F1B ${stepOf(plain).toFixed(2)} ms, planned (${best.schedule}, ${best.microbatches}) ${stepOf(planned).toFixed(2)} ms: ${(100 * (stepOf(plain) / stepOf(planned) - 1)).toFixed(1)}% faster`,
    );
  }
}

/** Of plans made by hand, the one with the fastest steps, all in turns; short steps take more turns.
 * @param {Model} model @param {PipelinePlan[]} plans @param {boolean} quick @param {(text: string) => void} say @returns {PipelinePlan} */
function fastestOf(model, plans, quick, say) {
  const group = distributed.getDefaultGroup();
  const runs = plans.map((plan) => new Run(model, plan));
  for (const run of runs) run.run(2);
  const stepsOfTurn = Math.ceil(usualSteps / 2);
  const begin = performance.now();
  for (const run of runs) run.run(stepsOfTurn);
  const seconds = /** @type {number} */ (group.broadcastObject((performance.now() - begin) / 1000, 0));
  const agreedTurns = quick ? 1 : Math.min(12, Math.max(turns, Math.ceil(25 / seconds)));
  for (let turn = 1; turn < agreedTurns; turn++) for (const run of runs) run.run(stepsOfTurn);
  const times = runs.map((run) => {
    const recording = run.end();
    return recording === null ? Number.NaN : stepOf(recording);
  });
  say(times.map((ms, i) => `    ${plans[i]?.schedule}, ${plans[i]?.microbatches}: ${ms.toFixed(2)}`).join('\n'));
  return agreed(() => /** @type {PipelinePlan} */ (plans[times.indexOf(Math.min(...times))]));
}

/** A plan against one made by hand, turn by turn, in changing order: medians of their steps, and by how much the plan was ahead in each turn.
 * @param {Model} model @param {[PipelinePlan, PipelinePlan]} plans @param {boolean} quick */
function duel(model, plans, quick) {
  const group = distributed.getDefaultGroup();
  const runs = plans.map((plan) => new Run(model, plan));
  /** @type {[number[], number[]]} */
  const times = [[], []];
  for (const run of runs) run.run(3);
  const begin = performance.now();
  const steps = quick ? 1 : 4;
  const turnOf = (/** @type {number} */ turn) => {
    for (const i of turn % 2 === 0 ? [0, 1] : [1, 0]) {
      const taken = Array.from({ length: steps }, () => {
        group.barrier();
        const from = performance.now();
        /** @type {Run} */ (runs[i]).run(1);
        if (cuda.isAvailable()) cuda.synchronize();
        group.barrier();
        return performance.now() - from;
      });
      times[/** @type {0 | 1} */ (i)].push(median(taken));
    }
  };
  turnOf(0);
  const seconds = /** @type {number} */ (group.broadcastObject((performance.now() - begin) / 1000, 0));
  const count = quick ? 2 : Math.min(150, Math.max(16, Math.round(60 / seconds)));
  for (let turn = 1; turn < count; turn++) turnOf(turn);
  for (const run of runs) run.end();
  const [planned, hand] = times;
  return {
    planned: median(planned),
    hand: median(hand),
    shares: hand.map((ms, i) => ms / (planned[i] ?? Number.NaN) - 1),
  };
}

/** The median of values, and between which of them that of all there could be lies in 95 of 100 cases. @param {readonly number[]} values */
function medianRange(values) {
  const sorted = values.toSorted((a, b) => a - b);
  const [middle, apart] = [values.length / 2, 0.98 * Math.sqrt(values.length)];
  const at = (/** @type {number} */ place) => sorted[Math.min(values.length - 1, Math.max(0, place))] ?? Number.NaN;
  return { middle: median(values), low: at(Math.floor(middle - apart)), high: at(Math.ceil(middle + apart)) };
}

/** Equal numbers of layers, as one would write by hand.
 * @param {import('@pipewright/schedule').ScheduleName} schedule @param {import('pipewright').UnitTable} table
 * @param {import('pipewright').Machine} machine @param {number} batch @returns {PipelinePlan} */
function equalLayers(schedule, table, machine, batch) {
  const units = table.units.map((unit) => ({
    ...unit,
    F: 1,
    I: 1,
    W: 1,
    B: 2,
    activation: 0,
    retained: 0,
    parameters: 0,
  }));
  const { plans } = planPipeline({
    machine: { ranks: machine.ranks },
    tables: [{ rows: table.rows, units }],
    batch,
    schedules: [schedule],
    most: 1,
    mayRecompute: false,
  });
  return agreed(() => /** @type {PipelinePlan} */ (plans[0]));
}

if (isMainThread) {
  const flag = (/** @type {string} */ name, /** @type {string} */ usual) => {
    const at = process.argv.indexOf(name);
    return at < 0 ? usual : (process.argv[at + 1] ?? usual);
  };
  const started = performance.now();
  await launch({
    ranks: Number(flag('--ranks', '2')),
    mode: 'threads',
    threadsPerRank: 1,
    script: new URL(import.meta.url),
    data: {
      only: flag('--only', ''),
      models: flag('--models', ''),
      schedules: flag('--schedules', ''),
      save: flag('--save', ''),
      device: flag('--device', 'cpu'),
      quick: process.argv.includes('--quick'),
      actions: process.argv.includes('--actions'),
    },
    onLine: (line) => console.log(line),
  }).done;
  console.log(`${((performance.now() - started) / 1000).toFixed(0)} s`);
}
