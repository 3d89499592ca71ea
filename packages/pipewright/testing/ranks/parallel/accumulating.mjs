// @ts-check
/**
 * @file Four ranks, two stages of two replicas or shards, that make steps of all kinds and freeze parameters between them: how far
 * the norms and weights of each rank then are from those of one module that is trained plainly.
 */

import { distributed, manualSeed, nn, optim, randn, scope } from '@pipewright/torch';
import { fullyShard, initDeviceMesh, PipelineRuntime, PipelineStage, replicate, withWholeParameters } from 'pipewright';
import { runAsProgram } from '../program.mjs';

/** @typedef {import('@pipewright/torch').Tensor} Tensor */
/** @typedef {import('pipewright').ShardLevel | 'replicate'} Wrap */
/** @typedef {{ wrap: Wrap, frozen: 'bias' | 'first' | 'last' | 'tied' | 'tied on 0' | 'tied on 1', calls: string }} Case */

const WIDTH = 4;
const ROWS = 4;
const options = /** @type {const} */ ({ dtype: 'float64' });

/** The layer of a stage. @param {number} index */
function makeLayer(index) {
  manualSeed(30 + index);
  return new nn.Linear(WIDTH, WIDTH).double();
}

/** The rows of both replicas in the step of this number. @param {number} step */
function wholeBatch(step) {
  manualSeed(500 + step);
  return { x: randn([2 * ROWS, WIDTH], options), y: randn([2 * ROWS, WIDTH], options) };
}

/** What is frozen by a call: by stage, the names. @type {Record<Case['frozen'], readonly [string[], string[]]>} */
const names = {
  bias: [[], ['bias']],
  first: [['weight', 'bias'], []],
  last: [[], ['weight', 'bias']],
  tied: [['weight'], ['weight']],
  'tied on 0': [['weight'], []],
  'tied on 1': [[], ['weight']],
};

const numbersOf = (/** @type {Tensor} */ value) => Array.from(value.detach().flatten().toTypedArray(), Number);

/**
 * @typedef {object} Trained
 * @property {readonly (nn.Linear | null)[]} layers those that are here, by stage
 * @property {optim.Optimizer} optimizer
 * @property {(step: number, call: string) => void} step
 * @property {() => number} norm
 */

/** One module on the batches of both replicas. @param {boolean} tied @returns {Trained} */
function plain(tied) {
  const first = makeLayer(0);
  const last = makeLayer(1);
  if (tied) last.weight = first.weight;
  const parameters = [...new Set([...first.parameters(), ...last.parameters()])];
  return {
    layers: [first, last],
    optimizer: new optim.SGD(parameters, { lr: 0.1 }),
    step: (step, call) => {
      if (call !== 'step' && call !== 'unsynced') return;
      const { x, y } = wholeBatch(step);
      nn.functional.mseLoss(last.forward(first.forward(x).tanh()), y).backward();
    },
    norm: () => nn.utils.clipGradNorm_(parameters, Number.POSITIVE_INFINITY).item(),
  };
}

/** The part of this rank. @param {Wrap} wrap @param {boolean} tied @returns {Trained} */
function parallel(wrap, tied) {
  const mesh = initDeviceMesh('cpu', [2, 2], ['pp', 'dp']);
  const [index, replica] = [mesh.getLocalRank('pp'), mesh.getLocalRank('dp')];
  const layer = makeLayer(index);
  const module = index === 0 ? new nn.Sequential(layer, new nn.Tanh()) : new nn.Sequential(layer);
  if (wrap === 'replicate') replicate(module, { mesh: mesh.get('dp') });
  else fullyShard(module, { mesh: mesh.get('dp'), level: wrap });
  const stage = new PipelineStage(module, index, 2, {
    group: mesh.getGroup('pp'),
    ...(tied && { ties: { '0.weight': 'w' } }),
  });
  const runtime = new PipelineRuntime(stage, '1F1B', { microbatches: 2, lossFn: nn.functional.mseLoss });
  return {
    layers: index === 0 ? [layer, null] : [null, layer],
    optimizer: new optim.SGD(layer.parameters(), { lr: 0.1 }),
    step: (step, call) => {
      const { x, y } = wholeBatch(step);
      const rows = (/** @type {Tensor} */ all) => all.narrow(0, ROWS * replica, ROWS);
      const [mine, target] = [rows(x), rows(y)];
      const given = { target, sync: !call.endsWith('unsynced') };
      if (call === 'eval') return void runtime.eval(mine);
      if (!call.startsWith('refused')) return void runtime.step(mine, given);
      // The last rank makes a mistake.
      const isWrong = index === 1 && replica === 1;
      try {
        runtime.step(mine, isWrong ? /** @type {any} */ ({ ...given, taget: target }) : given);
      } catch (error) {
        const { code, message } = /** @type {Error & { code?: string }} */ (error);
        if (isWrong ? message.includes("'taget' is not one of") : code === 'STEP_REFUSED') return;
        throw error;
      }
      // Where nothing is learned nobody waits for gradients, and nothing is heard of it.
      if (isWrong) throw new Error('a step with a wrong option was made');
    },
    norm: () => runtime.clipGradNorm_(Number.POSITIVE_INFINITY),
  };
}

/** The norm before each step of the optimizer, and the weights of each layer in the end. @param {Trained} trained @param {Case} one */
function train({ layers, optimizer, step, norm }, { frozen, calls }) {
  /** @type {number[]} */
  const norms = [];
  calls.split(' ').forEach((call, i) =>
    scope(() => {
      if (call === 'zeroGrad') optimizer.zeroGrad();
      else if (call === 'optimize') {
        norms.push(norm());
        optimizer.step();
      } else if (call === 'freeze' || call === 'unfreeze')
        layers.forEach((layer, stage) => {
          for (const name of names[frozen][stage] ?? []) layer?.getParameter(name).requiresGrad_(call === 'unfreeze');
        });
      else step(i, call);
    }),
  );
  return {
    norms,
    weights: layers.map((layer) =>
      layer === null ? null : withWholeParameters(layer, () => layer.parameters().map(numbersOf)),
    ),
  };
}

/** @param {Case[]} cases */
export function main(cases) {
  distributed.initProcessGroup({ timeoutMs: 10_000 });
  return cases.map((one) => {
    const isTied = one.frozen.startsWith('tied');
    const wanted = train(plain(isTied), one);
    try {
      const got = train(parallel(one.wrap, isTied), one);
      const differences = got.norms.map((norm, i) => Math.abs(norm - Number(wanted.norms[i])));
      got.weights.forEach((layer, stage) =>
        layer?.forEach((values, p) =>
          values.forEach((value, i) => {
            differences.push(Math.abs(value - Number(wanted.weights[stage]?.[p]?.[i])));
          }),
        ),
      );
      return differences.some(Number.isNaN) ? 'NaN' : Math.max(...differences);
    } catch (error) {
      return String(error);
    }
  });
}

await runAsProgram(import.meta.url, main);
