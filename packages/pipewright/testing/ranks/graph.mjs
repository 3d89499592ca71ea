/**
 * @file What a rank of the tests of split graphs does: trains an exported model, cut into stages, in float64. `plain` is
 * the oracle: the unsplit graph, trained without a pipeline. Started like `training.mjs`.
 */
import { fileURLToPath } from 'node:url';
import { distributed, liveTensors, nn, optim, scope, tensor } from '@pipewright/torch';
import { GraphModule, loadPt2, PipelineRuntime, pipeline } from 'pipewright';
import { runAsProgram } from './program.mjs';

/**
 * @typedef {object} Case
 * @property {string} schedule
 * @property {string} model
 * @property {number[]} stageToRank
 * @property {number} stages
 * @property {number} microbatches
 * @property {'replicate' | 'transmit'} [multiUse]
 */

const STEPS = 2;
const RATE = 0.1;

const file = (name) => fileURLToPath(new URL(`../../../../testdata/models/${name}.pt2`, import.meta.url));
const numbersOf = (value) => Array.from(value.detach().flatten().toTypedArray());
const lossFn = (output) => output.square().mean();

/** An exported model in float64; what is cast to float32 inside is cast to float64. */
function load(name) {
  const model = loadPt2(file(name));
  const graph = JSON.parse(JSON.stringify(model.graph).replaceAll('"float32"', '"float64"'));
  const made = new Map();
  const all = { removeDuplicate: false };
  const state = new Map();
  for (const [path, one] of [...model.namedParameters(all), ...model.namedBuffers(all)]) {
    const wide = made.get(one) ?? (one.isFloatingPoint() ? one.detach().double() : one.detach().clone());
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

/** The inputs of one step, other numbers in every step. */
function makeInputs(graph, rows, step) {
  return graph.nodes
    .filter((node) => node.kind === 'placeholder')
    .map(({ meta }, input) => {
      const shape = [rows, ...meta.shape.slice(1)];
      const count = shape.reduce((a, b) => a * b, 1);
      const value = (i) =>
        meta.dtype === 'int64' ? (7 * i + 3 * step + input) % 90 : Math.sin(0.1 * i + step + 2 * input);
      return tensor(
        Array.from({ length: count }, (_, i) => value(i)),
        { dtype: meta.dtype },
      ).reshape(shape);
    });
}

/** The first name of the tensor that is called so. */
function firstName(state, name) {
  return [...state.keys()].find((each) => state.get(each) === state.get(name));
}

/** Rows of a microbatch: what the graph was made for, or two. */
function rowsOf(graph) {
  const [first] = graph.nodes;
  return typeof first.meta.shape[0] === 'number' ? first.meta.shape[0] : 2;
}

/** @param {Case} one */
export function plain(one) {
  return scope(() => {
    const { graph, state } = load(one.model);
    const model = new GraphModule(graph, state);
    const rows = rowsOf(graph);
    const optimizer = new optim.SGD(model.parameters(), { lr: RATE });
    const result = { losses: [], grads: {}, weights: {} };
    const collect = (what) =>
      Object.fromEntries(
        model
          .namedParameters()
          .map(([name, one]) => [firstName(state, name), numbersOf(what === 'grad' ? one.grad : one)]),
      );
    for (let step = 0; step < STEPS; step++) {
      optimizer.zeroGrad();
      const inputs = makeInputs(graph, rows * one.microbatches, step);
      for (let m = 0; m < one.microbatches; m++) {
        const loss = lossFn(model.forward(...inputs.map((each) => each.narrow(0, m * rows, rows))));
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

/** The part of one rank in a case. */
export function train(group, /** @type {Case} */ one) {
  return scope(() => {
    const program = load(one.model);
    const isMarked = one.model.startsWith('split');
    const pipe = pipeline(program, { ...(isMarked ? {} : { stages: one.stages }), multiUse: one.multiUse });
    if (pipe.numStages !== one.stages) throw new Error(`${one.model} has ${pipe.numStages} stages, not ${one.stages}`);
    const own = one.stageToRank.flatMap((rank, index) => (rank === group.rank ? [index] : []));
    const stages = own.map((index) => pipe.buildStage(index, { group }));
    const runtime = new PipelineRuntime(stages, one.schedule, { microbatches: one.microbatches, lossFn, group });
    const parameters = stages.flatMap(({ module }) => module.parameters());
    const optimizer = parameters.length > 0 ? new optim.SGD(parameters, { lr: RATE }) : null;
    const rows = rowsOf(program.graph);
    const found = { losses: [], grads: {}, weights: {}, live: [] };
    const collect = (what) => {
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
        const inputs = own.includes(0) ? makeInputs(program.graph, rows * one.microbatches, step) : [];
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
