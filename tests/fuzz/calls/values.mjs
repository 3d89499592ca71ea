// @ts-check
/** @file What public functions are given: awkward values, values of other functions, and objects of options. */

import * as schedule from '@pipewright/schedule';
import * as torch from '@pipewright/torch';
import * as pipewright from 'pipewright';

const { nn } = torch;

/** @template T @param {() => number} random @param {readonly T[]} from @returns {T} */
export function pick(random, from) {
  return /** @type {T} */ (from[Math.floor(random() * from.length)]);
}

/** Values that are wrong nearly everywhere; each is made anew, so that no call sees what another has done. */
const plain = [
  () => undefined,
  () => undefined,
  () => null,
  () => null,
  () => true,
  () => 0,
  () => 1,
  () => 2,
  () => -1,
  () => 1.5,
  () => Number.NaN,
  () => Number.POSITIVE_INFINITY,
  () => 2 ** 53,
  () => 10n,
  () => '',
  () => 'x',
  () => 'mean',
  () => 'float32',
  () => 'cuda:7',
  () => '0F0',
  () => '1F1B',
  () => Symbol('s'),
  () => ({}),
  () => Object.create(null),
  () => [],
  () => [null],
  () => [undefined],
  () => [1, 2],
  () => [[1], [2, 3]],
  () => ['x'],
  () => [{}],
  () => new Array(3),
  () => new Map([['a', 1]]),
  () => new Set([1]),
  () => new Date(0),
  () => /x/,
  () => () => 1,
  () => () => undefined,
  () => class Empty {},
  () => Promise.resolve(1),
  () => new Float32Array(4),
  () => new BigInt64Array(2),
  () => new DataView(new ArrayBuffer(8)),
  () => new ArrayBuffer(16),
  () => new Error('given'),
  () => ({ forward: 1 }),
  () => ({ length: 3 }),
  () => ({ shape: [2], dtype: 'float32' }),
  () => Object.freeze({ a: 1 }),
];

/** @type {Record<string, () => unknown>} Things that some function takes. */
export const made = {
  vector: () => torch.ones([3]),
  matrix: () => torch.ones([2, 3]),
  batch: () => torch.ones([4, 3, 5, 5]),
  scalar: () => torch.tensor(2),
  empty: () => torch.zeros([0]),
  whole: () => torch.tensor([0, 1, 2]),
  flags: () => torch.tensor([true, false]),
  complex: () => torch.ones([2], { dtype: 'complex64' }),
  meta: () => torch.ones([2, 3], { device: 'meta' }),
  withGrad: () => torch.ones([2, 3], { requiresGrad: true }),
  computed: () => torch.ones([2, 3], { requiresGrad: true }).mul(2),
  edge: () => torch.getGradientEdge(torch.ones([3], { requiresGrad: true }).mul(2)),
  node: () => torch.ones([3], { requiresGrad: true }).mul(2).gradFn,
  disposed: () => {
    const gone = torch.ones([2]);
    gone.dispose();
    return gone;
  },
  generator: () => new torch.Generator(),
  dtype: () => torch.float64,
  linear: () => new nn.Linear(3, 3),
  sequential: () => new nn.Sequential(new nn.Linear(3, 3), new nn.ReLU(), new nn.Linear(3, 3)),
  parameters: () => new nn.Linear(3, 3).parameters(),
  parameter: () => new nn.Parameter(torch.ones([3])),
  optimizer: () => new torch.optim.SGD(new nn.Linear(3, 3).parameters(), { lr: 0.1 }),
  stage: () => new pipewright.PipelineStage(new nn.Linear(3, 3), 0, 1),
  runtime: () =>
    new pipewright.PipelineRuntime(new pipewright.PipelineStage(new nn.Linear(3, 3), 0, 1), '1F1B', {
      microbatches: 2,
      lossFn: nn.functional.mseLoss,
    }),
  graph: () => pipewright.traceModule(new nn.Linear(3, 3), [torch.ones([2, 3])]),
  pipe: () =>
    pipewright.pipeline(new nn.Sequential(new nn.Linear(3, 3), new nn.Linear(3, 3)), {
      mbArgs: [torch.ones([2, 3])],
      splitSpec: { 1: pipewright.SplitPoint.BEGINNING },
    }),
  chunkSpec: () => new pipewright.TensorChunkSpec(0),
  blockMask: () => pipewright.createBlockMask((_b, _h, q, k) => q.ge(k), { queries: 8, keys: 8 }),
  schedule: () => schedule.buildSchedule('1F1B', { ranks: 2, microbatches: 2 }),
  simulation: () => schedule.simulate(schedule.buildSchedule('1F1B', { ranks: 2, microbatches: 2 })),
  action: () => schedule.parseAction('0F0'),
};

/** Names that options of public functions have. */
const words = (
  'dtype device requiresGrad share dim keepdim microbatches lossFn args kwargs target ranks stages costs name reduction lr momentum weightDecay ' +
  'bias padding stride mode group inputs outputs gradTensors retainGraph chunks splitSpec schedule timeoutMs size generator eps inputArgs ' +
  'outputArgs checkpoint options recorder memory levels mesh env program cwd nproc steps batch heads queries keys seed threads strict'
).split(' ');

const names = Object.keys(made);

/** @param {() => number} random @param {number} [depth] @returns {unknown} */
export function anyValue(random, depth = 0) {
  const kind = random();
  if (kind < 0.5 || depth > 2) return pick(random, plain)();
  if (kind < 0.8) return instance(pick(random, names));
  if (kind < 0.88) return Array.from({ length: 1 + Math.floor(random() * 3) }, () => anyValue(random, depth + 1));
  /** @type {Record<string, unknown>} */
  const options = {};
  for (let i = Math.floor(random() * 3); i >= 0; i--) options[pick(random, words)] = anyValue(random, depth + 1);
  return options;
}

/** @param {string} name */
export function instance(name) {
  return /** @type {() => unknown} */ (made[name])();
}
