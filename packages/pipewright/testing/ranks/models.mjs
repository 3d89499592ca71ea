// @ts-check
/** @file Models in stages for the tests of the runtime, the same on every rank: built from their name, float64, exact seeds. */
import { nn, rand, tensor } from '@pipewright/torch';

/** @typedef {import('@pipewright/torch').Tensor} Tensor */

const { Module, Linear, Embedding, Dropout, Parameter, LayerNorm } = nn;

/** Numbers that depend on a seed only. @param {readonly number[]} shape @param {number} seed */
export function values(shape, seed, scale = 0.5) {
  const count = shape.reduce((a, b) => a * b, 1);
  return tensor(
    Array.from({ length: count }, (_, i) => scale * Math.sin(0.7 * i + 0.3 * seed)),
    { dtype: 'float64' },
  ).reshape(shape);
}

/**
 * Gives every parameter values of its own.
 * @template {import('@pipewright/torch').nn.Module} M
 * @param {M} module
 * @param {number} seed
 */
function initialize(module, seed) {
  module.double();
  module.namedParameters().forEach(([, parameter], i) => {
    parameter
      .requiresGrad_(false)
      .copy_(values(parameter.shape, 2 * seed + i))
      .requiresGrad_(true);
  });
  return module;
}

/** tanh(linear(x)), a few times. */
class Blocks extends Module {
  /** @param {number} width @param {number} count */
  constructor(width, count) {
    super();
    this.layers = new nn.ModuleList(Array.from({ length: count }, () => new Linear(width, width)));
  }

  /** @param {Tensor} x */
  forward(x) {
    for (const layer of this.layers) x = layer.forward(x).tanh();
    return x;
  }
}

/** Passes its input on beside its result, for a stage further down. */
class Down extends Module {
  /** @param {number} width @param {boolean} skips */
  constructor(width, skips) {
    super();
    this.fc = new Linear(width, width);
    this.skips = skips;
  }

  /** @param {Tensor} x */
  forward(x) {
    const y = this.fc.forward(x).tanh();
    return this.skips ? { out: y, skip: y.mul(0.5) } : { out: y };
  }
}

class Up extends Module {
  /** @param {number} width */
  constructor(width) {
    super();
    this.fc = new Linear(width, width);
  }

  /** @param {Tensor} x @param {Tensor[]} skips */
  forward(x, ...skips) {
    let y = this.fc.forward(x);
    for (const skip of skips) y = y.add(skip);
    return { out: y.tanh() };
  }
}

/** The end of a model whose stages return objects. */
class Pick extends Module {
  /** @param {Down | Up} inner */
  constructor(inner) {
    super();
    this.inner = inner;
  }

  /** @param {[Tensor, ...Tensor[]]} inputs */
  forward(...inputs) {
    return this.inner.forward(...inputs).out;
  }
}

class TokenEmbedding extends Module {
  /** @param {number} vocabulary @param {number} width */
  constructor(vocabulary, width) {
    super();
    this.wte = new Embedding(vocabulary, width);
  }

  /** @param {Tensor} ids */
  forward(ids) {
    return this.wte.forward(ids);
  }
}

class TiedHead extends Module {
  /** @param {number} vocabulary @param {number} width */
  constructor(vocabulary, width) {
    super();
    this.fc = new Linear(width, width);
    this.weight = new Parameter(rand([vocabulary, width]));
  }

  /** @param {Tensor} x */
  forward(x) {
    return nn.functional.linear(this.fc.forward(x).tanh(), this.weight);
  }
}

/** @typedef {{ x: Tensor, aux: [Tensor, number], position: Tensor }} State */

/** Trees, integers, booleans, numbers and views on their way through the stages. */
class Tree extends Module {
  /** @param {number} width @param {boolean} isFirst @param {boolean} isLast */
  constructor(width, isFirst, isLast) {
    super();
    this.fc = new Linear(width, width);
    this.norm = new LayerNorm(width);
    this.isFirst = isFirst;
    this.isLast = isLast;
  }

  /** @param {Tensor} x @returns {State} */
  start(x) {
    return { x, aux: [x.gt(0), 3], position: x.argmax(-1) };
  }

  /** @param {Tensor | State} input */
  forward(input) {
    const state = this.isFirst ? this.start(/** @type {Tensor} */ (input)) : /** @type {State} */ (input);
    const y = this.norm
      .forward(this.fc.forward(state.x))
      .mul(state.aux[0].to('float64'))
      .mul(state.aux[1] / 3);
    const z = y.add(state.position.to('float64').unsqueeze(-1).mul(0.1));
    if (this.isLast) return z;
    return { x: z.t().contiguous().t(), aux: state.aux, position: state.position };
  }
}

class DropBlock extends Module {
  /** @param {number} width */
  constructor(width) {
    super();
    this.fc = new Linear(width, width);
    this.drop = new Dropout(0.3);
  }

  /** @param {Tensor} x */
  forward(x) {
    return this.drop.forward(this.fc.forward(x).tanh());
  }
}

/** Takes a named input beside the positional one. */
class Masked extends Module {
  /** @param {number} width */
  constructor(width) {
    super();
    this.fc = new Linear(width, width);
  }

  /** @param {Tensor} x @param {{ mask?: Tensor }} [named] */
  forward(x, { mask } = {}) {
    const y = this.fc.forward(x).tanh();
    return mask === undefined ? y : y.mul(mask);
  }
}

const W = 8;

/**
 * One stage of a model.
 * @param {string} name
 * @param {number} index
 * @param {number} count
 * @returns {{ module: import('@pipewright/torch').nn.Module & { forward(...inputs: any[]): any }, options: import('pipewright').PipelineStageOptions }}
 */
export function makeStage(name, index, count) {
  const isLast = index === count - 1;
  const half = Math.floor(count / 2);
  switch (name) {
    case 'mlp': {
      const blocks = new Blocks(W, Math.max(1, Math.floor(8 / count)));
      blocks.double();
      blocks.namedParameters().forEach(([, parameter], i) => {
        const block = index * Math.max(1, Math.floor(8 / count)) * 2 + i;
        parameter.requiresGrad_(false).copy_(values(parameter.shape, block)).requiresGrad_(true);
      });
      return { module: blocks, options: {} };
    }
    case 'checkpoint':
      return { module: initialize(new Blocks(W, 2), index), options: { checkpoint: true } };
    case 'skip': {
      // Stage i of the first half feeds its mirror in the second one, beside the chain; stage 0 feeds the last two.
      const isDown = index < half;
      const inner = initialize(isDown ? new Down(W, true) : new Up(W), index);
      if (index === 0) return { module: count === 1 ? new Pick(inner) : inner, options: {} };
      const inputs = [{ stage: index - 1, output: 'out' }];
      const mirror = count - 1 - index;
      if (!isDown && mirror < index && mirror < half) inputs.push({ stage: mirror, output: 'skip' });
      if (index === count - 2 && half > 1) inputs.push({ stage: 0, output: 'skip' });
      return { module: isLast ? new Pick(inner) : inner, options: { inputs } };
    }
    case 'tied': {
      if (index === 0)
        return { module: initialize(new TokenEmbedding(11, W), 5), options: { ties: { 'wte.weight': 'embedding' } } };
      if (isLast) return { module: initialize(new TiedHead(11, W), 7), options: { ties: { weight: 'embedding' } } };
      return { module: initialize(new Blocks(W, 1), index), options: {} };
    }
    case 'tree':
      return { module: initialize(new Tree(W, index === 0, isLast), index), options: {} };
    case 'frozen': {
      const module = initialize(new Blocks(W, 1), index);
      // The first stage and one in the middle have nothing to learn.
      if (index === 0 || (count > 2 && index === half)) module.requiresGrad_(false);
      return { module, options: {} };
    }
    case 'dropout':
      return { module: initialize(new DropBlock(W), index), options: {} };
    case 'named':
      return { module: initialize(new Masked(W), index), options: { kwargs: isLast ? ['mask'] : [] } };
    default:
      throw new Error(`no model '${name}'`);
  }
}

/**
 * Inputs, target and named inputs of a step.
 * @param {string} name
 * @param {number} rows
 * @param {number} step
 * @returns {{ x: Tensor, target: Tensor, kwargs: Record<string, Tensor> }}
 */
export function makeBatch(name, rows, step) {
  const ids = () =>
    tensor(
      Array.from({ length: rows }, (_, i) => (i * 7 + step * 3) % 11),
      { dtype: 'int64' },
    );
  const cosine = (/** @type {number} */ scale, /** @type {(x: number) => number} */ f) =>
    tensor(
      Array.from({ length: rows * W }, (_, i) => f(scale * i + 0.1 * step)),
      { dtype: 'float64' },
    ).reshape([rows, W]);
  const target = name === 'tied' ? ids() : cosine(0.03, Math.sin);
  const mask = cosine(0.11, Math.cos);
  return { x: name === 'tied' ? ids() : cosine(0.05, Math.cos), target, kwargs: name === 'named' ? { mask } : {} };
}

/**
 * The loss of a model: a mean over the rows, or a sum.
 * @param {string} name
 * @returns {(output: Tensor, target: Tensor) => Tensor}
 */
export function lossOf(name, mean = true) {
  return name === 'tied'
    ? (output, target) => nn.functional.crossEntropy(output, target)
    : (output, target) => nn.functional.mseLoss(output, target, { reduction: mean ? 'mean' : 'sum' });
}
