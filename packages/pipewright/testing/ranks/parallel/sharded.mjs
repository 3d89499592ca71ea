// @ts-check
/** @file Ranks of tests with shards, one scenario at a time: memory, steps that are skipped or refused, recordings, graphs, types. */

import { fileURLToPath } from 'node:url';
import { simulate } from '@pipewright/schedule';
import {
  distributed,
  GradScaler,
  manualSeed,
  nn,
  ones,
  optim,
  randn,
  scope,
  setDefaultDtype,
  tensor,
} from '@pipewright/torch';
import {
  fullyShard,
  initDeviceMesh,
  loadPt2,
  PipelineRuntime,
  PipelineStage,
  pipeline,
  Recorder,
  replicate,
  shardOf,
  withWholeParameters,
} from 'pipewright';
import { runAsProgram } from '../program.mjs';

/**
 * @typedef {import('@pipewright/torch').Tensor} Tensor
 * @typedef {import('pipewright').ShardLevel | 'replicate'} Wrap
 * @typedef {import('@pipewright/schedule').ScheduleName} ScheduleName
 */

const mse = (/** @type {Tensor} */ output, /** @type {Tensor} */ target) => nn.functional.mseLoss(output, target);
const numbersOf = (/** @type {Tensor} */ value) =>
  Array.from(value.detach().to('float64').flatten().toTypedArray(), Number);
const errorOf = (/** @type {() => unknown} */ call) => {
  try {
    call();
    return null;
  } catch (error) {
    const { code, message } = /** @type {Error & { code?: string }} */ (error);
    return { code, message };
  }
};

/** A stage of two layers. @param {number} index */
function makeStage(index, width = 8) {
  manualSeed(40 + index);
  return new nn.Sequential(new nn.Linear(width, 2 * width), new nn.Tanh(), new nn.Linear(2 * width, width));
}

/**
 * Stages of this rank on a mesh, wrapped.
 * @param {{ pp: number, schedule: ScheduleName, stages: number, wrap: Wrap, microbatches?: number, options?: object, shardOptions?: object }} setting
 */
function setUp({ pp, schedule, stages: count, wrap, microbatches = 4, options = {}, shardOptions = {} }) {
  setDefaultDtype('float64');
  const mesh = initDeviceMesh('cpu', [pp, distributed.getWorldSize() / pp], ['pp', 'dp']);
  const place = Array.from({ length: count }, (_, i) => i).filter((i) => i % pp === mesh.getLocalRank('pp'));
  const stages = place.map((index) => {
    const module = makeStage(index);
    if (wrap === 'replicate') replicate(module, { mesh: mesh.get('dp') });
    else fullyShard(module, { mesh: mesh.get('dp'), level: wrap, ...shardOptions });
    return new PipelineStage(module, index, count, { group: mesh.getGroup('pp') });
  });
  const runtime = new PipelineRuntime(stages, schedule, { microbatches, lossFn: mse, ...options });
  const optimizer = new optim.AdamW(
    stages.flatMap(({ module }) => module.parameters()),
    { lr: 0.01 },
  );
  manualSeed(5 + mesh.getLocalRank('dp'));
  return { mesh, stages, runtime, optimizer, x: randn([8, 8]), y: randn([8, 8]) };
}

const weightsOf = (/** @type {PipelineStage[]} */ stages) =>
  stages.flatMap(({ module }) => module.parameters().flatMap(numbersOf));

/** @type {Record<string, (settings: any) => unknown>} */
const scenarios = {
  /** What a rank holds between steps, at most, and what the simulator says. */
  memory(/** @type {any} */ { memoryLimit, reshardAfterForward = false, wrap = 'parameters' }) {
    const { mesh, stages, runtime, optimizer, x, y } = setUp({
      pp: 1,
      stages: 3,
      schedule: 'LoopedBFS',
      wrap,
      options: memoryLimit === undefined ? {} : { dataParallel: { memoryLimit } },
      shardOptions: { reshardAfterForward },
    });
    for (let step = 0; step < 2; step++)
      scope(() => {
        optimizer.zeroGrad();
        runtime.step(x, { target: y });
        optimizer.step();
      });
    const parallel = Reflect.get(runtime, 'parallel');
    const shards = mesh.size('dp');
    const bytes = stages.map(({ stageIndex }) => parallel.sharding(stageIndex).bytes);
    const parameters = stages.flatMap(({ module }) => module.parameters());
    const held = {
      parameters: parameters.reduce((sum, { nbytes }) => sum + nbytes, 0),
      gradients: parameters.reduce((sum, { grad }) => sum + (grad?.nbytes ?? 0), 0),
    };
    const { state } = optimizer.stateDict();
    const optimizerBytes = Object.values(state)
      .flatMap((each) => [each.exp_avg, each.exp_avg_sq])
      .reduce((sum, each) => sum + /** @type {Tensor} */ (each).nbytes, 0);
    const { parameterPeak } = simulate(runtime.schedule, { parameters: bytes, shards, sharding: wrap });
    // Wholes that are not needed have no memory.
    const unread = [...parallel.owners.keys()].flatMap((unit) =>
      unit.entries.map((/** @type {{ whole: Tensor }} */ { whole }) => whole.dataPtr() === 0n),
    );
    return {
      whole: bytes.reduce((sum, each) => sum + each, 0),
      held,
      optimizerBytes,
      between: parallel.parameterBytes,
      counted: parallel.parameterPeak,
      simulated: parameterPeak[0],
      freed: unread.every(Boolean),
      gathers: [...parallel.gathers],
    };
  },

  /** Memory that ranks have in common: frozen parameters of replicas, and wholes of shards. */
  shared() {
    const mesh = initDeviceMesh('cpu', [1, distributed.getWorldSize()], ['pp', 'dp']);
    const group = mesh.getGroup('dp');
    const pointersOf = (/** @type {nn.Module} */ module) =>
      module.parameters().map((parameter) => String(parameter.dataPtr()));
    const made = (/** @type {(module: nn.Module) => unknown} */ wrap) => {
      setDefaultDtype('float64');
      const module = makeStage(0);
      const frozen = /** @type {nn.Module} */ ([...module.children()][0]);
      for (const parameter of frozen.parameters()) parameter.requiresGrad = false;
      wrap(module);
      const stage = new PipelineStage(module, 0, 1, { group: mesh.getGroup('pp') });
      const runtime = new PipelineRuntime(stage, 'GPipe', { microbatches: 2, lossFn: mse });
      const optimizer = new optim.SGD(module.parameters(), { lr: 0.1 });
      const step = () =>
        scope(() => {
          optimizer.zeroGrad();
          runtime.step(ones([4, 8]).mul(group.rank + 1), { target: ones([4, 8]) });
          optimizer.step();
        });
      return { module, frozen, runtime, step };
    };
    const isCommon = (/** @type {string[]} */ pointers) => {
      /** @type {readonly string[][]} */
      const all = group.allGatherObject(pointers);
      return pointers.map((pointer, i) => all.every((other) => other[i] === pointer));
    };
    const replicas = made((module) => replicate(module, { mesh: mesh.get('dp'), shareFrozen: true }));
    replicas.step();
    const whileFrozen = isCommon(pointersOf(replicas.module));
    const saved = /** @type {any} */ (replicas.runtime).parallel.frozen.savedBytes;
    for (const parameter of replicas.frozen.parameters()) parameter.requiresGrad = true;
    replicas.step();
    const whenLearned = isCommon(pointersOf(replicas.module));
    const sums = group.allGatherObject(replicas.module.parameters().map((parameter) => parameter.sum().item()));
    const shards = made((module) => fullyShard(module, { mesh: mesh.get('dp') }));
    shards.step();
    const between = isCommon(pointersOf(shards.module));
    const whole = withWholeParameters(shards.module, () => isCommon(pointersOf(shards.module)));
    return {
      whileFrozen,
      saved,
      whenLearned,
      areEqual: sums.every((each) => JSON.stringify(each) === JSON.stringify(sums[0])),
      between,
      whole,
    };
  },

  /** One loss is not a number: all ranks skip that step of the optimizer. */
  skipped({ wrap, gradient = false }) {
    const { mesh, stages, runtime, optimizer, x, y } = setUp({ pp: 2, stages: 2, schedule: '1F1B', wrap });
    /** @type {object[]} */
    const results = [];
    /** @type {number[]} */
    const norms = [];
    for (let step = 0; step < 3; step++)
      scope(() => {
        optimizer.zeroGrad();
        const before = weightsOf(stages);
        const isBad = step === 1 && mesh.getLocalRank('dp') === 1;
        runtime.step(x, { target: isBad && !gradient ? y.mul(Number.NaN) : y });
        const [first] = stages[0]?.module.parameters() ?? [];
        if (isBad && gradient && mesh.getLocalRank('pp') === 0) first?.grad?.fill_(Number.POSITIVE_INFINITY);
        const { norm, skipped, reason } = runtime.stepOptimizer(optimizer, { maxNorm: 1 });
        const isSame = JSON.stringify(before) === JSON.stringify(weightsOf(stages));
        norms.push(norm);
        results.push({ skipped, reason, isSame, isFinite: Number.isFinite(norm) });
      });
    return { results, count: runtime.skippedSteps, norms };
  },

  /** A loss is not a number where nothing is learned: it counts only as long as other ranks have its gradients. */
  cleared({ wrap }) {
    const { mesh, stages, runtime, optimizer, x, y } = setUp({ pp: 2, stages: 2, schedule: '1F1B', wrap });
    if (mesh.getLocalRank('pp') === 1) for (const { module } of stages) module.requiresGrad_(false);
    const step = (isBad = false) => scope(() => runtime.step(x, { target: isBad ? y.mul(Number.NaN) : y }));
    const made = () => runtime.stepOptimizer(optimizer).reason;
    step(true);
    optimizer.zeroGrad();
    step();
    const afterClearing = made();
    optimizer.zeroGrad();
    step(true);
    step();
    const withGradients = [made(), made()];
    optimizer.zeroGrad();
    step(true);
    optimizer.zeroGrad();
    const withoutStep = made();
    step();
    return { afterClearing, withGradients, withoutStep, then: made(), count: runtime.skippedSteps };
  },

  /** The same with scaled losses: the scale falls on all ranks, or on none. */
  scaled({ wrap }) {
    const scaler = new GradScaler({ initScale: 1024, growthInterval: 100 });
    const { mesh, stages, runtime, optimizer, x, y } = setUp({
      ...{ pp: 2, stages: 2, schedule: '1F1B', wrap, options: { scaler } },
    });
    /** @type {object[]} */
    const results = [];
    for (let step = 0; step < 3; step++)
      scope(() => {
        optimizer.zeroGrad();
        const before = weightsOf(stages);
        runtime.step(x, { target: y });
        const isBad = step === 1 && mesh.getLocalRank('dp') === 1 && mesh.getLocalRank('pp') === 0;
        if (isBad) stages[0]?.module.parameters()[0]?.grad?.fill_(Number.POSITIVE_INFINITY);
        const { norm, skipped } = runtime.stepOptimizer(optimizer, { maxNorm: 1 });
        scaler.update();
        const isSame = JSON.stringify(before) === JSON.stringify(weightsOf(stages));
        results.push({ skipped, isSame, norm: Number.isFinite(norm) ? norm : null, scale: scaler.getScale() });
      });
    return results;
  },

  /** A step without a sum after one with it: what a third one sums, with and without zeroGrad between. */
  unsynced({ wrap }) {
    const { stages, runtime, optimizer, x, y } = setUp({ pp: 2, stages: 2, schedule: '1F1B', wrap });
    const gradients = () =>
      stages.flatMap(({ module }) => module.parameters().flatMap(({ grad }) => (grad ? numbersOf(grad) : [])));
    const step = (/** @type {number} */ batch, sync = true) =>
      scope(() => runtime.step(x.mul(batch + 1), { target: y, sync }));
    const [first, second, third] = [0, 1, 2].map((batch) => {
      optimizer.zeroGrad();
      step(batch);
      return gradients();
    });
    optimizer.zeroGrad();
    step(0);
    step(1, false);
    step(2);
    const all = gradients();
    optimizer.zeroGrad();
    step(0);
    step(1, false);
    optimizer.zeroGrad();
    step(2);
    return { first, second, third, all, cleared: gradients() };
  },

  /** One rank is given a wrong batch: no rank computes, and the next step is as if nothing had been. */
  refused({ wrap, refuse = true, pp = 2 }) {
    const { mesh, stages, runtime, optimizer, x, y } = setUp({
      pp,
      stages: 2,
      schedule: pp === 1 ? 'LoopedBFS' : '1F1B',
      wrap,
    });
    /** @type {unknown[]} */
    const errors = [];
    for (let step = 0; step < 3; step++)
      scope(() => {
        optimizer.zeroGrad();
        const isWrong = mesh.getLocalRank('dp') === 1 && mesh.getLocalRank('pp') === 0;
        if (refuse && step === 1) {
          errors.push(errorOf(() => runtime.step(isWrong ? ones([2, 8]) : x, { target: y })));
          errors.push(stages.every(({ module }) => module.parameters().every(({ grad }) => grad === null)));
        }
        runtime.step(x, { target: y });
        optimizer.step();
      });
    return { errors, weights: weightsOf(stages) };
  },

  /** The recorder shows collectives. */
  recorded() {
    const recorder = new Recorder();
    const { runtime, x, y } = setUp({
      pp: 2,
      stages: 4,
      schedule: 'Interleaved1F1B',
      wrap: 'parameters',
      options: { record: recorder },
    });
    for (let step = 0; step < 3; step++) runtime.step(x, { target: y });
    runtime.eval(x);
    const kinds = (/** @type {number} */ at) =>
      recorder
        .timeline(at)
        .filter(({ action }) => ['UNSHARD', 'RESHARD', 'REDUCE_GRAD'].includes(action.kind))
        .map(
          ({ action, start, end }) =>
            `${action.stage}${action.kind}${start >= 0 && end >= start ? '' : ' without time'}`,
        );
    const report = recorder.report();
    return { training: kinds(2), evaluation: kinds(3), report: report?.includes('UNSHARD') ?? null };
  },

  /** A model that was exported, in shards: as on two ranks with the whole batch. */
  graph({ wrap, schedule = '1F1B', count = 2, dropout = false }) {
    const pp = 2;
    const mesh = initDeviceMesh('cpu', [pp, distributed.getWorldSize() / pp], ['pp', 'dp']);
    const dp = mesh.getLocalRank('dp');
    const model = loadPt2(fileURLToPath(new URL('../../../../../testdata/models/gpt2_dyn.pt2', import.meta.url)));
    // As a model that was exported for training has it.
    for (const node of dropout ? model.graph.nodes : [])
      if (node.kind === 'call' && node.op === 'aten::dropout')
        /** @type {unknown[]} */ (/** @type {unknown} */ (node.args)).splice(1, 2, { float: 0.2 }, true);
    const pipe = pipeline(model, { stages: count });
    const own = Array.from({ length: count }, (_, i) => i).filter(
      (i) => (i < pp ? i : 2 * pp - 1 - i) === mesh.getLocalRank('pp'),
    );
    const stages = own.map((index) => {
      const stage = pipe.buildStage(index, { group: mesh.getGroup('pp') });
      if (wrap !== 'none') fullyShard(stage.module, { mesh: mesh.get('dp'), level: wrap });
      return stage;
    });
    const lossFn = (/** @type {Tensor} */ output) => output.square().mean();
    // The same microbatches of the whole batch.
    const microbatches = dropout && wrap === 'none' ? 4 : 2;
    const random = dropout ? new nn.NamedRandom({ seed: 4 }) : undefined;
    const runtime = new PipelineRuntime(stages, schedule, { microbatches, lossFn, random });
    const optimizer = new optim.SGD([...new Set(stages.flatMap(({ module }) => module.parameters()))], { lr: 0.1 });
    const [input] = model.graph.nodes;
    const { shape } = /** @type {{ shape: number[] }} */ (/** @type {unknown} */ (input?.meta ?? { shape: [] }));
    for (let step = 0; step < 2; step++)
      scope(() => {
        const all = tensor(
          Array.from({ length: 12 * (shape[1] ?? 0) }, (_, i) => (7 * i + 3 * step) % 30),
          { dtype: 'int64' },
        ).reshape([12, -1]);
        const mine = wrap === 'none' ? all : all.narrow(0, 6 * dp, 6);
        optimizer.zeroGrad();
        runtime.step(mine);
        optimizer.step();
      });
    /** @type {Record<string, number[]>} */
    const found = {};
    for (const { stageIndex, module } of stages)
      withWholeParameters(module, () => {
        for (const [name, parameter] of module.namedParameters()) found[`${stageIndex} ${name}`] = numbersOf(parameter);
      });
    return found;
  },

  /** Computing in another type than that of the parameters, and parameters that stay out. */
  types() {
    setDefaultDtype('float32');
    const mesh = initDeviceMesh('cpu', [1, distributed.getWorldSize()], ['pp', 'dp']);
    manualSeed(3);
    class Net extends nn.Module {
      linear = new nn.Linear(8, 8);
      own = new nn.Parameter(ones([8]));
      /** @type {[string, string][]} */
      seen = [];
      /** @param {Tensor} x */
      forward(x) {
        this.seen.push([x.dtype.name, this.linear.weight.dtype.name]);
        return this.linear.forward(x).mul(this.own.to(x.dtype));
      }
    }
    const module = new Net();
    fullyShard(module, {
      mesh: mesh.get('dp'),
      mpPolicy: { paramDtype: 'bfloat16', reduceDtype: 'float32', outputDtype: 'float32' },
      ignoredParams: [module.own],
    });
    const stage = new PipelineStage(module, 0, 1, { group: mesh.getGroup('pp') });
    const runtime = new PipelineRuntime(stage, 'GPipe', { microbatches: 2, lossFn: mse });
    const outputs = runtime.step(ones([4, 8]), { target: ones([4, 8]) });
    const { weight } = module.linear;
    return {
      seen: module.seen,
      output: outputs?.dtype.name,
      weight: [weight.dtype.name, weight.grad?.dtype.name, weight.shape],
      own: [shardOf(module.own), module.own.shape, module.own.grad !== null],
    };
  },

  /** What cannot be sharded, and modules that differ. */
  wrong() {
    const mesh = initDeviceMesh('cpu', [distributed.getWorldSize()], ['dp']);
    class Scale extends nn.Module {
      factor = new nn.Parameter(tensor(2, { dtype: 'float32' }));
      /** @param {Tensor} x */
      forward(x) {
        return x.mul(this.factor);
      }
    }
    const { rank } = mesh;
    return [
      errorOf(() => fullyShard(new Scale(), { mesh })),
      errorOf(() => fullyShard(new nn.Linear(4, rank === 1 ? 5 : 4), { mesh })),
      // @ts-expect-error: there is no such level
      errorOf(() => fullyShard(new nn.Linear(4, 4), { mesh, level: 'everything' })),
      // @ts-expect-error: there is no such option
      errorOf(() => fullyShard(new nn.Linear(4, 4), { mesh, shard: true })),
      errorOf(() => fullyShard(new nn.Linear(4, 4), { mesh, shardPlacementFn: () => 2 })),
      errorOf(() => fullyShard(new nn.Linear(4, 4), { mesh, units: [new nn.Linear(4, 4)] })),
      // @ts-expect-error: a mesh is needed
      errorOf(() => fullyShard(new nn.Linear(4, 4), {})),
    ];
  },
};

/** @param {[string, any][]} cases */
export function main(cases) {
  if (!distributed.isInitialized()) distributed.initProcessGroup();
  return cases.map(([name, settings]) => /** @type {(settings: any) => unknown} */ (scenarios[name])(settings ?? {}));
}

await runAsProgram(import.meta.url, main);
