// @ts-check
/**
 * @file What ranks do in the test of buffers that a stage changes and gives to the next one. Started like `training.mjs`;
 * `plain` is the oracle: the same microbatches through the whole model, without a pipeline.
 */
import { distributed, float64, manualSeed, nn, noGrad, randn, scope, unscoped, zeros } from '@pipewright/torch';
import { PipelineRuntime, PipelineStage, pipeline } from 'pipewright';
import { runAsProgram } from './program.mjs';

/**
 * @typedef {import('@pipewright/torch').Tensor} Tensor
 * @typedef {import('@pipewright/torch').distributed.ProcessGroup} ProcessGroup
 * @typedef {{ readonly kind: keyof typeof kinds, readonly schedule: import('@pipewright/schedule').ScheduleName, readonly isPipe: boolean }} Case
 * @typedef {{ grads: number[][], outputs: number[][] }} Found
 */

const MICROBATCHES = 4;
const of64 = { dtype: float64 };

/** What the first stage gives besides its output: something that its forward changes. */
const kinds = {
  buffer: (/** @type {First} */ { n }) => noGrad(() => n.add_(1)),
  'the buffer itself': (/** @type {First} */ { n }) => {
    noGrad(() => n.add_(1));
    return n;
  },
  'a view of it': (/** @type {First} */ { pair }) => {
    noGrad(() => pair.add_(1));
    return pair.narrow(0, 1, 1);
  },
  'running statistics': (/** @type {First} */ { norm }, /** @type {Tensor} */ h) => {
    norm.forward(h.detach());
    return norm.runningMean ?? h;
  },
  'a field': (/** @type {First} */ { plain }) => noGrad(() => plain.add_(1)),
};

class First extends nn.Module {
  fc = new nn.Linear(4, 4);
  n = new nn.Buffer(zeros([1]));
  pair = new nn.Buffer(zeros([2]));
  norm = new nn.BatchNorm1d(4);
  plain = zeros([1], of64);

  /** @param {keyof typeof kinds} kind */
  constructor(kind) {
    super();
    this.kind = kind;
    this.double();
  }
  /** @param {Tensor} x @returns {[Tensor, Tensor]} */
  forward(x) {
    const h = this.fc.forward(x).tanh();
    return [h, kinds[this.kind](this, h)];
  }
}

class Second extends nn.Module {
  fc = new nn.Linear(4, 4).double();
  /** @param {Tensor} h @param {Tensor} n @returns {[Tensor, Tensor]} */
  forward(h, n) {
    return [this.fc.forward(h).mul(n), n];
  }
}

class Whole extends nn.Module {
  /** @param {keyof typeof kinds} kind */
  constructor(kind) {
    super();
    manualSeed(3);
    this.first = new First(kind);
    this.second = new Second();
  }
  /** @param {Tensor} x */
  forward(x) {
    const [h, n] = this.first.forward(x);
    return this.second.forward(h, n);
  }
}

const lossFn = (/** @type {[Tensor, Tensor]} */ [y]) => y.square().mean();

function makeBatch() {
  manualSeed(4);
  return randn([8, 4], of64);
}

const numbers = (/** @type {Tensor} */ tensor) => Array.from(tensor.detach().flatten().toTypedArray(), Number);
const gradsOf = (/** @type {import('@pipewright/torch').nn.Module[]} */ modules) =>
  modules.flatMap((module) => module.parameters().flatMap(({ grad }) => (grad === null ? [] : [numbers(grad)])));

/** @param {Case} one @returns {Found} */
export function plain({ kind }) {
  const model = new Whole(kind);
  const outputs = makeBatch()
    .chunk(MICROBATCHES)
    .map((x) => {
      const output = model.forward(x);
      const seen = output.flatMap(numbers);
      lossFn(output).div(MICROBATCHES).backward();
      return seen;
    });
  return { grads: gradsOf([model]), outputs };
}

/** @param {ProcessGroup | undefined} group @param {Case} one @returns {Found} */
export function run(group, { kind, schedule, isPipe }) {
  return scope(() => {
    const model = new Whole(kind);
    const x = makeBatch();
    const splitSpec = /** @type {const} */ ({ second: 'beginning' });
    const pipe = isPipe ? pipeline(model, [x.narrow(0, 0, 2)], { splitSpec }) : null;
    const mine = group === undefined ? [0, 1] : [group.rank];
    const modules = [model.first, model.second];
    const wiring = [
      {},
      {
        inputs: [
          { stage: 0, output: 0 },
          { stage: 0, output: 1 },
        ],
      },
    ];
    const stages = mine.map(
      (i) => pipe?.buildStage(i) ?? new PipelineStage(modules[i] ?? model, i, 2, { ...wiring[i] }),
    );
    const options = { microbatches: MICROBATCHES, lossFn, ...(group === undefined ? {} : { group }) };
    const runtime = new PipelineRuntime(stages, schedule, options);
    /** @type {number[][]} */
    const outputs = [];
    /** @type {[Tensor, Tensor][]} */
    const kept = [];
    const keepOutput = (/** @type {any} */ output) =>
      void kept.push(unscoped(() => output.map((/** @type {Tensor} */ each) => each.alias())));
    runtime.step(x, { returnOutputs: false, onOutput: keepOutput });
    for (const output of kept) {
      outputs.push(output.flatMap(numbers));
      for (const each of output) each.dispose();
    }
    runtime.dispose();
    return { grads: gradsOf(stages.map((stage) => stage.module)), outputs };
  });
}

/** @param {readonly Case[]} cases */
export function main(cases) {
  const group = distributed.initProcessGroup({ timeoutMs: 100_000 });
  return cases.map((one) => run(group, one));
}

await runAsProgram(import.meta.url, main);
