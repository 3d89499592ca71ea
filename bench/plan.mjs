// @ts-check
/**
 * @file Predicted against recorded: pipelines are planned, run on 2 thread ranks with a core each, and compared.
 *
 *   node bench/plan.mjs                 all of it, for a quiet machine; under 8 minutes
 *   node bench/plan.mjs --only predict  (or hand, unbalanced)
 *   node bench/plan.mjs --ranks 4       with as many cores
 *   node bench/plan.mjs --quick         every row with few steps: whether it runs
 *   node bench/plan.mjs --actions       every action, predicted against recorded
 */
import { isMainThread } from 'node:worker_threads';
import { planSchedule, recordedSimulation } from '@pipewright/schedule';
import { arange, distributed, manualSeed, nn, randint, randn, scope } from '@pipewright/torch';
import {
  comparePlan,
  formatComparison,
  launch,
  loadPt2,
  measureLink,
  measureStages,
  measureUnits,
  PipelineRuntime,
  pipeline,
  planPipeline,
  Recorder,
  rankPlans,
  settlePlan,
  traceModule,
  tryPlan,
} from 'pipewright';

/** @typedef {import('@pipewright/torch').Tensor} Tensor */
/** @typedef {import('pipewright').GraphProgram} GraphProgram */
/** @typedef {import('pipewright').PipelinePlan} PipelinePlan */
/** @typedef {{ program(rows: number): GraphProgram, args(rows: number): Tensor[], target(rows: number): Tensor | undefined, lossFn: ((output: any, target: any) => Tensor), batch: number }} Model */

class Block extends nn.Module {
  /** @param {number} width @param {number} heads */
  constructor(width, heads) {
    super();
    this.heads = heads;
    this.norm1 = new nn.LayerNorm(width);
    this.qkv = new nn.Linear(width, 3 * width);
    this.out = new nn.Linear(width, width);
    this.norm2 = new nn.LayerNorm(width);
    this.up = new nn.Linear(width, 4 * width);
    this.down = new nn.Linear(4 * width, width);
  }

  /** @param {Tensor} x */
  forward(x) {
    const [rows, length, width] = /** @type {[number, number, number]} */ (x.shape);
    const parts = this.qkv.forward(this.norm1.forward(x)).chunk(3, -1);
    const [q, k, v] = parts.map((part) => part.reshape([rows, length, this.heads, width / this.heads]).transpose(1, 2));
    const mixed = nn.functional.scaledDotProductAttention(
      /** @type {Tensor} */ (q),
      /** @type {Tensor} */ (k),
      /** @type {Tensor} */ (v),
      { isCausal: true },
    );
    const y = x.add(this.out.forward(mixed.transpose(1, 2).reshape([rows, length, width])));
    return y.add(this.down.forward(nn.functional.gelu(this.up.forward(this.norm2.forward(y)))));
  }
}

class Gpt extends nn.Module {
  /** @param {number} layers @param {number} width @param {number} words */
  constructor(layers, width, words) {
    super();
    this.tokens = new nn.Embedding(words, width);
    this.places = new nn.Embedding(256, width);
    this.blocks = new nn.ModuleList(Array.from({ length: layers }, () => new Block(width, 4)));
    this.norm = new nn.LayerNorm(width);
    this.head = new nn.Linear(width, words);
  }

  /** @param {Tensor} ids */
  forward(ids) {
    let x = this.tokens.forward(ids).add(this.places.forward(arange(/** @type {number} */ (ids.shape[1]))));
    for (const block of this.blocks) x = block.forward(x);
    return this.head.forward(this.norm.forward(x));
  }
}

/** Convolutions down and up again, with what was on the way down added on the way up. */
class UNet extends nn.Module {
  /** @param {number} width */
  constructor(width) {
    super();
    const conv = (/** @type {number} */ from, /** @type {number} */ to) =>
      new nn.Sequential(
        new nn.Conv2d(from, to, 3, { padding: 1 }),
        new nn.ReLU(),
        new nn.Conv2d(to, to, 3, { padding: 1 }),
        new nn.ReLU(),
      );
    this.down = new nn.ModuleList([conv(3, width), conv(width, 2 * width), conv(2 * width, 4 * width)]);
    this.up = new nn.ModuleList([conv(4 * width, 2 * width), conv(2 * width, width), conv(width, 3)]);
  }

  /** @param {Tensor} x */
  forward(x) {
    /** @type {Tensor[]} */
    const seen = [];
    let y = x;
    for (const layer of this.down) {
      y = layer.forward(y);
      seen.push(y);
      y = nn.functional.maxPool2d(y, 2);
    }
    for (const layer of this.up) {
      y = nn.functional.interpolate(y, { scaleFactor: 2 }).add(/** @type {Tensor} */ (seen.pop()));
      y = layer.forward(y);
    }
    return y;
  }
}

/** Linear layers of given widths. */
class Mlp extends nn.Module {
  /** @param {readonly number[]} widths */
  constructor(widths) {
    super();
    this.layers = new nn.ModuleList(
      widths
        .slice(1)
        .map((width, i) => new nn.Sequential(new nn.Linear(/** @type {number} */ (widths[i]), width), new nn.ReLU())),
    );
  }

  /** @param {Tensor} x */
  forward(x) {
    let y = x;
    for (const layer of this.layers) y = layer.forward(y);
    return y;
  }
}

/** @type {(output: Tensor, target: Tensor) => Tensor} */
const meanSquare = (output, target) => output.sub(target).square().mean();
/** @type {(output: Tensor, target: Tensor) => Tensor} */
const crossEntropy = (output, target) => nn.functional.crossEntropy(output.flatten(0, 1), target.flatten());

/** @param {number} layers @param {number} width @param {number} length @returns {Model} */
function gpt(layers, width, length) {
  const model = new Gpt(layers, width, 512);
  const ids = (/** @type {number} */ rows) => randint(0, 512, [rows, length]);
  return {
    program: (rows) => traceModule(model, [ids(rows)]),
    args: (rows) => [ids(rows)],
    target: ids,
    lossFn: crossEntropy,
    batch: 16,
  };
}

/** @param {readonly number[]} widths @param {number} batch @returns {Model} */
function mlp(widths, batch) {
  const model = new Mlp(widths);
  const args = (/** @type {number} */ rows) => [randn(rows, /** @type {number} */ (widths[0]))];
  return {
    program: (rows) => traceModule(model, args(rows)),
    args,
    target: (rows) => randn(rows, /** @type {number} */ (widths.at(-1))),
    lossFn: meanSquare,
    batch,
  };
}

/** @returns {Model} */
function unet() {
  const model = new UNet(24);
  const args = (/** @type {number} */ rows) => [randn(rows, 3, 64, 64)];
  return {
    program: (rows) => traceModule(model, args(rows)),
    args,
    target: (rows) => randn(rows, 3, 64, 64),
    lossFn: meanSquare,
    batch: 16,
  };
}

/** @returns {Model} */
function llama() {
  const module = loadPt2(new URL('../testdata/models/llama_dyn.pt2', import.meta.url).pathname);
  const all = { removeDuplicate: false };
  /** @type {[string, Tensor][]} */
  const entries = [...module.namedParameters(all), ...module.namedBuffers(all)];
  const program = { graph: module.graph, state: new Map(entries) };
  const length = 12;
  return {
    program: () => program,
    args: (rows) => [randint(0, 64, [rows, length])],
    target: () => undefined,
    lossFn: (output) => (Array.isArray(output) ? output[0] : (output.logits ?? output)).float().square().mean(),
    batch: 512,
  };
}

const even = Array.from({ length: 13 }, () => 512);
/** @type {Record<string, () => Model>} */
const models = {
  'GPT small': () => gpt(6, 128, 64),
  'GPT medium': () => gpt(8, 256, 128),
  'U-Net': unet,
  'Llama .pt2': llama,
  'MLP, growing': () => mlp([128, 256, 256, 384, 384, 512, 512, 768, 768, 1024, 1024, 1024], 512),
  'MLP, even': () => mlp(even, 512),
};
const unbalanced = () => mlp([...Array.from({ length: 9 }, () => 256), 1024, 1024, 1024, 1024], 512);

/** Everything that one run needs, on all ranks.
 * @param {Model} model @param {PipelinePlan} plan @param {number} steps */
function record(model, plan, steps) {
  const group = distributed.getDefaultGroup();
  const pipe = pipeline(model.program(plan.rows), { plan });
  const schedule = planSchedule(plan);
  const recorder = new Recorder();
  const runtime = new PipelineRuntime(
    schedule.stagesOf(group.rank).map((stage) => pipe.buildStage(stage)),
    plan,
    { lossFn: model.lossFn, record: recorder },
  );
  const [args, target] = [model.args(model.batch), model.target(model.batch)];
  for (let step = 0; step < steps; step++)
    scope(() => runtime.step(...args, { ...(target === undefined ? {} : { target }), returnOutputs: false }));
  const recording = recorder.gather();
  runtime.dispose();
  for (const parameter of pipe.parameters()) parameter.grad = null;
  return recording;
}

/** The median step of a recording, in ms. @param {import('@pipewright/schedule').Recording} recording */
function stepOf(recording) {
  const lengths = recording.steps.slice(2).map((_, i) => recordedSimulation(recording, i + 2).makespan);
  return /** @type {number} */ (lengths.sort((a, b) => a - b)[lengths.length >> 1]);
}

/** A plan that all ranks agree on. @param {() => PipelinePlan} make @returns {PipelinePlan} */
function agreed(make) {
  const group = distributed.getDefaultGroup();
  return /** @type {any} */ (group.broadcastObject(/** @type {any} */ (group.rank === 0 ? make() : null), 0));
}

/** The plan as `pipewright plan` predicts it: from its own stages, and a trial. @param {Model} model @param {PipelinePlan} plan */
function settled(model, plan) {
  const group = distributed.getDefaultGroup();
  const pipe = pipeline(model.program(plan.rows), { plan });
  const [args, target] = [model.args(plan.rows), model.target(plan.rows)];
  const given = { lossFn: model.lossFn, ...(target === undefined ? {} : { target }) };
  const measured = measureStages(pipe, args, { ...given, rounds: usualRounds, schedule: planSchedule(plan), group });
  const untried = agreed(() => settlePlan(plan, measured));
  return { untried, tried: tryPlan(pipe, untried, args, { ...given, steps: usualRounds + 3 }) };
}

/** The best plan, as `pipewright plan` finds it: of the six that look best, the one whose own stages are fastest.
 * @param {Model} model @param {import('pipewright').Machine} machine @param {import('pipewright').UnitTable[]} tables */
function bestOf(model, machine, tables) {
  const found = agreed(
    () => /** @type {any} */ ({ plans: planPipeline({ machine, tables, batch: model.batch, most: 6 }).plans }),
  );
  const plans = /** @type {any} */ (found).plans.map((/** @type {PipelinePlan} */ plan) => settled(model, plan).tried);
  return agreed(() => /** @type {PipelinePlan} */ (rankPlans(plans)[0]));
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

/** Steps of a run, and rounds of a measurement. */
let [usualSteps, usualRounds] = [14, 9];

/** What every rank runs. @param {{ only: string, quick: boolean, actions: boolean }} options */
export function main({ only, quick, actions }) {
  if (quick) [usualSteps, usualRounds] = [4, 2];
  const group = distributed.initProcessGroup();
  const say = (/** @type {string} */ text) => void (group.rank === 0 && console.log(text));
  const ranks = group.size;
  const link = measureLink(group) ?? {};
  const machine = { ranks, ...link };
  const wants = (/** @type {string} */ what) => only === '' || only === what;
  if (wants('predict')) {
    say(
      '| model | schedule | microbatches | from stages ms | tried ms | recorded ms | difference from stages | difference, tried |\n| --- | --- | --- | --- | --- | --- | --- | --- |',
    );
    /** @type {number[]} */
    const errors = [];
    /** @type {number[]} */
    const errorsUntried = [];
    for (const [name, make] of Object.entries(models)) {
      manualSeed(1);
      const model = make();
      const tables = tablesOf(model, [model.batch / 8]);
      for (const schedule of /** @type {const} */ (['1F1B', 'GPipe', 'Interleaved1F1B', 'ZBH1', 'ZBVZeroBubble'])) {
        const { untried, tried: plan } = settled(
          model,
          agreed(
            () =>
              /** @type {PipelinePlan} */ (
                planPipeline({ machine, tables, batch: model.batch, schedules: [schedule] }).plans[0]
              ),
          ),
        );
        const recording = record(model, plan, usualSteps);
        if (recording === null) continue;
        const comparison = comparePlan(plan, recording);
        if (actions) say(formatComparison(comparison));
        const { step } = comparison;
        const fromStages = step.recorded / untried.predicted.step - 1;
        errors.push(Math.abs(step.error));
        errorsUntried.push(Math.abs(fromStages));
        const ms = [untried.predicted.step, step.predicted, step.recorded].map((seconds) =>
          (1000 * seconds).toFixed(2),
        );
        const differences = [fromStages, step.error].map((share) => `${(100 * share).toFixed(1)}%`);
        say(`| ${[name, schedule, plan.microbatches, ...ms, ...differences].join(' | ')} |`);
      }
    }
    const percent = (/** @type {number | undefined} */ share) => `${(100 * (share ?? 0)).toFixed(1)}%`;
    for (const [how, list] of /** @type {const} */ ([
      ['from stages', errorsUntried],
      ['tried', errors],
    ])) {
      list.sort((a, b) => a - b);
      say(`\n${list.length} runs, ${how}: median ${percent(list[list.length >> 1])}, worst ${percent(list.at(-1))}`);
    }
  }
  if (wants('hand')) {
    say('| model | plan | ms | best of ten by hand | ms | ahead |\n| --- | --- | --- | --- | --- | --- |');
    for (const [name, make] of Object.entries(models).slice(0, 5)) {
      manualSeed(1);
      const model = make();
      const sizes = [model.batch / 16, model.batch / 8, model.batch / 4];
      const tables = tablesOf(model, sizes);
      const best = bestOf(model, machine, tables);
      const planned = record(model, best, usualSteps);
      /** @type {{ title: string, ms: number }[]} */
      const hand = [];
      for (const rows of [model.batch / 4, model.batch / 8])
        for (const schedule of /** @type {const} */ (['1F1B', 'GPipe', 'Interleaved1F1B', 'ZBH1', 'ZBVZeroBubble'])) {
          const plan = equalLayers(
            schedule,
            /** @type {any} */ (tables.find((table) => table.rows === rows)),
            machine,
            model.batch,
          );
          const recording = record(model, plan, usualSteps);
          if (recording !== null) hand.push({ title: `${schedule}, ${plan.microbatches}`, ms: stepOf(recording) });
        }
      if (planned === null) continue;
      const ms = stepOf(planned);
      const [by] = hand.sort((a, b) => a.ms - b.ms);
      say(
        `| ${name} | ${best.schedule}, ${best.microbatches} | ${ms.toFixed(2)} | ${by?.title} | ${by?.ms.toFixed(2)} | ${(100 * ((by?.ms ?? Number.NaN) / ms - 1)).toFixed(1)}% |`,
      );
    }
    say('');
  }
  if (wants('unbalanced')) {
    manualSeed(1);
    const model = unbalanced();
    const tables = tablesOf(model, [model.batch / 16, model.batch / 8]);
    const best = bestOf(model, machine, tables);
    const equal = equalLayers('1F1B', /** @type {any} */ (tables[1]), machine, model.batch);
    const [planned, plain] = [record(model, best, usualSteps), record(model, equal, usualSteps)];
    if (planned !== null && actions) say(formatComparison(comparePlan(best, planned)));
    if (planned !== null && plain !== null)
      say(
        `unbalanced MLP: equal layers with 1F1B ${stepOf(plain).toFixed(2)} ms, planned (${best.schedule}, ${best.microbatches}) ${stepOf(planned).toFixed(2)} ms: ${(100 * (stepOf(plain) / stepOf(planned) - 1)).toFixed(1)}% faster`,
      );
  }
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
      quick: process.argv.includes('--quick'),
      actions: process.argv.includes('--actions'),
    },
    onLine: (line) => console.log(line),
  }).done;
  console.log(`${((performance.now() - started) / 1000).toFixed(0)} s`);
}
