// @ts-check
/**
 * @file What a rank of the tests of split graphs does: trains an exported model, cut into stages, in float64. `plain` is
 * the oracle: the unsplit graph, trained without a pipeline. Started like `training.mjs`.
 */
import { fileURLToPath } from 'node:url';
import { distributed, liveTensors, nn, optim, scope, tensor } from '@pipewright/torch';
import { GraphModule, loadPt2, PipelineRuntime, pipeline } from 'pipewright';
import { runAsProgram } from './program.mjs';

/**
 * @typedef {import('@pipewright/torch').Tensor} Tensor
 * @typedef {import('pipewright').Graph} Graph
 * @typedef {Map<string, import('@pipewright/torch').nn.Parameter | import('@pipewright/torch').nn.Buffer>} State
 * @typedef {{ losses: number[], grads: Record<string, number[]>, weights: Record<string, number[]> }} Found
 */

/**
 * @typedef {object} Case
 * @property {import('@pipewright/schedule').ScheduleName} schedule
 * @property {string} model
 * @property {number[]} stageToRank
 * @property {number} stages
 * @property {number} microbatches
 * @property {'replicate' | 'transmit'} [multiUse]
 * @property {'cpu' | 'cuda'} [device]
 */

const STEPS = 2;
const RATE = 0.1;

const file = (/** @type {string} */ name) =>
  fileURLToPath(new URL(`../../../../testdata/models/${name}.pt2`, import.meta.url));
/** @param {Tensor | null} value */
function numbersOf(value) {
  if (value === null) throw new Error('a parameter has no gradient');
  return Array.from(value.detach().cpu().flatten().toTypedArray(), Number);
}

const lossFn = (/** @type {Tensor} */ output) => output.square().mean();

/** An exported model in float64; what is cast to float32 inside is cast to float64. @param {Case} one */
function load({ model: name, device = 'cpu' }) {
  const model = loadPt2(file(name));
  const graph = JSON.parse(JSON.stringify(model.graph).replaceAll('"float32"', '"float64"'));
  /** @type {Map<Tensor, import('@pipewright/torch').nn.Parameter | import('@pipewright/torch').nn.Buffer>} */
  const made = new Map();
  const all = { removeDuplicate: false };
  /** @type {State} */
  const state = new Map();
  for (const [path, one] of [...model.namedParameters(all), ...model.namedBuffers(all)]) {
    const wide = made.get(one) ?? (one.isFloatingPoint() ? one.detach().double() : one.detach().clone()).to({ device });
    const member =
      wide instanceof nn.Parameter || wide instanceof nn.Buffer
        ? wide
        : one instanceof nn.Parameter
          ? new nn.Parameter(wide)
          : new nn.Buffer(wide, { persistent: one.persistent });
    made.set(one, member);
    state.set(path, member);
  }
  model.dispose();
  return { graph, state };
}

/** What is known of an input, which is a tensor. @param {unknown} meta */
function tensorMeta(meta) {
  return /** @type {{ dtype: import('@pipewright/torch').DTypeName, shape: (number | string)[] }} */ (meta);
}

/** The inputs of one step, other numbers in every step. @param {Graph} graph @param {Case} one @param {number} step */
function makeInputs(graph, { microbatches, device = 'cpu' }, step) {
  const rows = rowsOf(graph) * microbatches;
  return graph.nodes
    .filter((node) => node.kind === 'placeholder')
    .map(({ meta }, input) => {
      const { dtype, shape: sizes } = tensorMeta(meta);
      const shape = [rows, ...sizes.slice(1).map(Number)];
      const count = shape.reduce((a, b) => a * b, 1);
      const value = (/** @type {number} */ i) =>
        dtype === 'int64' ? (7 * i + 3 * step + input) % 90 : Math.sin(0.1 * i + step + 2 * input);
      return tensor(
        Array.from({ length: count }, (_, i) => value(i)),
        { dtype, device },
      ).reshape(shape);
    });
}

/** The first name of the tensor that is called so. @param {State} state @param {string} name */
function firstName(state, name) {
  return [...state.keys()].find((each) => state.get(each) === state.get(name)) ?? name;
}

/** Rows of a microbatch: what the graph was made for, or two. @param {Graph} graph */
function rowsOf(graph) {
  const [rows] = tensorMeta(graph.nodes[0]?.meta).shape;
  return typeof rows === 'number' ? rows : 2;
}

/** @param {Case} one */
export function plain(one) {
  return scope(() => {
    const { graph, state } = load(one);
    const model = new GraphModule(graph, state);
    const rows = rowsOf(graph);
    const optimizer = new optim.SGD(model.parameters(), { lr: RATE });
    /** @type {Found} */
    const result = { losses: [], grads: {}, weights: {} };
    const collect = (/** @type {'grad' | 'weight'} */ what) =>
      Object.fromEntries(
        model
          .namedParameters()
          .map(([name, one]) => [firstName(state, name), numbersOf(what === 'grad' ? one.grad : one)]),
      );
    for (let step = 0; step < STEPS; step++) {
      optimizer.zeroGrad();
      const inputs = makeInputs(graph, one, step);
      for (let m = 0; m < one.microbatches; m++) {
        const loss = lossFn(
          /** @type {Tensor} */ (model.forward(...inputs.map((each) => each.narrow(0, m * rows, rows)))),
        );
        loss.mul(1 / one.microbatches).backward();
        result.losses.push(loss.item());
      }
      if (step === 0) result.grads = collect('grad');
      optimizer.step();
    }
    result.weights = collect('weight');
    model.dispose();
    return result;
  });
}

/**
 * The part of one rank in a case.
 * @param {import('@pipewright/torch').distributed.ProcessGroup} group
 * @param {Case} one
 */
function train(group, one) {
  return scope(() => {
    const program = load(one);
    const isMarked = one.model.startsWith('split');
    const pipe = pipeline(program, { ...(isMarked ? {} : { stages: one.stages }), multiUse: one.multiUse });
    if (pipe.numStages !== one.stages) throw new Error(`${one.model} has ${pipe.numStages} stages, not ${one.stages}`);
    const own = one.stageToRank.flatMap((rank, index) => (rank === group.rank ? [index] : []));
    const stages = own.map((index) => pipe.buildStage(index, { group }));
    const runtime = new PipelineRuntime(stages, one.schedule, { microbatches: one.microbatches, lossFn, group });
    const parameters = stages.flatMap(({ module }) => module.parameters());
    const optimizer = parameters.length > 0 ? new optim.SGD(parameters, { lr: RATE }) : null;
    /** @type {Found & { live: number[] }} */
    const found = { losses: [], grads: {}, weights: {}, live: [] };
    const collect = (/** @type {'grad' | 'weight'} */ what) => {
      /** @type {Record<string, number[]>} */
      const values = {};
      for (const { stageIndex, module } of stages)
        for (const [local, one] of module.namedParameters()) {
          values[`${stageIndex} ${firstName(program.state, local)}`] = numbersOf(what === 'grad' ? one.grad : one);
        }
      return values;
    };
    for (let step = 0; step < STEPS; step++) {
      scope(() => {
        optimizer?.zeroGrad();
        const inputs = own.includes(0) ? makeInputs(program.graph, one, step) : [];
        /** @type {Tensor[]} */
        const losses = [];
        runtime.step(...inputs, { losses, returnOutputs: false });
        found.losses.push(...losses.map((loss) => loss.item()));
        if (step === 0) found.grads = collect('grad');
        optimizer?.step();
      });
      found.live.push(liveTensors());
    }
    found.weights = collect('weight');
    for (const module of [pipe, new GraphModule(program.graph, program.state)]) module.dispose();
    runtime.dispose();
    return found;
  });
}

/** @param {Case[]} cases */
export function main(cases) {
  const group = distributed.initProcessGroup({ timeoutMs: 100_000 });
  return cases.map((one) => train(group, one));
}

await runAsProgram(import.meta.url, main);
