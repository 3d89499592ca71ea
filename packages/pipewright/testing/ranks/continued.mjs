// @ts-check
/**
 * @file Ranks of tests that stop and go on: a model with dropout, trained on batches of a loader by AdamW in float64, from one
 * step to another, in any layout; and the same without a pipeline. What goes from one run to the next is plain data.
 */
import { buildSchedule } from '@pipewright/schedule';
import { distributed, nn, noGrad, optim, scope, setDefaultDtype, stack, tensor } from '@pipewright/torch';
import {
  DataLoader,
  Dataset,
  fullyShard,
  initDeviceMesh,
  PipelineRuntime,
  PipelineStage,
  pipeline,
  pipeSplit,
  replicate,
  SplitPoint,
} from 'pipewright';
import { runAsProgram } from './program.mjs';

const [WIDTH, BLOCKS, MICROBATCHES] = [6, 4, 4];
/** Rows of a batch of all replicas. */
const BATCH = 8;
const F = nn.functional;

/**
 * @typedef {import('@pipewright/torch').Tensor} Tensor
 * @typedef {{ weights: Record<string, number[]>, first: Record<string, number[]>, second: Record<string, number[]>, loader: any,
 *   random: any }} State
 * @typedef {{ layout: 'plain' | 'stages' | 'traced', schedule: string, pp: number, dp: number, stages: number, samples: number,
 *   last: string, from: number, to: number, checkpoint?: boolean, shards?: import('pipewright').ShardLevel, workers?: number, state?: State, goesOn?: number }} Case
 */

/** Draws as a layer, twice, and as functions. */
class Block extends nn.Module {
  /** @param {boolean} isCut whether a stage may end in the middle */
  constructor(isCut) {
    super();
    this.fc = new nn.Linear(WIDTH, WIDTH);
    this.drop = new nn.Dropout({ p: 0.3 });
    this.isCut = isCut;
  }
  /** @param {Tensor} x */
  forward(x) {
    const inner = F.dropout(this.drop.forward(this.fc.forward(x).tanh()), { p: 0.2, training: this.training });
    if (this.isCut) pipeSplit();
    return this.drop.forward(F.dropout(inner.add(x), { p: 0.1, training: this.training }));
  }
}

/** Some of the blocks. */
class Blocks extends nn.Module {
  /** @param {number} from @param {number} to @param {number} [cut] */
  constructor(from, to, cut = -1) {
    super();
    this.blocks = new nn.ModuleList(Array.from({ length: to - from }, (_, i) => new Block(from + i === cut)));
  }
  /** @param {Tensor} x */
  forward(x) {
    for (const block of this.blocks) x = block.forward(x);
    return x;
  }
}

/** Samples that tell their numbers. */
export class Rows extends Dataset {
  /** @param {number} length */
  constructor(length) {
    super();
    this.length = length;
  }
  /** @override */
  get source() {
    return { module: import.meta.url, data: this.length };
  }
  /** @param {number} index */
  getItem(index) {
    const values = Float64Array.from({ length: WIDTH }, (_, i) => Math.sin(index * WIDTH + i));
    return { index, x: values, y: values.map((value) => value * value) };
  }
}

/** What workers make the dataset with. @param {number} length */
export function dataset(length) {
  return new Rows(length);
}

/** @param {Tensor} output @param {Tensor} target */
const lossFn = (output, target) => F.mseLoss(output, target);
/** @param {Tensor} value */
const numbers = (value) => /** @type {number[]} */ (value.detach().reshape([-1]).toArray());

/** The modules of a rank, with the names of the whole model. @param {Case} one @param {any} mesh @param {any} schedule */
function makeStages(one, mesh, schedule) {
  const random = new nn.NamedRandom({ seed: 11 });
  const own = schedule.stagesOf(mesh.getLocalRank('pp'));
  const options = { group: mesh.getGroup('pp') };
  /** @param {any} module @returns {any} */
  const shared = (module) => {
    if (one.dp === 1) return module;
    return one.shards
      ? fullyShard(module, { mesh: mesh.get('dp'), level: one.shards })
      : replicate(module, { mesh: mesh.get('dp') });
  };
  if (one.layout === 'traced') {
    const whole = random.initialize(new Blocks(0, BLOCKS, one.stages === 4 ? 1 : -1));
    const example = tensor(Array.from({ length: WIDTH * 2 }, () => 0.5)).view([2, WIDTH]);
    const spec =
      one.stages === 2
        ? { 'blocks.2': SplitPoint.BEGINNING }
        : { 'blocks.1': SplitPoint.BEGINNING, 'blocks.3': SplitPoint.BEGINNING };
    const pipe = pipeline(whole, { mbArgs: [example], splitSpec: spec });
    if (pipe.numStages !== one.stages) throw new Error(`${pipe.numStages} stages, not ${one.stages}`);
    const stages = own.map((/** @type {number} */ index) =>
      pipe.buildStage(index, { ...options, checkpoint: one.checkpoint }),
    );
    for (const stage of stages) shared(stage.module);
    return { random, stages, names: stages.map(() => (/** @type {string} */ name) => name) };
  }
  const each = BLOCKS / one.stages;
  const names = own.map(
    (/** @type {number} */ index) => (/** @type {string} */ name) =>
      name.replace(/^blocks\.(\d+)/, (_, i) => `blocks.${Number(i) + index * each}`),
  );
  const stages = own.map((/** @type {number} */ index, /** @type {number} */ i) => {
    const module = random.initialize(new Blocks(index * each, (index + 1) * each), { names: names[i] });
    return new PipelineStage(shared(module), index, one.stages, { ...options, checkpoint: one.checkpoint === true });
  });
  return { random, stages, names };
}

/** @param {Case} one @param {number} replica */
function makeLoader(one, replica) {
  return new DataLoader(new Rows(one.samples), {
    batchSize: BATCH / one.dp,
    shuffle: true,
    seed: 3,
    numReplicas: one.dp,
    rank: replica,
    numWorkers: one.workers ?? 0,
    dropLast: one.last === 'drop',
    fillLast: one.last === 'fill',
  });
}

/** @param {Case} one */
function train(one) {
  setDefaultDtype('float64');
  const isPlain = one.layout === 'plain';
  const mesh = isPlain ? null : initDeviceMesh('cpu', [one.pp, one.dp], ['pp', 'dp']);
  const schedule = isPlain
    ? null
    : buildSchedule(one.schedule, { ranks: one.pp, stages: one.stages, microbatches: MICROBATCHES / one.dp });
  const random = new nn.NamedRandom({ seed: 11 });
  const model = isPlain ? random.initialize(new Blocks(0, BLOCKS)) : null;
  const made = model === null ? makeStages(one, mesh, schedule) : { random, stages: [], names: [] };
  const parts = model === null ? made.stages.map((/** @type {any} */ stage) => stage.module) : [model];
  const runtime =
    model === null
      ? new PipelineRuntime(made.stages, /** @type {any} */ (schedule), { lossFn, random: made.random })
      : null;
  const named = parts.flatMap((/** @type {any} */ part, /** @type {number} */ i) =>
    part.namedParameters().map((/** @type {any} */ [name, value]) => [made.names[i]?.(name) ?? name, value]),
  );
  const optimizer = new optim.AdamW(
    named.map((/** @type {any} */ [, value]) => value),
    { lr: 0.02, weightDecay: 0.1 },
  );
  const loader = makeLoader(one, mesh?.getLocalRank('dp') ?? 0);
  if (one.state) restore(one.state, named, optimizer, { loader, random: made.random });
  /** @type {number[][]} */
  const ids = [];
  /** @type {number[]} */
  const losses = [];
  /** @type {number[]} */
  const norms = [];
  for (let step = one.from; step < one.to; step++)
    scope(() => {
      const { index, x, y } = /** @type {any} */ (loader.nextBatch());
      ids.push(numbers(index));
      optimizer.zeroGrad();
      if (runtime === null) {
        /** @type {any} */
        const output = made.random.run(() => /** @type {any} */ (model).forward(x)); // the whole batch at once
        const loss = lossFn(output, y);
        loss.backward();
        losses.push(loss.item());
        norms.push(
          nn.utils
            .clipGradNorm_(
              named.map((/** @type {any} */ [, value]) => value),
              0.5,
            )
            .item(),
        );
        made.random.step++;
      } else {
        /** @type {Tensor[]} */
        const each = [];
        runtime.step(x, { target: y, losses: each, returnOutputs: false });
        if (each.length > 0) losses.push(stack(each).mean().item());
        norms.push(runtime.clipGradNorm_(0.5));
      }
      optimizer.step();
    });
  const state = save(named, optimizer, { loader, random: made.random });
  loader.dispose();
  runtime?.dispose();
  return { ids, losses, norms, state };
}

/** @param {any[]} named @param {any} optimizer @param {any} rest @returns {State} */
function save(named, optimizer, { loader, random }) {
  /** @param {(value: any) => Tensor} what */
  const table = (what) => Object.fromEntries(named.map(([name, value]) => [name, numbers(what(value))]));
  /** @param {string} key */
  const moment = (key) => table((value) => optimizer.stateOf(value)[key]);
  return {
    weights: table((value) => value),
    first: moment('exp_avg'),
    second: moment('exp_avg_sq'),
    loader: loader.stateDict(),
    random: random.stateDict(),
  };
}

/** @param {State} saved @param {any[]} named @param {any} optimizer @param {any} rest */
function restore(saved, named, optimizer, { loader, random }) {
  /** @param {Record<string, number[]>} table @param {any} one @returns {Tensor} */
  const from = (table, [name, value]) => tensor(Float64Array.from(table[name] ?? [])).view([...value.shape]);
  noGrad(() => {
    for (const one of named) one[1].copy_(from(saved.weights, one));
  });
  const state = Object.fromEntries(
    named.map((one, i) => {
      const step = tensor(saved.random.step, { dtype: 'float32' });
      return [i, { step, exp_avg: from(saved.first, one), exp_avg_sq: from(saved.second, one) }];
    }),
  );
  optimizer.loadStateDict({ state, paramGroups: optimizer.stateDict().paramGroups });
  loader.loadStateDict(saved.loader);
  random.loadStateDict(saved.random);
}

/** @param {Case[]} cases */
export function main(cases) {
  if (!distributed.isInitialized()) distributed.initProcessGroup();
  /** @type {ReturnType<typeof train>[]} */
  const results = [];
  for (const one of cases) {
    // What this rank has left in an earlier case.
    const state = one.goesOn === undefined ? one.state : results[one.goesOn]?.state;
    results.push(train({ ...one, ...(state && { state }) }));
  }
  return results;
}

await runAsProgram(import.meta.url, main);
