// @ts-check
/**
 * @file Ranks of tests of checkpoints: one small model, cut into any number of stages on a mesh of pipeline and data, trained by
 * AdamW in float64, saved and loaded at the layouts that the cases say.
 */
import { createHash } from 'node:crypto';
import { buildSchedule } from '@pipewright/schedule';
import { distributed, Generator, manualSeed, nn, optim, rand, randn, scope, setDefaultDtype } from '@pipewright/torch';
import { setFileSystem } from '../../dist/checkpoint/writing/writer.js';
import {
  fullyShard,
  initDeviceMesh,
  loadCheckpoint,
  PipelineRuntime,
  PipelineStage,
  replicate,
  saveCheckpoint,
  shardOf,
} from '../../dist/index.js';
import { runAsProgram } from './program.mjs';

const WIDTH = 6;
const BLOCKS = 8;

class Block extends nn.Module {
  /** @param {number} index @param {nn.Parameter} shared */
  constructor(index, shared) {
    super();
    manualSeed(100 + index);
    this.linear = new nn.Linear(WIDTH, WIDTH);
    this.frozen = new nn.Parameter(randn([WIDTH]), { requiresGrad: false });
    this.unused = new nn.Parameter(randn([3]));
    this.registerBuffer('offset', randn([WIDTH]));
    this.shared = shared;
  }
  /** @param {import('@pipewright/torch').Tensor} x */
  forward(x) {
    return this.linear
      .forward(x)
      .tanh()
      .add(this.frozen)
      .add(/** @type {any} */ (this).offset)
      .mul(this.shared);
  }
}

/** A loader whose only state is how far it has come. */
class Counter {
  position = 0;
  stateDict() {
    return { position: this.position };
  }
  /** @param {{ position: number }} state */
  loadStateDict(state) {
    this.position = state.position;
  }
}

/** @typedef {{ pp: number, dp: number, schedule: string, sharded?: boolean, optimizer?: 'Adafactor' }} Layout */

/** A run at a layout, at its beginning. */
export class Run {
  /** @param {Layout} layout */
  constructor(layout) {
    setDefaultDtype('float64');
    this.mesh = initDeviceMesh('cpu', [layout.pp, layout.dp], ['pp', 'dp']);
    const stages = layout.schedule === '1F1B' ? layout.pp : 2 * layout.pp;
    this.schedule = buildSchedule(layout.schedule, { ranks: layout.pp, stages, microbatches: 4 });
    const each = BLOCKS / stages;
    this.stages = this.schedule.stagesOf(this.mesh.getLocalRank('pp')).map((index) => {
      manualSeed(7);
      const shared = new nn.Parameter(randn([WIDTH]));
      const blocks = new nn.Sequential(...Array.from({ length: each }, (_, i) => new Block(index * each + i, shared)));
      const mesh = this.mesh.get('dp');
      const module =
        layout.dp === 1 ? blocks : layout.sharded ? fullyShard(blocks, { mesh }) : replicate(blocks, { mesh });
      const names = Object.fromEntries(Array.from({ length: each }, (_, i) => [`${i}`, `blocks.${index * each + i}`]));
      return new PipelineStage(module, index, stages, {
        group: this.mesh.getGroup('pp'),
        ties: { '0.shared': 'shared' },
        names,
      });
    });
    this.runtime = new PipelineRuntime(this.stages, this.schedule, { lossFn: nn.functional.mseLoss });
    const own = [...new Set(this.stages.flatMap((stage) => stage.module.parameters()))].filter((p) => p.requiresGrad);
    const Kind = layout.optimizer === 'Adafactor' ? optim.Adafactor : optim.AdamW;
    this.optimizer = new Kind(own, { lr: 0.05, weightDecay: 0.1 });
    this.scheduler = new optim.StepLR(this.optimizer, 2, { gamma: 0.5 });
    this.loader = new Counter();
    this.generator = new Generator().manualSeed(5);
    this.count = 0;
  }

  get state() {
    const { stages, optimizer, scheduler, loader, generator } = this;
    return { stages, optimizer, scheduler, loader, generators: { noise: generator } };
  }

  /** One step on the batch that the loader and the generator say; returns the losses. */
  step() {
    return scope(() => {
      manualSeed(1000 + this.loader.position);
      const [x, y] = [randn([16, WIDTH]), randn([16, WIDTH])];
      const noise = rand([16, WIDTH], { generator: this.generator, dtype: 'float64' });
      this.loader.position++;
      const rows = 16 / this.mesh.size('dp');
      const at = `${rows * this.mesh.getLocalRank('dp')}:${rows * (this.mesh.getLocalRank('dp') + 1)}`;
      /** @type {import('@pipewright/torch').Tensor[]} */
      const losses = [];
      this.optimizer.zeroGrad();
      this.runtime.step(x.add(noise).at(at), { target: y.at(at), losses });
      this.optimizer.step();
      this.scheduler.step();
      this.count++;
      return losses.map((loss) => loss.item());
    });
  }

  /** @param {string} folder @param {object} [options] */
  save(folder, options = {}) {
    const { state, schedule, count } = this;
    return saveCheckpoint(folder, { ...state, step: count, schedule, user: { count, text: 'né' }, ...options });
  }

  /** @param {string} folder */
  load(folder) {
    const loaded = loadCheckpoint(folder, this.state);
    this.count = loaded.step;
    return loaded;
  }

  /** All values of this rank by whole name, as numbers. */
  values() {
    return scope(() => {
      /** @type {Record<string, (number | null)[]>} */
      const found = {};
      for (const stage of this.stages)
        for (const [name, tensor] of stage.module.stateDict({ keepVars: true }))
          found[stage.wholeName(name)] = numbersOf(tensor, /** @type {any} */ (tensor));
      const known = new Map(
        this.stages.flatMap((stage) => stage.module.namedParameters().map(([name, p]) => [p, stage.wholeName(name)])),
      );
      for (const { params } of this.optimizer.paramGroups)
        for (const parameter of params)
          for (const [slot, tensor] of Object.entries(this.optimizer.stateOf(parameter)))
            found[`${known.get(/** @type {any} */ (parameter))}/${slot}`] = numbersOf(
              tensor,
              /** @type {any} */ (parameter),
            );
      return found;
    });
  }

  /** The rest of the state, as text. */
  rest() {
    return scope(() =>
      JSON.stringify([
        this.loader.position,
        this.count,
        this.scheduler.stateDict(),
        this.optimizer.paramGroups.map((group) => ({ ...group, params: group.params.length > 0 })),
        createHash('sha256')
          .update(/** @type {Uint8Array} */ (this.generator.getState().toTypedArray()))
          .digest('hex'),
      ]),
    );
  }

  dispose() {
    this.runtime.dispose();
  }
}

/**
 * The numbers of a tensor; where this rank holds a part of the parameter it belongs to, in their places, and null for the others.
 * @param {import('@pipewright/torch').Tensor} tensor @param {nn.Parameter} parameter
 */
function numbersOf(tensor, parameter) {
  const numbers = /** @type {number[]} */ (tensor.detach().to('float64').reshape([-1]).toArray());
  const shard = parameter instanceof nn.Parameter ? shardOf(parameter) : null;
  if (shard === null || tensor.dim() === 0) return numbers;
  const total = shard.globalShape.reduce((product, size) => product * size, 1);
  /** @type {(number | null)[]} */
  const all = Array.from({ length: total }, () => null);
  const first = (shard.offset * total) / /** @type {number} */ (shard.globalShape[0]);
  numbers.forEach((number, i) => (all[first + i] = number));
  return all;
}

/** @typedef {{ kind: 'save', layout: Layout, folder: string, steps: number, more: number } | { kind: 'load', layout: Layout, folder: string, more: number } | { kind: 'die', layout: Layout, folder: string, dying: number }} Case */

/** @param {Case} one */
function perform(one) {
  const deadly = one.kind === 'die' && distributed.getRank() === one.dying;
  if (deadly) setFileSystem(new URL('../checkpoint/deadly-files.mjs', import.meta.url).href);
  const run = new Run(one.layout);
  try {
    if (one.kind === 'die') {
      for (const _ of [1, 2]) run.step();
      run.save(one.folder, { keep: 2 }).wait();
      run.step();
      run.save(one.folder, { keep: 2, timeoutMs: 20_000 });
      run.step(); // training goes on while the thread writes
      return null;
    }
    if (one.kind === 'save') for (let i = 0; i < one.steps; i++) run.step();
    let bytes = 0;
    if (one.kind === 'save') run.save(one.folder);
    else bytes = run.load(one.folder).bytes;
    const [values, rest] = [run.values(), run.rest()];
    const losses = Array.from({ length: one.more }, () => run.step());
    return { values, rest, bytes, losses, after: one.more > 0 ? run.values() : {}, end: run.rest() };
  } finally {
    run.dispose();
  }
}

/** @param {Case[]} cases */
export function main(cases) {
  if (!distributed.isInitialized()) distributed.initProcessGroup();
  return cases.map(perform);
}

await runAsProgram(import.meta.url, main);
