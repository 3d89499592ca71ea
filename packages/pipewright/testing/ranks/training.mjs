// @ts-check
/**
 * @file What a rank of the tests of the runtime does, the same in a thread and in a process: `main(cases)` for threads,
 * `node training.mjs 0 '<json>'` for a process (with a number of threads: for all of them), which prints its result as one
 * line of JSON. `plain` is the oracle: the same training without a pipeline.
 */
import { distributed, liveTensors, manualSeed, noGrad, optim, scope } from '@pipewright/torch';
import { PipelineRuntime, PipelineStage } from 'pipewright';
import { title } from '../conformance.mjs';
import { withHostLanes } from '../host-lanes.mjs';
import { lossOf, makeBatch, makeStage } from './models.mjs';
import { runAsProgram } from './program.mjs';

/**
 * @typedef {import('@pipewright/torch').Tensor} Tensor
 * @typedef {import('@pipewright/torch').nn.Module} Module
 * @typedef {import('@pipewright/torch').distributed.ProcessGroup} ProcessGroup
 * @typedef {import('../launch.ts').TrainingResult} TrainingResult
 * @typedef {ReturnType<typeof makeBatch>} Batch
 * @typedef {{ index: number, module: Module }[]} Stages
 */

/**
 * @typedef {object} Case
 * @property {import('@pipewright/schedule').ScheduleName} schedule
 * @property {string} model
 * @property {number} ranks
 * @property {number[]} stageToRank
 * @property {number} stages
 * @property {number} microbatches
 * @property {number} rows
 * @property {number} [accumulate]
 * @property {boolean} [evaluate]
 * @property {boolean} [sameBatch] every step has the batch of the first
 * @property {boolean} [scaleGrads] false: the loss is a sum
 * @property {number} [rate]
 * @property {boolean} [ready] the microbatches are cut beforehand, into parts of other sizes than the runtime's
 * @property {number} [clip] the norm of all gradients is brought down to it
 * @property {string} [device] where the stages compute
 * @property {boolean} [capture] steps are captured
 * @property {boolean} [earlyGradients]
 * @property {boolean} [varyRows] the second step has more rows than the others; where there are more than three, the third
 * @property {number} [steps] default 3
 * @property {boolean} [alone] the loss needs no target, and only the rank of the first stage is given anything
 * @property {'host' | 'one stream'} [lanes] messages go over lanes on the CPU
 * @property {'remembered' | 'announced'} [messageShapes]
 */

const STEPS = 3;
const RATE = 0.1;

const numbersOf = (/** @type {Tensor} */ tensor) =>
  Array.from(tensor.detach().to('float64').flatten().toTypedArray(), Number);

/** A gradient that must be there. @param {Tensor} tensor */
function gradOf({ grad }) {
  if (grad === null) throw new Error('a parameter has no gradient');
  return grad;
}

/** A loss that needs no target. @param {Tensor} output */
const squares = (output) => output.square().mean();

/** Names every gradient and weight of the stages of a rank. @param {Stages} stages @param {'grad' | 'weight'} what */
function collect(stages, what) {
  /** @type {Record<string, number[] | null>} */
  const found = {};
  for (const { index, module } of stages)
    for (const [name, parameter] of module.namedParameters()) {
      const value = what === 'grad' ? parameter.grad : parameter;
      found[`${index}.${name}`] = value === null ? null : numbersOf(value);
    }
  return found;
}

/** A stage where it computes. @param {Case} one @param {ReturnType<typeof makeStage>} made */
function placed({ device }, made) {
  if (device !== undefined) made.module.to({ device });
  return made;
}

/** The number of rows of a step. @param {Case} one @param {number} step */
function rowsOf({ rows, varyRows, microbatches, steps = STEPS }, step) {
  return varyRows && step % 10 === (steps > STEPS ? 2 : 1) ? rows + microbatches + 1 : rows;
}

/** The batch of a step, where it is computed with. @param {Case} one @param {number} step */
function batchOf(one, step) {
  const batch = makeBatch(one.model, rowsOf(one, step), step);
  if (one.device === undefined) return batch;
  const move = (/** @type {Tensor} */ t) => t.to({ device: one.device });
  const kwargs = Object.fromEntries(Object.entries(batch.kwargs).map(([key, t]) => [key, move(t)]));
  return { x: move(batch.x), target: move(batch.target), kwargs };
}

/** Rows of each microbatch. @param {Case} one @param {number} rows */
function sizesOf({ microbatches, ready }, rows) {
  return Array.from({ length: microbatches }, (_, m) => {
    const size = Math.floor(rows / microbatches) + (m < rows % microbatches ? 1 : 0);
    return ready ? size + (m % 2 === 0 ? 1 : -1) : size;
  });
}

/** A tensor in microbatches. @param {Tensor} tensor @param {number[]} sizes */
function cutUp(tensor, sizes) {
  return sizes.map((size, m) =>
    tensor.narrow(
      0,
      sizes.slice(0, m).reduce((sum, each) => sum + each, 0),
      size,
    ),
  );
}

/** The seed of the random numbers of one forward. */
const seedOf = (/** @type {number} */ step, /** @type {number} */ stage, /** @type {number} */ microbatch) =>
  1000 * step + 100 * stage + microbatch;

/** @param {Case} one */
export function plain(one) {
  const made = Array.from({ length: one.stages }, (_, index) => ({
    index,
    ...placed(one, makeStage(one.model, index, one.stages)),
  }));
  /** @type {Map<string, Tensor[]>} */
  const tied = new Map();
  for (const { module, options } of made)
    for (const [name, tie] of Object.entries(options.ties ?? {})) {
      const copies = tied.get(tie) ?? [];
      tied.set(tie, copies);
      copies.push(module.getParameter(name));
      noGrad(() => module.getParameter(name).copy_(/** @type {Tensor} */ (copies[0])));
    }
  const parameters = made.flatMap(({ module }) => module.parameters()).filter((p) => p.requiresGrad);
  const optimizer = new optim.SGD(parameters, { lr: RATE });
  const lossFn = one.alone ? squares : lossOf(one.model);
  /**
   * Runs all stages on some rows.
   * @param {Pick<Batch, 'x' | 'kwargs'>} rows
   * @param {number} step
   * @param {number} microbatch
   * @returns {Tensor}
   */
  const forward = ({ x, kwargs }, step, microbatch) => {
    /** @type {any[]} what stages return: a tensor, or an object of them */
    const outputs = [];
    for (const { index, module, options } of made) {
      manualSeed(seedOf(step, index, microbatch));
      /** @type {unknown[]} */
      const inputs = options.inputs
        ? options.inputs.map(({ stage, output }) => outputs[stage][output ?? 0])
        : [index === 0 ? x : outputs[index - 1]];
      outputs.push(module.forward(...inputs, ...(options.kwargs?.length ? [kwargs] : [])));
    }
    return outputs.at(-1);
  };
  /** @type {TrainingResult} */
  const result = { losses: [], grads: {}, weights: {}, evals: [], norms: [] };
  for (let step = 0; step < (one.steps ?? STEPS); step++) {
    scope(() => {
      optimizer.zeroGrad();
      for (let part = 0; part < (one.accumulate ?? 1); part++) {
        const batch = batchOf(one, step + 10 * part);
        // Microbatch by microbatch, because random numbers belong to a microbatch.
        const rowCount = rowsOf(one, step);
        const sizes = sizesOf(one, rowCount);
        /** @type {number[]} */
        const losses = [];
        let start = 0;
        sizes.forEach((size, m) => {
          const rows = (/** @type {Tensor} */ t) => t.narrow(0, start, size);
          const kwargs = Object.fromEntries(Object.entries(batch.kwargs).map(([key, t]) => [key, rows(t)]));
          const output = forward({ x: rows(batch.x), kwargs }, step + 10 * part, m);
          const loss = lossFn(output, rows(batch.target));
          loss.mul(size / rowCount).backward();
          losses.push(loss.item());
          start += size;
        });
        result.losses.push(losses);
      }
      for (const copies of tied.values()) {
        const sum = copies.map(gradOf).reduce((a, b) => a.add(b));
        for (const copy of copies) copy.grad = sum.clone();
      }
      if (one.clip !== undefined) {
        const counted = new Set([...tied.values()].flatMap((copies) => copies.slice(1)));
        const grads = parameters.filter((p) => !counted.has(p)).map(gradOf);
        const norm = Math.sqrt(grads.reduce((sum, grad) => sum + grad.square().sum().item(), 0));
        for (const p of parameters) p.grad = gradOf(p).mul(Math.min(1, one.clip / (norm + 1e-6)));
        result.norms.push(norm);
      }
      if (step === 0) result.grads = collect(made, 'grad');
      optimizer.step();
      if (one.evaluate) {
        const batch = batchOf(one, 50 + step);
        result.evals.push(numbersOf(noGrad(() => forward(batch, 50 + step, 0))));
      }
    });
  }
  result.weights = collect(made, 'weight');
  return result;
}

/** The part of one rank in a case. @param {ProcessGroup} group @param {Case} one */
export function train(group, one) {
  const before = liveTensors();
  const result = scope(() => {
    const stages = stagesOf(one, group);
    const runtime = new PipelineRuntime(
      stages.map(({ stage }) => stage),
      one.schedule,
      {
        microbatches: one.microbatches,
        lossFn: one.alone ? squares : lossOf(one.model, one.scaleGrads),
        scaleGrads: one.scaleGrads,
        group,
        capture: one.capture,
        messageShapes: one.messageShapes,
        earlyGradients: one.earlyGradients,
      },
    );
    let step = 0;
    // Only where numbers are drawn: with a hook the runtime sends gradients after the whole backward.
    if (one.model === 'dropout')
      runtime.addHook({
        before: (action) => {
          if (action.kind === 'F') manualSeed(seedOf(step, action.stage, action.microbatch ?? 0));
        },
      });
    const parameters = stages.flatMap(({ module }) => module.parameters()).filter((p) => p.requiresGrad);
    const optimizer = parameters.length > 0 ? new optim.SGD(parameters, { lr: one.rate ?? RATE }) : null;
    const isFirst = stages.some(({ index }) => index === 0);
    const isLast = stages.some(({ index }) => index === one.stages - 1);
    /**
     * What the runtime is given for a batch: the same on every rank, since what its stages do not use is ignored.
     * @param {Batch} batch
     * @returns {{ inputs: Tensor[], options: import('pipewright').StepOptions<readonly Tensor[], Tensor, Tensor> }}
     */
    const given = (batch) => {
      if (one.alone && !one.ready) return { inputs: isFirst ? [batch.x] : [], options: {} };
      if (!one.ready)
        return { inputs: [batch.x], options: { target: batch.target, ...(isLast ? { kwargs: batch.kwargs } : {}) } };
      const sizes = sizesOf(one, batch.x.shape[0] ?? 0);
      const named = (/** @type {number} */ m) =>
        Object.entries(batch.kwargs).map(([key, value]) => [key, cutUp(value, sizes)[m]]);
      return {
        inputs: [],
        options: {
          ...(isFirst ? { argMbs: cutUp(batch.x, sizes).map((x) => [x]) } : {}),
          ...(isLast && !one.alone
            ? { targetMbs: cutUp(batch.target, sizes), kwargMbs: sizes.map((_, m) => Object.fromEntries(named(m))) }
            : {}),
        },
      };
    };
    /** @type {TrainingResult & { parts: number[][], inFlight: number }} */
    const found = {
      losses: [],
      grads: {},
      weights: {},
      evals: [],
      parts: [],
      norms: [],
      inFlight: 0,
      captureProblem: null,
    };
    const evaluate = (/** @type {number} */ at) => {
      const { inputs, options } = given(batchOf(one, at));
      /** @type {number[][]} */
      const parts = [];
      const onOutput = (/** @type {Tensor} */ part, /** @type {number} */ microbatch) => {
        parts[microbatch] = numbersOf(part);
      };
      const output = runtime.eval(...inputs, { ...options, returnOutputs: 'everywhere', onOutput });
      found.evals.push(numbersOf(/** @type {Tensor} */ (output)));
      found.parts.push(...parts);
    };
    if (one.evaluate) evaluate(99);
    for (let i = 0; i < (one.steps ?? STEPS); i++) {
      scope(() => {
        optimizer?.zeroGrad();
        for (let part = 0; part < (one.accumulate ?? 1); part++) {
          step = i + 10 * part;
          const { inputs, options } = given(batchOf(one, one.sameBatch ? 0 : step));
          /** @type {Tensor[]} */
          const losses = [];
          runtime.step(...inputs, { ...options, losses, returnOutputs: false });
          if (isLast) found.losses.push(losses.map((loss) => loss.item()));
        }
        if (one.clip !== undefined) found.norms.push(runtime.clipGradNorm_(one.clip));
        if (i === 0) found.grads = collect(stages, 'grad');
        optimizer?.step();
        if (one.evaluate) evaluate(50 + i);
      });
    }
    if (one.evaluate) {
      found.evals.shift();
      if (isLast) found.parts.splice(0, one.microbatches);
    }
    found.weights = collect(stages, 'weight');
    found.inFlight = stages.reduce((sum, { stage }) => sum + stage.inFlight, 0);
    found.captureProblem = runtime.captureProblem;
    for (const { module } of stages) module.dispose();
    runtime.dispose();
    return found;
  });
  return { ...result, leaked: liveTensors() - before };
}

/** The stages of this rank. @param {Case} one @param {ProcessGroup} group */
function stagesOf(one, group) {
  return one.stageToRank.flatMap((rank, index) => {
    if (rank !== group.rank) return [];
    const { module, options } = placed(one, makeStage(one.model, index, one.stages));
    return [{ index, module, stage: new PipelineStage(module, index, one.stages, { ...options, group }) }];
  });
}

/** @param {Case[]} cases */
export function main(cases) {
  const backend = /** @type {import('@pipewright/torch').distributed.Backend | undefined} */ (
    process.env['PIPEWRIGHT_TEST_BACKEND']
  );
  const timeoutMs = Number(process.env['PIPEWRIGHT_TEST_TIMEOUT_MS'] ?? 100_000);
  const group = distributed.initProcessGroup({ timeoutMs, backend });
  const groups = { host: withHostLanes(group), 'one stream': withHostLanes(group, { oneStream: true }) };
  return cases.map((one) => {
    try {
      return train(one.lanes === undefined ? group : groups[one.lanes], one);
    } catch (error) {
      throw new Error(`rank ${group.rank}: ${title(one)}`, { cause: error });
    }
  });
}

await runAsProgram(import.meta.url, main);
