// @ts-check
/**
 * @file Ranks of tests with replicas: a small model in stages on a mesh of pipeline and data, trained by AdamW in float64, and
 * the same training of the whole model on the whole batch.
 */

import { buildSchedule, Schedule } from '@pipewright/schedule';
import { distributed, manualSeed, nn, noGrad, optim, randn, scope, setDefaultDtype } from '@pipewright/torch';
import { fullyShard, initDeviceMesh, PipelineRuntime, PipelineStage, replicate, shardOf } from 'pipewright';
import { withHostLanes } from '../../host-lanes.mjs';
import { runAsProgram } from '../program.mjs';

const WIDTH = 5;

/** A stage: one part is frozen, one is used by nobody, one is tied to other stages. */
class Part extends nn.Module {
  /** @param {number} index */
  constructor(index) {
    super();
    manualSeed(100 + index);
    this.linear = new nn.Linear(WIDTH, WIDTH);
    this.frozen = new nn.Parameter(randn([WIDTH]), { requiresGrad: false });
    this.unused = new nn.Parameter(randn([3]));
    manualSeed(7);
    this.shared = new nn.Parameter(randn([WIDTH]));
  }
  /** @param {import('@pipewright/torch').Tensor} x */
  forward(x) {
    return this.linear.forward(x).tanh().add(this.frozen).mul(this.shared);
  }
}

/**
 * @typedef {{ schedule: string, pp: number, dp: number, stages: number, microbatches: number, rows: number[], accumulate: number,
 *   clip?: number, order?: object, checkpoint?: boolean, bucketCapMb?: number, evaluate?: boolean, divisor?: boolean, plain?: boolean,
 *   wrap?: 'replicate' | 'optimizer' | 'gradients' | 'parameters', replicas?: number, columns?: boolean, units?: boolean,
 *   reshardAfterForward?: boolean, norm?: number | 'inf', keepGrads?: boolean, device?: 'cpu' | 'cuda',
 *   alone?: boolean, lanes?: 'host' }} Case
 */

/** @param {Case} one @param {number} step */
function batchOf(one, step) {
  manualSeed(1000 + step);
  const total = one.rows.reduce((a, b) => a + b, 0);
  const { device = 'cpu' } = one;
  return { x: randn([total, WIDTH]).to({ device }), y: randn([total, WIDTH]).to({ device }) };
}

/** A stage where it computes; drawn on the CPU, so that every device begins with the same values. @param {Case} one @param {number} index */
function partOf({ device = 'cpu' }, index) {
  const part = new Part(index);
  part.to({ device });
  return part;
}

/** @param {import('@pipewright/torch').Tensor} output @param {import('@pipewright/torch').Tensor} target */
const meanLoss = (output, target) => nn.functional.mseLoss(output, target);
/** @param {import('@pipewright/torch').Tensor} output @param {import('@pipewright/torch').Tensor} target */
const sumLoss = (output, target) => nn.functional.mseLoss(output, target, { reduction: 'sum' });

/** A loss that needs no target. @param {import('@pipewright/torch').Tensor} output */
const squares = (output) => output.square().mean();

/** @param {Case} one */
function scheduleOf(one) {
  return one.order
    ? Schedule.from(/** @type {any} */ (one.order))
    : buildSchedule(one.schedule, { ranks: one.pp, stages: one.stages, microbatches: one.microbatches });
}

/** @param {Record<string, number[] | null>} into @param {string} prefix @param {nn.Module} module @param {boolean} grads */
function collect(into, prefix, module, grads) {
  for (const [name, parameter] of module.namedParameters()) {
    const value = grads ? parameter.grad : parameter;
    into[`${prefix}.${name}`] =
      value === null ? null : /** @type {number[]} */ (value.detach().cpu().reshape([-1]).toArray());
  }
}

/** @param {Case} one */
const normOf = ({ norm = 2 }) => (norm === 'inf' ? Number.POSITIVE_INFINITY : norm);

/** Plain training on the whole batch. @param {Case} one */
function plain(one) {
  setDefaultDtype('float64');
  const parts = Array.from({ length: one.stages }, (_, i) => partOf(one, i));
  const [first] = parts;
  for (const part of parts) part.shared = /** @type {Part} */ (first).shared;
  const model = new nn.Sequential(...parts);
  const optimizer = new optim.AdamW(
    model.parameters().filter((p) => p.requiresGrad),
    { lr: 0.05, weightDecay: 0.1 },
  );
  /** @type {Record<string, number[] | null>} */
  const grads = {};
  /** @type {number[]} */
  const norms = [];
  /** @type {number[]} */
  const losses = [];
  for (let step = 0; step < 3; step++) {
    if (!one.keepGrads) optimizer.zeroGrad();
    for (let part = 0; part < one.accumulate; part++) {
      const { x, y } = batchOf(one, step * one.accumulate + part);
      const output = model.forward(x);
      const loss = one.alone
        ? squares(output)
        : one.divisor
          ? sumLoss(output, y).div(one.rows.reduce((a, b) => a + b, 0) * 3)
          : meanLoss(output, y);
      losses.push(loss.item());
      loss.backward();
    }
    if (one.clip !== undefined)
      norms.push(nn.utils.clipGradNorm_(model.parameters(), one.clip, { normType: normOf(one) }).item());
    if (step === 2) parts.forEach((part, i) => collect(grads, String(i), part, true));
    optimizer.step();
  }
  /** @type {Record<string, number[] | null>} */
  const weights = {};
  parts.forEach((part, i) => collect(weights, String(i), part, false));
  return { grads, weights, norms, losses };
}

/** The place of each part in its whole. @param {import('pipewright').PipelineStage[]} stages */
function partsOf(stages) {
  /** @type {Record<string, object>} */
  const parts = {};
  for (const { stageIndex, module } of stages)
    for (const [name, parameter] of module.namedParameters()) {
      const shard = shardOf(parameter);
      if (shard === null) continue;
      const { globalShape, dim, offset, length } = shard;
      parts[`${stageIndex}.${name}`] = { globalShape, dim, offset, length };
    }
  return parts;
}

/** A part as a replica or a shard. @param {Case} one @param {Part} part @param {import('pipewright').DeviceMesh} mesh */
function wrapped(one, part, mesh) {
  const { wrap = 'replicate', replicas = 1, bucketCapMb } = one;
  if (wrap === 'replicate')
    return replicate(part, { mesh: mesh.get('dp'), ...(bucketCapMb !== undefined && { bucketCapMb }) });
  return fullyShard(part, {
    mesh: replicas > 1 ? mesh.get('replicate', 'shard') : mesh.get('dp'),
    level: wrap,
    ...(one.units && { units: [part.linear] }),
    ...(one.columns && { shardPlacementFn: (parameter) => parameter.ndim - 1 }),
    ...(one.reshardAfterForward && { reshardAfterForward: true }),
  });
}

/** Meshes by their shape: with NCCL every group has streams and connections of its own. @type {Map<string, { mesh: import('pipewright').DeviceMesh, lanes: any }>} */
const meshes = new Map();

/** The mesh of a case, and the group of its pipeline with lanes on the CPU. @param {Case} one */
function meshOf({ pp, dp, replicas = 1, device = 'cpu' }) {
  const key = [pp, dp, replicas, device].join();
  const known = meshes.get(key);
  if (known !== undefined) return known;
  const mesh =
    replicas > 1
      ? initDeviceMesh(device, [pp, replicas, dp / replicas], ['pp', 'replicate', 'shard'])
      : initDeviceMesh(device, [pp, dp], ['pp', 'dp']);
  const made = { mesh, lanes: withHostLanes(mesh.getGroup('pp')) };
  meshes.set(key, made);
  return made;
}

/** @param {Case} one */
function train(one) {
  setDefaultDtype('float64');
  const { replicas = 1 } = one;
  const { mesh, lanes } = meshOf(one);
  const schedule = scheduleOf(one);
  const replica =
    replicas > 1
      ? mesh.getLocalRank('replicate') * (one.dp / replicas) + mesh.getLocalRank('shard')
      : mesh.getLocalRank('dp');
  const stages = schedule.stagesOf(mesh.getLocalRank('pp')).map((index) => {
    const part = partOf(one, index);
    if (replica > 0) noGrad(() => part.linear.weight.mul_(0)); // the first replica's values count
    const module = wrapped(one, part, mesh);
    return new PipelineStage(module, index, one.stages, {
      group: one.lanes === 'host' ? lanes : mesh.getGroup('pp'),
      ties: { shared: 'shared' },
      checkpoint: one.checkpoint === true,
    });
  });
  const lossFn = one.alone ? squares : one.divisor ? sumLoss : meanLoss;
  const runtime = new PipelineRuntime(stages, schedule, { lossFn });
  const isFirst = stages.some(({ stageIndex }) => stageIndex === 0);
  const parameters = stages.flatMap((stage) => stage.module.parameters());
  const optimizer = new optim.AdamW(
    parameters.filter((p) => p.requiresGrad),
    { lr: 0.05, weightDecay: 0.1 },
  );
  const from = one.rows.slice(0, replica).reduce((a, b) => a + b, 0);
  const rows = `${from}:${from + /** @type {number} */ (one.rows[replica])}`;
  const total = one.rows.reduce((a, b) => a + b, 0);
  /** @type {Record<string, number[] | null>} */
  const grads = {};
  /** @type {number[]} */
  const norms = [];
  /** @type {number[]} */
  const losses = [];
  for (let step = 0; step < 3; step++)
    scope(() => {
      if (!one.keepGrads) optimizer.zeroGrad();
      for (let part = 0; part < one.accumulate; part++) {
        const { x, y } = batchOf(one, step * one.accumulate + part);
        const sync = part === one.accumulate - 1;
        /** @type {import('@pipewright/torch').Tensor[]} */
        const given = [];
        const target = one.alone ? {} : { target: y.at(rows) };
        const options = { ...target, losses: given, sync, ...(one.divisor && { divisor: total * 3 }) };
        runtime.step(...(one.alone && !isFirst ? [] : [x.at(rows)]), options);
        losses.push(...given.map((loss) => loss.item()));
        if (one.evaluate) runtime.eval(x.at(rows), { target: y.at(rows) });
      }
      if (one.clip !== undefined) norms.push(runtime.clipGradNorm_(one.clip, { normType: normOf(one) }));
      if (step === 2) for (const stage of stages) collect(grads, String(stage.stageIndex), stage.module, true);
      optimizer.step();
    });
  /** @type {Record<string, number[] | null>} */
  const weights = {};
  for (const stage of stages) collect(weights, String(stage.stageIndex), stage.module, false);
  const { parallel } = /** @type {any} */ (runtime);
  const parts = partsOf(stages);
  const gathers = [...(parallel?.gathers ?? [])];
  const planned = runtime.schedule.order[mesh.getLocalRank('pp')]?.filter((cell) => cell?.kind === 'UNSHARD').length;
  runtime.dispose();
  return {
    grads,
    weights,
    norms,
    losses,
    parts,
    reductions: [...(parallel?.counts ?? [])],
    gathers,
    planned,
    mesh: String(mesh),
  };
}

/** @param {Case[]} cases */
export function main(cases) {
  if (!distributed.isInitialized()) distributed.initProcessGroup();
  return cases.map((one) => (one.plain ? plain(one) : train(one)));
}

await runAsProgram(import.meta.url, main);
