// @ts-check
/** @file Two ranks of tests that change a module or its gradients between steps: how far they then are from plain training. */

import { distributed, manualSeed, nn, noGrad, optim, randn } from '@pipewright/torch';
import { fullyShard, initDeviceMesh, PipelineRuntime, PipelineStage, replicate, withWholeParameters } from 'pipewright';
import { runAsProgram } from '../program.mjs';

/** @typedef {import('@pipewright/torch').Tensor} Tensor */
/** @typedef {import('pipewright').DeviceMesh} DeviceMesh */

const ROWS = 4;
const makeMesh = () => initDeviceMesh('cpu', [1, 2], ['pp', 'dp']);
const makeNet = () => {
  manualSeed(1);
  return new nn.Sequential(new nn.Linear(4, 4), new nn.Tanh(), new nn.Linear(4, 1));
};
/** The rows of both ranks. @param {number} seed */
const wholeBatch = (seed) => {
  manualSeed(100 + seed);
  return { x: randn([2 * ROWS, 4]), y: randn([2 * ROWS, 1]) };
};
/** The rows of this rank. @param {number} seed @returns {[Tensor, { target: Tensor }]} */
const batch = (seed) => {
  const { x, y } = wholeBatch(seed);
  const from = ROWS * distributed.getRank();
  return [x.narrow(0, from, ROWS), { target: y.narrow(0, from, ROWS) }];
};
const lossFn = (/** @type {Tensor} */ output, /** @type {Tensor} */ target) => nn.functional.mseLoss(output, target);

/** @param {nn.Module} module @param {DeviceMesh} mesh @param {number} [microbatches] */
function makeRuntime(module, mesh, microbatches = 2) {
  const stage = new PipelineStage(module, 0, 1, { group: mesh.getGroup('pp') });
  return new PipelineRuntime(stage, '1F1B', { microbatches, lossFn });
}

/** Plain gradients of the rows of both ranks. @param {nn.Module} module @param {number} seed */
function plainBackward(module, seed) {
  const { x, y } = wholeBatch(seed);
  lossFn(/** @type {Tensor} */ (module.forward(/** @type {never} */ (x))), y).backward();
}

/** Weights after plain steps on these batches. @param {number[]} seeds */
function plainWeights(...seeds) {
  const net = makeNet();
  const optimizer = makeOptimizer(net);
  for (const seed of seeds) {
    plainBackward(net, seed);
    optimizer.step();
    optimizer.zeroGrad();
  }
  return numbersOf(net.parameters());
}

const makeOptimizer = (/** @type {nn.Module} */ net) => new optim.SGD(net.parameters(), { lr: 0.1, momentum: 0.5 });
const numbersOf = (/** @type {readonly Tensor[]} */ tensors) =>
  tensors.flatMap((each) => /** @type {number[]} */ (each.detach().double().flatten().toArray()));
const gradsOf = (/** @type {nn.Module} */ module) =>
  numbersOf(module.parameters().map(({ grad }) => /** @type {Tensor} */ (grad)));
const wholeNumbers = (/** @type {nn.Module} */ module) =>
  withWholeParameters(module, () => numbersOf(module.parameters()));
/** @param {number[]} a @param {number[]} b */
const difference = (a, b) => Math.max(...a.map((value, i) => Math.abs(value - /** @type {number} */ (b[i]))));

/** A sharded module, and what makes a step of its optimizer. @param {string} level */
function sharded(level) {
  const mesh = makeMesh();
  const net = fullyShard(makeNet(), { mesh: mesh.get('dp'), level: /** @type {any} */ (level) });
  const runtime = makeRuntime(net, mesh);
  const optimizer = makeOptimizer(net);
  const step = (/** @type {number[]} */ ...seeds) => {
    for (const seed of seeds) {
      runtime.step(...batch(seed));
      optimizer.step();
      optimizer.zeroGrad();
    }
  };
  return { net, runtime, optimizer, step };
}

/** A student that learns, and a teacher that follows it. */
class Taught extends nn.Module {
  student = makeNet();
  teacher = makeNet().requiresGrad_(false);
  /** @param {Tensor} x */
  forward(x) {
    return this.student.forward(x).add(this.teacher.forward(x));
  }
  follow() {
    const learned = this.student.parameters();
    noGrad(() =>
      this.teacher.parameters().forEach((parameter, i) => {
        parameter.mul_(0.5).add_(/** @type {Tensor} */ (learned[i]), { alpha: 0.5 });
      }),
    );
  }
}

/** Shards get other memory after a step. @param {string} level @param {(net: nn.Module) => void} replace */
function replaced(level, replace) {
  const { net, step } = sharded(level);
  step(1);
  replace(net);
  step(2, 3);
  return difference(wholeNumbers(net), plainWeights(1, 2, 3));
}

/** @type {Record<string, (level: string) => unknown>} */
const ofShards = {
  'shards given by loadStateDict': (level) =>
    replaced(level, (net) => {
      const state = new Map([...net.stateDict()].map(([name, value]) => [name, value.clone()]));
      net.loadStateDict(state, { assign: true });
    }),
  'shards given by vectorToParameters': (level) =>
    replaced(level, (net) => {
      const vector = noGrad(() => nn.utils.parametersToVector(net.parameters()).clone());
      nn.utils.vectorToParameters(vector, net.parameters());
    }),
  'gradients made with whole parameters': (level) => {
    const { net, runtime } = sharded(level);
    const [x, options] = batch(1);
    runtime.step(x, { ...options, sync: false });
    withWholeParameters(net, () => plainBackward(net, 5));
    runtime.step(...batch(2));
    const plain = makeNet();
    plainBackward(plain, 1);
    plainBackward(plain, 2);
    const norm = nn.utils.clipGradNorm_(plain.parameters(), 1e9).item();
    return Math.abs(runtime.clipGradNorm_(1e9) - norm);
  },
  'shards of another type and back': (level) => replaced(level, (net) => net.double().float()),
};

/** @type {Record<string, () => unknown>} */
const ofPlaces = {
  'the norm of gradients, one of which has no elements here': () => {
    const [{ net, runtime }, plain] = [sharded('parameters'), makeNet()];
    runtime.step(...batch(1));
    plainBackward(plain, 1);
    const orders = [1, 2, 3, Number.POSITIVE_INFINITY];
    const norms = orders.map((normType) => runtime.clipGradNorm_(100, { normType }));
    const wanted = orders.map((normType) => nn.utils.clipGradNorm_(plain.parameters(), 100, { normType }).item());
    return net.getParameter('2.bias').numel() < 2 ? difference(norms, wanted) : 'no shard is empty';
  },
  'shards with other strides': () =>
    replaced('gradients', (net) => {
      const weight = net.getParameter('0.weight');
      weight.setData(noGrad(() => weight.t().contiguous().t()));
    }),
  'shards of another type': () => {
    const { net, step } = sharded('optimizer');
    try {
      net.double();
      step(1);
    } finally {
      net.float();
      step(1);
    }
  },
};

/** What is replicated. @type {Record<string, () => unknown>} */
const ofReplicas = {
  'a frozen teacher that each replica updates': () => {
    const mesh = makeMesh();
    const [net, plain] = [replicate(new Taught(), { mesh: mesh.get('dp') }), new Taught()];
    const [optimizer, other] = [makeOptimizer(net.student), makeOptimizer(plain.student)];
    const runtime = makeRuntime(net, mesh);
    for (const seed of [1, 2, 3]) {
      runtime.step(...batch(seed));
      plainBackward(plain, seed);
      for (const each of [optimizer, other]) {
        each.step();
        each.zeroGrad();
      }
      for (const each of [net, plain]) each.follow();
    }
    return difference(numbersOf(net.parameters()), numbersOf(plain.parameters()));
  },
  'two runtimes that accumulate': () => {
    const [mesh, plain] = [makeMesh(), makeNet()];
    const net = replicate(makeNet(), { mesh: mesh.get('dp') });
    const [two, four] = [makeRuntime(net, mesh), makeRuntime(net, mesh, 4)];
    two.step(...batch(1));
    four.step(...batch(2));
    const [x, options] = batch(3);
    two.step(x, { ...options, sync: false });
    four.step(...batch(4));
    for (const seed of [1, 2, 3, 4]) plainBackward(plain, seed);
    return difference(gradsOf(net), gradsOf(plain));
  },
  'a clone of a replicated module': () => {
    const mesh = makeMesh();
    const net = replicate(makeNet(), { mesh: mesh.get('dp') }).clone();
    const [runtime, optimizer] = [makeRuntime(net, mesh), makeOptimizer(net)];
    runtime.step(...batch(1));
    optimizer.step();
    return difference(numbersOf(net.parameters()), plainWeights(1));
  },
};

/** @type {Record<string, () => unknown>} */
export const scenarios = {
  ...Object.fromEntries(
    ['optimizer', 'gradients', 'parameters'].flatMap((level) =>
      Object.entries(ofShards).map(([name, run]) => [`${name}, level ${level}`, () => run(level)]),
    ),
  ),
  ...ofPlaces,
  ...ofReplicas,
};

/** @param {string[]} names */
export function main(names) {
  distributed.initProcessGroup();
  return names.map((name) => {
    try {
      return /** @type {() => unknown} */ (scenarios[name])();
    } catch (error) {
      const { code, message } = /** @type {Error & { code?: string }} */ (error);
      return `${code} ${message}`;
    }
  });
}

await runAsProgram(import.meta.url, main);
