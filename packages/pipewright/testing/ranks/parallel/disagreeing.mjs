// @ts-check
/** @file Two ranks of tests that do not do the same, one scenario at a time: what each of them is told. */

import { distributed, manualSeed, nn, ones, optim, randn, zeros } from '@pipewright/torch';
import { fullyShard, initDeviceMesh, PipelineRuntime, PipelineStage, replicate } from 'pipewright';
import { runAsProgram } from '../program.mjs';

/** @typedef {import('@pipewright/torch').Tensor} Tensor */

const isOdd = () => distributed.getRank() === 1;
const makeMesh = () => initDeviceMesh('cpu', [1, 2], ['pp', 'dp']);
const makeNet = (width = 4) => {
  manualSeed(1);
  return new nn.Sequential(new nn.Linear(4, width), new nn.Tanh(), new nn.Linear(width, 2));
};
/** @returns {[Tensor, { target: Tensor }]} */
const makeBatch = () => {
  manualSeed(5 + distributed.getRank());
  return [randn([4, 4]), { target: randn([4, 2]) }];
};

/** @param {nn.Module} module @param {import('pipewright').DeviceMesh} mesh */
function makeRuntime(module, mesh) {
  const lossFn = (/** @type {Tensor} */ output, /** @type {Tensor} */ target) => nn.functional.mseLoss(output, target);
  const stage = new PipelineStage(module, 0, 1, { group: mesh.getGroup('pp') });
  return new PipelineRuntime(stage, '1F1B', { microbatches: 2, lossFn });
}

/** A step of a replicated module. @param {nn.Module} module @param {object} [options] */
function replicated(module, options = {}) {
  const mesh = makeMesh();
  const runtime = makeRuntime(replicate(module, { mesh: mesh.get('dp'), ...options }), mesh);
  runtime.step(...makeBatch());
  return runtime;
}

/** A step of a sharded module. @param {nn.Module} module @param {object} [options] */
function sharded(module, options = {}) {
  const mesh = makeMesh();
  const runtime = makeRuntime(fullyShard(module, { mesh: mesh.get('dp'), ...options }), mesh);
  runtime.step(...makeBatch());
  return runtime;
}

/** The other rank has compared long before this one. @param {distributed.ProcessGroup} group */
function pauseBeforeMessagesToItself(group) {
  const channel = group.channel.bind(group);
  group.channel = (peer) => {
    if (peer === group.rank) Atomics.wait(new Int32Array(new SharedArrayBuffer(4)), 0, 0, 300);
    return channel(peer);
  };
}

/** Scenarios after which the groups can go on, and then those that end them. @type {Record<string, () => unknown>} */
export const scenarios = {
  'shapes of a mesh': () => initDeviceMesh('cpu', isOdd() ? [2, 1] : [1, 2], ['pp', 'dp']),
  'names of a mesh': () => initDeviceMesh('cpu', [1, 2], isOdd() ? ['dp', 'pp'] : ['pp', 'dp']),
  'shapes of replicas': () => replicated(makeNet(isOdd() ? 6 : 4)),
  'types of replicas': () => replicated(isOdd() ? makeNet().double() : makeNet()),
  'replicas with and without a parameter': () => replicated(new nn.Linear(4, 2, { bias: isOdd() })),
  'buckets of replicas': () => replicated(makeNet(), { bucketCapMb: isOdd() ? 25 : 1e-5 }),
  'buffers of replicas': () => replicated(makeNet(), { broadcastBuffers: isOdd() }),
  'shared parameters of replicas': () => replicated(makeNet(), { shareFrozen: isOdd() }),
  'frozen parameters of replicas': () => {
    const net = makeNet();
    if (isOdd()) net.getParameter('0.weight').requiresGrad_(false);
    replicated(net);
  },
  'units of shards': () => {
    const net = makeNet();
    sharded(net, isOdd() ? { units: [[...net.children()][0]] } : {});
  },
  'types of shards': () => sharded(makeNet(), { mpPolicy: isOdd() ? { paramDtype: 'bfloat16' } : {} }),
  'limits of the norm': () => sharded(makeNet()).clipGradNorm_(isOdd() ? 1 : 2),
  'limits of the norm before a step of the optimizer': () => {
    const net = makeNet();
    const runtime = replicated(net);
    runtime.stepOptimizer(new optim.SGD(net.parameters(), { lr: 0.1 }), isOdd() ? { maxNorm: 1 } : {});
  },
  'a module that is sharded twice': () => {
    const [net, mesh] = [makeNet(), makeMesh().get('dp')];
    fullyShard(net, { mesh });
    fullyShard(net, { mesh, level: 'optimizer' });
  },
  'a module that is replicated and sharded': () => sharded(replicate(makeNet(), { mesh: makeMesh().get('dp') })),
  'a part that is replicated': () => {
    const [net, mesh] = [makeNet(), makeMesh()];
    replicate(/** @type {nn.Module} */ ([...net.children()][0]), { mesh: mesh.get('dp') });
    makeRuntime(net, mesh);
  },
  'a parameter that is put there after the shards were made': () => {
    const [net, mesh] = [makeNet(), makeMesh()];
    const runtime = makeRuntime(fullyShard(net, { mesh: mesh.get('dp') }), mesh);
    runtime.step(...makeBatch());
    const last = /** @type {nn.Linear} */ ([...net.children()][2]);
    const before = last.bias;
    last.bias = new nn.Parameter(zeros([2]));
    try {
      runtime.step(...makeBatch());
    } finally {
      last.bias = before;
      runtime.step(...makeBatch());
    }
  },
  'a parameter that is put there after the first step of replicas': () => {
    const [net, mesh] = [makeNet(), makeMesh()];
    const runtime = makeRuntime(replicate(net, { mesh: mesh.get('dp') }), mesh);
    runtime.step(...makeBatch());
    const last = /** @type {nn.Linear} */ ([...net.children()][2]);
    last.bias = new nn.Parameter(zeros([2]));
    try {
      runtime.step(...makeBatch());
    } finally {
      makeRuntime(net, mesh).step(...makeBatch());
    }
  },
  'a part that is sharded': () => {
    const [net, mesh] = [makeNet(), makeMesh()];
    fullyShard(/** @type {nn.Module} */ ([...net.children()][0]), { mesh: mesh.get('dp') });
    makeRuntime(net, mesh).step(...makeBatch());
  },
  'an optimizer that took a step before the shards were made': () => {
    const net = makeNet();
    const optimizer = new optim.AdamW(net.parameters(), { lr: 0.1 });
    for (const parameter of net.parameters()) parameter.grad = ones(parameter.shape);
    optimizer.step();
    optimizer.zeroGrad();
    sharded(net).stepOptimizer(optimizer);
  },
  'a group that is none': () => replicate(makeNet(), { group: /** @type {any} */ ('dp') }),
};

/** Each of them ends the run. @type {Record<string, () => unknown>} */
export const ends = {
  'a step and an evaluation': () => {
    const runtime = sharded(makeNet());
    const [x, target] = makeBatch();
    if (isOdd()) runtime.eval(x);
    runtime.step(x, target);
  },
  'a step without the sum': () => {
    const [x, options] = makeBatch();
    replicated(makeNet()).step(x, { ...options, sync: isOdd() });
  },
  'frozen later': () => {
    const net = makeNet();
    const runtime = replicated(net);
    if (isOdd()) net.getParameter('2.bias').requiresGrad_(false);
    runtime.step(...makeBatch());
  },
  'frozen later, and slow to compare': () => {
    const [net, mesh] = [makeNet(), makeMesh()];
    const runtime = makeRuntime(replicate(net, { mesh: mesh.get('dp') }), mesh);
    runtime.step(...makeBatch());
    if (isOdd()) {
      net.getParameter('2.bias').requiresGrad_(false);
      pauseBeforeMessagesToItself(mesh.getGroup('dp'));
    }
    runtime.step(...makeBatch());
  },
  'divided by other numbers': () => {
    const [x, options] = makeBatch();
    replicated(makeNet()).step(x, { ...options, divisor: isOdd() ? 8 : 16 });
  },
  'clipped otherwise': () => {
    const runtime = replicated(makeNet());
    runtime.clipGradNorm_(isOdd() ? 1 : 2);
    runtime.step(...makeBatch());
  },
};

/** What this rank is told. @param {string[]} names */
export function main(names) {
  distributed.initProcessGroup();
  return names.map((name) => {
    try {
      (scenarios[name] ?? /** @type {() => unknown} */ (ends[name]))();
      return 'nothing';
    } catch (error) {
      const { code, message } = /** @type {Error & { code?: string }} */ (error);
      return `${code} ${message}`;
    }
  });
}

await runAsProgram(import.meta.url, main);
