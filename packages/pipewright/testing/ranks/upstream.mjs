// @ts-check
/**
 * @file What ranks do in the tests of behaviour that PyTorch's own tests of pipelining ask for: a stage per rank, built in
 * the ways that its users build them, run under GPipe and 1F1B. Started like `training.mjs`.
 */
import { distributed, float64, manualSeed, nn, randn, scope, zeros } from '@pipewright/torch';
import { buildStage, PipelineRuntime, PipelineStage, pipeline, pipeSplit, SplitPoint } from 'pipewright';
import { runAsProgram } from './program.mjs';

/** @typedef {import('@pipewright/torch').Tensor} Tensor */

/** @typedef {{ way: string, schedule: import('@pipewright/schedule').ScheduleName }} Case */

const WIDTH = 6;
const ROWS = 8;
const CHUNKS = 4;

class Mlp extends nn.Module {
  net1 = new nn.Linear(WIDTH, WIDTH);
  net2 = new nn.Linear(WIDTH, WIDTH);
  /** @param {Tensor} x */
  forward(x) {
    return this.net2.forward(this.net1.forward(x).relu());
  }
}

/** Layers one after the other. */
class MultiMlp extends nn.Module {
  layers;
  /** @param {number} count */
  constructor(count) {
    super();
    this.layers = new nn.ModuleList(Array.from({ length: count }, () => new Mlp()));
  }
  /** @param {Tensor} x */
  forward(x) {
    let y = x;
    for (const layer of this.layers) y = layer.forward(y);
    return y;
  }
}

/** Parameters that are used in several stages, a constant, a skip connection, and marks in the code. */
class Example extends nn.Module {
  mm = new nn.Parameter(randn(WIDTH, WIDTH, { dtype: float64 }));
  other = new nn.Parameter(randn(WIDTH, WIDTH, { dtype: float64 }));
  constant = new nn.Buffer(randn(1, WIDTH, { dtype: float64 }));
  lin1 = new nn.Linear(WIDTH, WIDTH);
  lin2 = new nn.Linear(WIDTH, WIDTH);
  /** @param {Tensor} x */
  forward(x) {
    const skip = x.matmul(this.mm).relu();
    const first = this.lin1.forward(skip.add(this.constant)).matmul(this.mm);
    pipeSplit();
    const y = first.add(skip).relu();
    return this.lin2.forward(y.add(this.constant).matmul(this.other)).relu();
  }
}

/** A named input, which both stages take. */
class WithKwargs extends nn.Module {
  mm = new nn.Parameter(randn(WIDTH, WIDTH, { dtype: float64 }));
  lin0 = new nn.Linear(WIDTH, WIDTH);
  lin1 = new nn.Linear(WIDTH, WIDTH);
  /** @param {Tensor} x @param {{ y: Tensor }} named */
  forward(x, { y }) {
    const first = this.lin0.forward(x.matmul(this.mm).add(y)).relu();
    pipeSplit();
    return this.lin1.forward(first).add(y);
  }
}

/** @param {Tensor | null} tensor */
const numbers = (tensor) => Array.from(tensor?.detach().flatten().toTypedArray() ?? [], Number);
const lossFn = (/** @type {Tensor} */ output, /** @type {Tensor} */ target) => output.sub(target).square().sum();

/**
 * A way to build the rank's stage; `kwargs` are the names of further inputs.
 * @template {import('@pipewright/torch').nn.Module} M
 * @param {{ make: () => M, build: (model: M, x: Tensor, rank: number, kwargs: Record<string, Tensor>) => PipelineStage, kwargs?: string[] }} one
 */
const way = ({ make, build, kwargs = [] }) => ({
  kwargs,
  make: () => {
    const model = make().double();
    return {
      model: /** @type {import('@pipewright/torch').nn.Module & { forward(...inputs: any[]): Tensor }} */ (model),
      build: (/** @type {Tensor} */ x, /** @type {number} */ rank, /** @type {Record<string, Tensor>} */ named) =>
        build(model, x, rank, named),
    };
  },
});

/** @type {Record<string, ReturnType<typeof way>>} */
const ways = {
  tracedMarks: way({
    make: () => new Example(),
    build: (model, x, rank) => pipeline(model, [x]).buildStage(rank, 'cpu'),
  }),
  tracedSpec: way({
    make: () => new MultiMlp(4),
    build: (model, x, rank) =>
      pipeline(model, [x], { splitSpec: { 'layers.1': SplitPoint.END } }).buildStage(rank, 'cpu'),
  }),
  tracedKwargs: way({
    make: () => new WithKwargs(),
    kwargs: ['y'],
    build: (model, x, rank, kwargs) => {
      const pipe = pipeline(model, [x], { mbKwargs: kwargs });
      return buildStage(pipe.getStageModule(rank), rank, pipe.info(), 'cpu');
    },
  }),
  manual: way({
    make: () => new MultiMlp(2),
    build: (model, _x, rank) => new PipelineStage(model.layers.at(rank), rank, 2),
  }),
};

/**
 * One rank's part of one case: outputs, losses and gradients, and those of the whole model without a pipeline.
 * @param {import('@pipewright/torch').distributed.ProcessGroup} group
 * @param {Case} one
 */
function run(group, { way: name, schedule }) {
  return scope(() => {
    const found = ways[name];
    if (found === undefined) throw new Error(`no way '${name}'`);
    const { make, kwargs: names } = found;
    manualSeed(7);
    const { model, build } = make();
    const make2 = () => randn(ROWS, WIDTH, { dtype: float64 });
    const [x, target] = [make2(), make2()];
    const kwargs = Object.fromEntries(names.map((key) => [key, make2()]));
    const given = names.length === 0 ? [x] : [x, kwargs];
    const example = zeros([ROWS / CHUNKS, WIDTH], { dtype: float64 });
    const exampleKwargs = Object.fromEntries(names.map((key) => [key, example]));
    const plainOutput = model.forward(...given);
    const plainLoss = lossFn(plainOutput, target);
    plainLoss.backward();
    const want = Object.fromEntries(model.namedParameters().map(([name, one]) => [name, numbers(one.grad)]));
    for (const one of model.parameters()) one.grad = null;
    const stage = build(example, group.rank, exampleKwargs);
    const options = { microbatches: CHUNKS, lossFn, scaleGrads: false, group };
    const runtime = new PipelineRuntime(stage, schedule, options);
    /** @type {Tensor[]} */
    const losses = [];
    const output = runtime.step(x, { target, losses, ...(names.length === 0 ? {} : { kwargs }) });
    const prefix = name === 'manual' ? `layers.${group.rank}.` : '';
    const result = {
      output: output === undefined ? null : numbers(output),
      plainOutput: numbers(plainOutput),
      loss: losses.reduce((sum, loss) => sum + loss.item(), 0),
      plainLoss: plainLoss.item(),
      grads: Object.fromEntries(
        stage.module.namedParameters().map(([name, one]) => [prefix + name, numbers(one.grad)]),
      ),
      want,
      keys: [...stage.module.stateDict().keys()].map((key) => prefix + key),
      allKeys: [...model.stateDict().keys()],
      inFlight: stage.inFlight,
    };
    runtime.dispose();
    return result;
  });
}

/** @param {Case[]} cases */
export function main(cases) {
  const group = distributed.initProcessGroup({ timeoutMs: 100_000 });
  return cases.map((one) => run(group, one));
}

await runAsProgram(import.meta.url, main);
