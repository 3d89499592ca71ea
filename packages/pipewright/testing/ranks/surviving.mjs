// @ts-check
/**
 * @file Ranks of tests that survive losses: a small model with dropout on a mesh of stages and replicas, AdamW, a learning rate
 * schedule, a loader with a state, a generator, counters. Ranks end themselves where the test says, each time once.
 */
import { createHash } from 'node:crypto';
import { closeSync, openSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import {
  distributed,
  Generator,
  manualSeed,
  nn,
  optim,
  randn,
  saveSafetensors,
  scope,
  setDefaultDtype,
  stack,
} from '@pipewright/torch';
import {
  DataLoader,
  Dataset,
  fullyShard,
  hasCheckpoint,
  initDeviceMesh,
  loadCheckpoint,
  meshCoordinate,
  PipelineRuntime,
  PipelineStage,
  replicate,
  saveCheckpoint,
  trainLoop,
} from '../../dist/index.js';

/**
 * @typedef {object} End where a rank ends itself: at a slot, or after a number of milliseconds
 * @property {number} rank
 * @property {number} step
 * @property {number} [slot] -1: before the optimizer; -2: after it; -5: before a save; -4: in one; -3: in connect, after that step has begun
 * @property {'exit' | 'throw' | 'kill' | 'leave' | 'stop'} [how]
 */
/**
 * @typedef {object} Life
 * @property {number} [stages]
 * @property {number} [replicas]
 * @property {number} [steps]
 * @property {number} [microbatches]
 * @property {import('@pipewright/schedule').ScheduleName} [schedule]
 * @property {number} [width]
 * @property {number} [copies]
 * @property {number} [copyEvery]
 * @property {number} [pauseMs] of every step
 * @property {readonly End[]} [ends]
 * @property {{ rank: number, how: 'ends' | 'sleeps' }} [absent] a rank that never comes to its loop
 * @property {{ rank: number, step: number }} [breaks] a layer of this rank throws in this step
 * @property {string} folder where ranks note that they have ended, and how often ranks were started again before them
 * @property {number} [saveEvery] after how many steps the parameters are written to a file; with shards, a checkpoint is saved
 * @property {import('pipewright').ShardLevel} [shards] the ranks beside the pipeline have shards, a DataLoader and checkpoints
 */

/** Batches in an order that follows from a seed, with a state. */
class Batches {
  constructor(/** @type {number} */ width) {
    this.width = width;
    this.at = 0;
  }
  next(/** @type {number} */ replica, /** @type {number} */ rows) {
    const generator = new Generator().manualSeed(1000 * this.at++ + replica);
    return { x: randn([rows, this.width], { generator }), y: randn([rows, this.width], { generator }) };
  }
  stateDict() {
    return { at: this.at };
  }
  loadStateDict(/** @type {{ at: number }} */ { at }) {
    this.at = at;
  }
}

/** A layer that fails when it is told to. */
class Breaking extends nn.Tanh {
  constructor(/** @type {() => boolean} */ isBroken) {
    super();
    this.isBroken = isBroken;
  }
  /** @override @param {import('@pipewright/torch').Tensor} x */
  forward(x) {
    if (this.isBroken()) throw new RangeError('the layer is broken');
    return super.forward(x);
  }
}

/** Samples that follow from their numbers. */
class Rows extends Dataset {
  constructor(/** @type {number} */ width) {
    super();
    this.length = 37;
    this.width = width;
  }
  /** @param {number} index */
  getItem(index) {
    const x = Float64Array.from({ length: this.width }, (_, i) => Math.sin(index * this.width + i));
    return { x, y: x.map((value) => value * value) };
  }
}

/** The same from a DataLoader. */
class LoadedBatches {
  constructor(
    /** @type {number} */ width,
    /** @type {number} */ batchSize,
    /** @type {[number, number]} */ [rank, numReplicas],
  ) {
    const options = { batchSize, shuffle: true, seed: 3, numReplicas, rank, fillLast: true };
    this.loader = new DataLoader(new Rows(width), options);
  }
  next() {
    return /** @type {{ x: import('@pipewright/torch').Tensor, y: import('@pipewright/torch').Tensor }} */ (
      this.loader.nextBatch()
    );
  }
  stateDict() {
    return this.loader.stateDict();
  }
  loadStateDict(/** @type {import('pipewright').DataLoaderState} */ state) {
    this.loader.loadStateDict(state);
  }
}

/** @param {Life} life */
export async function main(life) {
  const { stages = 4, replicas = 2, steps = 4, microbatches = 4, schedule = '1F1B', width = 4 } = life;
  setDefaultDtype('float64');
  const rank = Number(distributed.rankEnvironment().RANK);
  writeFileSync(join(life.folder, `count-${rank}`), process.env['TORCHELASTIC_RESTART_COUNT'] ?? '');
  if (life.absent?.rank === rank) {
    if (life.absent.how === 'sleeps') await new Promise((resolve) => setTimeout(resolve, 1e9));
    return undefined;
  }
  const [pp, dp] = /** @type {[number, number]} */ (meshCoordinate([stages, replicas]));
  manualSeed(pp);
  let now = -1;
  const module = new nn.Sequential(
    new nn.Linear(width, width),
    new nn.Dropout(0.2),
    new Breaking(() => rank === life.breaks?.rank && now === life.breaks.step),
  );
  manualSeed(100 + rank); // dropout of each rank
  const optimizer = new optim.AdamW(module.parameters(), { lr: 0.05 });
  const scheduler = new optim.StepLR(optimizer, 2, { gamma: 0.7 });
  const loader = life.shards ? new LoadedBatches(width, 2 * microbatches, [dp, replicas]) : new Batches(width);
  const noise = new Generator().manualSeed(rank);
  const counters = { samples: 0, draws: '', losses: '' };
  let row = 0;
  /** @type {ReturnType<typeof saveCheckpoint> | undefined} */
  let lastSave;
  const end = (/** @type {number} */ slot) => endHere(life, rank, now, slot);
  const checkpoints = join(life.folder, 'checkpoints');
  const whole = (/** @type {PipelineRuntime} */ { stages: own }) => ({
    ...{ stages: own, optimizer, scheduler, loader, generators: { noise } },
  });
  await trainLoop({
    steps,
    state: { module, optimizer, scheduler, loader, noise, counters },
    copies: life.copies,
    copyEvery: life.copyEvery,
    checkpoint:
      life.saveEvery === undefined
        ? undefined
        : {
            every: life.saveEvery,
            save: (runtime, step) => {
              end(-5);
              if (life.shards)
                lastSave = saveCheckpoint(checkpoints, { ...whole(runtime), step, user: { ...counters } });
              else saveSafetensors(join(life.folder, `saved-${rank}`), module.stateDict());
              end(-4);
            },
            load: (runtime) => {
              if (!life.shards || !hasCheckpoint(checkpoints)) return undefined;
              const { step, user } = loadCheckpoint(checkpoints, whole(runtime));
              Object.assign(counters, user);
              return step;
            },
          },
    connect: () => {
      end(-3);
      const mesh = initDeviceMesh('cpu', [stages, replicas], ['pp', 'dp']);
      if (life.shards) fullyShard(module, { mesh: mesh.get('dp'), level: life.shards });
      else if (replicas > 1) replicate(module, { mesh: mesh.get('dp') });
      const names = (/** @type {string} */ name) => `stages.${pp}.${name}`;
      const stage = new PipelineStage(module, pp, stages, { group: mesh.getGroup('pp'), names });
      const runtime = new PipelineRuntime(stage, schedule, { microbatches, lossFn: nn.functional.mseLoss });
      runtime.addHook({ before: (_, slot) => end(slot) });
      return runtime;
    },
    step: async (runtime, step) => {
      now = step;
      if (life.pauseMs !== undefined) await new Promise((resolve) => setTimeout(resolve, life.pauseMs));
      scope(() => {
        const { x, y } = loader.next(dp, 2 * microbatches);
        /** @type {import('@pipewright/torch').Tensor[]} */
        const found = [];
        optimizer.zeroGrad();
        runtime.step(x, { target: y, losses: found });
        row = runtime.schedule.order[pp]?.length ?? 0;
        end(-1);
        runtime.clipGradNorm_(1);
        optimizer.step();
        scheduler.step();
        counters.samples += 2 * microbatches;
        counters.draws += randn([1], { generator: noise }).item().toFixed(3);
        if (found.length > 0) counters.losses += `${step}: ${stack(found).mean().item()} `;
        end(-2);
      });
    },
  });
  lastSave?.wait();
  const hash = createHash('sha256');
  for (const [name, tensor] of module.stateDict())
    hash.update(name).update(Buffer.from(tensor.contiguous().toTypedArray().buffer));
  for (const record of Object.values(optimizer.stateDict().state))
    for (const tensor of Object.values(record)) hash.update(Buffer.from(tensor.contiguous().toTypedArray().buffer));
  hash.update(JSON.stringify([scheduler.stateDict(), loader.stateDict(), counters]));
  hash.update(Buffer.from(noise.getState().toTypedArray().buffer));
  return { hash: hash.digest('hex'), losses: counters.losses, samples: counters.samples, row };
}

/** Ends this rank if it is to end here, and has not yet. @param {Life} life @param {number} rank @param {number} step @param {number} slot */
function endHere({ ends = [], folder }, rank, step, slot) {
  ends.forEach((one, i) => {
    if (one.rank !== rank || (slot === -3 ? step < one.step : step !== one.step) || (one.slot ?? 0) !== slot) return;
    try {
      closeSync(openSync(join(folder, `ended-${i}`), 'wx'));
    } catch {
      return; // it has ended here before
    }
    const { how = 'exit' } = one;
    if (how === 'throw') throw new RangeError('the rank fails here');
    if (how === 'kill') process.kill(process.pid, 'SIGKILL');
    else if (how === 'stop') process.kill(process.pid, 'SIGSTOP');
    else process.exit(how === 'leave' ? 0 : 3);
  });
}
