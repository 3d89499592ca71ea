/** @file Checkpointed stages: what a module changes in its buffers changes once for each microbatch, and the backward sees what the forward saw. */
import { liveTensors, manualSeed, nn, noGrad, ones, randn, scope, type Tensor, zeros } from '@pipewright/torch';
import { describe, expect, test, vi } from 'vitest';
import { mse } from '../../testing/layers.ts';
import { pipeline } from '../pipe/pipeline.ts';
import { PipelineRuntime } from '../runtime/runtime.ts';
import { PipelineStage } from './pipeline-stage.ts';

/** A layer with a buffer. */
abstract class Layer extends nn.Module {
  readonly fc: nn.Linear = new nn.Linear(4, 4);
  abstract override forward(x: Tensor): Tensor;
}

/** Batch norm, and a counter of its own. */
class Normed extends Layer {
  readonly norm: nn.BatchNorm1d = new nn.BatchNorm1d(4);
  readonly calls: nn.Buffer = new nn.Buffer(zeros([1]));

  forward(x: Tensor): Tensor {
    noGrad(() => this.calls.add_(1));
    return this.norm.forward(this.fc.forward(x)).tanh();
  }
}

/** Computes with a buffer that it changes. */
class Averaging extends Layer {
  readonly average: nn.Buffer = new nn.Buffer(ones([4]));

  forward(x: Tensor): Tensor {
    const y = this.fc.forward(x).tanh();
    noGrad(() => scope(() => void this.average.mul_(0.5).add_(y.mean(0))));
    return y.mul(this.average.clone());
  }
}

/** The same with statistics of batch norm under names of its own, which libtorch changes without counting it. */
class OwnStatistics extends Layer {
  readonly middle: nn.Buffer = new nn.Buffer(zeros([4]));
  readonly spread: nn.Buffer = new nn.Buffer(ones([4]));

  forward(x: Tensor): Tensor {
    const options = { runningMean: this.middle, runningVar: this.spread, training: true };
    const y = nn.functional.batchNorm(this.fc.forward(x), options);
    return y.mul(this.spread.clone()).add(this.middle.clone()).tanh();
  }
}

/** Gives the field another buffer in every forward. */
class Replacing extends Layer {
  n = new nn.Buffer(zeros([1]));

  forward(x: Tensor): Tensor {
    this.n = new nn.Buffer(noGrad(() => this.n.add(1)));
    return this.fc.forward(x).tanh().mul(this.n);
  }
}

/** Makes its buffer in the first forward. */
class Late extends Layer {
  n: nn.Buffer | null = null;

  forward(x: Tensor): Tensor {
    const { n } = this;
    if (n === null) this.n = new nn.Buffer(zeros([1], { dtype: 'float64' }).add(3));
    else noGrad(() => n.add_(1));
    return this.fc.forward(x).tanh().mul(this.n!.clone());
  }
}

/** Makes its buffer be another tensor: with `setData`, and with `become`. */
class Becoming extends Layer {
  readonly n: nn.Buffer = new nn.Buffer(ones([1]));
  readonly m: nn.Buffer = new nn.Buffer(ones([1]));

  forward(x: Tensor): Tensor {
    noGrad(() => this.n.setData(this.n.add(1)));
    noGrad(() => this.m.become(this.m.mul(1.5)));
    return this.fc.forward(x).tanh().mul(this.n.clone()).mul(this.m);
  }
}

/** Two layers one after the other. */
class Two extends nn.Module {
  readonly first: Layer;
  readonly second: Layer;

  constructor(Kind: new () => Layer) {
    super();
    this.first = new Kind();
    this.second = new Kind();
    this.double();
  }

  forward(x: Tensor): Tensor {
    return this.second.forward(this.first.forward(x));
  }
}

type Values = Record<string, number[]>;

const numbers = (tensor: Tensor): number[] =>
  scope(() => Array.from(tensor.detach().double().flatten().toTypedArray(), Number));

/** Buffers and gradients by their names in the whole model. */
function valuesOf(module: nn.Module, prefix = ''): Values {
  const grads = module.namedParameters({ prefix }).map(([name, { grad }]) => [`${name}.grad`, numbers(grad!)]);
  return Object.fromEntries([...module.namedBuffers({ prefix }).map(([name, b]) => [name, numbers(b)]), ...grads]);
}

const MICROBATCHES = 4;
manualSeed(11);
const x = randn([16, 4], { dtype: 'float64' });
const y = randn([16, 4], { dtype: 'float64' });

/** The whole model in one process, two steps. */
function plain(model: nn.Module & { forward(x: Tensor): Tensor }): Values {
  const [inputs, targets] = [x.chunk(MICROBATCHES), y.chunk(MICROBATCHES)];
  for (let step = 0; step < 2; step++)
    inputs.forEach((input, m) => mse(model.forward(input), targets[m]!).div(MICROBATCHES).backward());
  return valuesOf(model);
}

function train(stages: PipelineStage[], schedule: (typeof schedules)[number]): void {
  const runtime = new PipelineRuntime(stages, schedule, { microbatches: MICROBATCHES, lossFn: mse });
  for (let step = 0; step < 2; step++) scope(() => void runtime.step(x, { target: y }));
}

function expectSame(got: Values, want: Values): void {
  expect(Object.keys(got).sort()).toEqual(Object.keys(want).sort());
  for (const [name, values] of Object.entries(want))
    values.forEach((value, i) => expect(Math.abs(got[name]![i]! - value), name).toBeLessThan(1e-12));
}

const schedules = ['LoopedBFS', 'Interleaved1F1B', 'InterleavedZeroBubble'] as const;
const kinds = { Normed, Averaging, OwnStatistics, Replacing, Late, Becoming };

describe.each(schedules)('%s, checkpointed stages', (schedule) => {
  test.each(Object.entries(kinds))('of a module: %s', (_name, Kind) => {
    const model = new Two(Kind);
    const want = plain(model.clone());
    const modules = [model.first, model.second];
    const before = modules.flatMap((module) => module.buffers());
    train(
      modules.map((module, i) => new PipelineStage(module, i, 2, { checkpoint: true })),
      schedule,
    );
    expectSame(valuesOf(model), want);
    if (Kind !== Replacing && Kind !== Late)
      expect(modules.flatMap((module) => module.buffers()).every((buffer, i) => buffer === before[i])).toBe(true);
  });

  test.each(Object.entries({ Normed, Averaging, OwnStatistics }))('of a pipe: %s', (_name, Kind) => {
    const model = new Two(Kind);
    const want = plain(model.clone());
    const pipe = pipeline(model, [x.narrow(0, 0, 4)], { stages: 2, recompute: [true, true] });
    const stages = [0, 1].map((i) => pipe.buildStage(i));
    expect(stages.map((stage) => stage.checkpoint)).toEqual([true, true]);
    train(stages, schedule);
    expectSame(Object.assign({}, ...stages.map((stage) => valuesOf(stage.module))) as Values, want);
  });
});

test('copies of buffers are freed with the microbatch, and evaluations make none', () => {
  const model = new Two(Averaging);
  const stages = [model.first, model.second].map((module, i) => new PipelineStage(module, i, 2, { checkpoint: true }));
  const runtime = new PipelineRuntime(stages, 'LoopedBFS', { microbatches: MICROBATCHES, lossFn: mse });
  const once = (): void => scope(() => void runtime.step(x, { target: y }));
  once();
  const live = liveTensors();
  once();
  scope(() => void runtime.eval(x, { target: y }));
  expect(liveTensors()).toBe(live);
});

/** A buffer of 512 kB, which is left alone until it shall be changed. */
class Large extends Layer {
  readonly table: nn.Buffer = new nn.Buffer(ones([64 * 1024, 1]));
  isChanging = false;

  forward(x: Tensor): Tensor {
    if (this.isChanging) noGrad(() => this.table.add_(1));
    return this.fc.forward(x).mul(this.table.select(0, 0).clone());
  }
}

describe('a large buffer', () => {
  const make = (): { table: nn.Buffer; layer: Large; step: () => void } => {
    const model = new Two(Large);
    const layer = model.second as Large;
    const stages = [model.first, layer].map((module, i) => new PipelineStage(module, i, 2, { checkpoint: true }));
    const runtime = new PipelineRuntime(stages, 'LoopedBFS', { microbatches: MICROBATCHES, lossFn: mse });
    return { table: layer.table, layer, step: () => scope(() => void runtime.step(x, { target: y })) };
  };

  test('that forwards leave alone is copied once', () => {
    const { table, step } = make();
    const clone = vi.spyOn(table, 'clone');
    step();
    step();
    expect(clone).toHaveBeenCalledTimes(1);
  });

  test('that changes from the first forward on is what the forward saw', () => {
    const model = new Two(Large);
    for (const layer of [model.first, model.second] as Large[]) layer.isChanging = true;
    const want = plain(model.clone());
    train(
      [model.first, model.second].map((module, i) => new PipelineStage(module, i, 2, { checkpoint: true })),
      'LoopedBFS',
    );
    expectSame(valuesOf(model), want);
  });

  test('that changes later is refused where its earlier values are not known', () => {
    const { layer, step } = make();
    step();
    layer.isChanging = true;
    expect(step).toThrow(
      "stage 1, forward of microbatch 0: the module changes its buffer 'table' of 524288 bytes for the first time, after forwards that left it alone; what it was before is not kept for buffers of more than 262144 bytes that do not change, and the backward of a checkpointed stage needs it to compute the forward again. From now on it is kept: go back to the last saved state and run the step again; or build the stage with checkpoint: false",
    );
  });
});
