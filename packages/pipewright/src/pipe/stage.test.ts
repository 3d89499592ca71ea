/** @file Stages of a pipe on their own: built, sent as JSON, moved to a device, in training and evaluation. */
import { arange, callOp, float64, manualSeed, nn, ones, randn, scope, type Tensor, zeros } from '@pipewright/torch';
import { describe, expect, test } from 'vitest';
import { Block, Chain, expectClose, gradientsOf } from '../../testing/pipes.ts';
import {
  buildStage,
  checkGraph,
  describePipe,
  drawPipe,
  type Graph,
  GraphModule,
  LossWrapper,
  type PipeInfo,
  pipeline,
  pipeSplit,
  SplitPoint,
} from '../index.ts';
import { PipelineRuntime } from '../runtime/index.ts';

const x = randn(4, 4, { dtype: float64 });

/** A U: what goes down comes back beside what comes up; the input is wanted at the end. */
class Unet extends nn.Module {
  down = new nn.ModuleList([new Block(), new Block()]);
  up = new nn.ModuleList([new Block(), new Block()]);
  forward(y: Tensor, late: Tensor): unknown {
    const first = (this.down.at(0) as Block).forward(y);
    pipeSplit();
    const second = (this.down.at(1) as Block).forward(first);
    pipeSplit();
    const third = (this.up.at(0) as Block).forward(second).add(second);
    pipeSplit();
    return { out: (this.up.at(1) as Block).forward(third.add(first)).mul(late), early: first };
  }
}

interface Outputs {
  readonly out: Tensor;
  readonly early: Tensor;
}

const lossFn = ({ out, early }: Outputs): Tensor => out.square().mean().add(early.mean());

test.each(['LoopedBFS', 'Interleaved1F1B', 'InterleavedZeroBubble'] as const)(
  '%s on one rank: skips, values of several stages, inputs of late and outputs of early ones',
  (schedule) => {
    const model = new Unet().double();
    const late = randn(4, 4, { dtype: float64 });
    const want = scope(() => {
      lossFn(model.forward(x, late) as Outputs).backward();
      return gradientsOf(model);
    });
    const pipe = pipeline(model, { mbArgs: [x, late] });
    expect(pipe.info().edges).toEqual([
      [0, 1],
      [1, 2],
      [0, 3],
      [2, 3],
    ]);
    const stages = pipe.split.stages.map((_, i) => pipe.buildStage(i));
    using runtime = new PipelineRuntime(stages, schedule, { lossFn, microbatches: 2 });
    const outputs = scope(() => runtime.step(x, late));
    expect(Object.keys(outputs ?? {})).toEqual(['out', 'early']);
    expectClose(gradientsOf(model), want);
    for (const stage of pipe.split.stages.map((_, i) => pipe.buildStage(i))) expect(stage.numStages).toBe(4); // again
  },
);

test('a stage is its graph and the wiring, both JSON, with all that is known of values', () => {
  const model = new Chain().double();
  const pipe = pipeline(model, { mbArgs: [x], splitSpec: { 'layers.2': SplitPoint.BEGINNING } });
  const info = JSON.parse(JSON.stringify(pipe.info())) as PipeInfo;
  expect(info).toEqual(pipe.info());
  const { graph } = pipe.getStageModule(1);
  const sent: unknown = JSON.parse(JSON.stringify(graph));
  checkGraph(sent);
  expect(sent).toEqual(graph);
  expect((sent as Graph).nodes.every((node) => node.kind === 'output' || node.meta !== undefined)).toBe(true);
  const there = new GraphModule(sent as Graph, pipe.getStageModule(1).stateDict({ keepVars: true }));
  const stage = buildStage(there, 1, info);
  expect([stage.stageIndex, stage.numStages, stage.inputs]).toEqual([1, 2, [{ stage: 0 }]]);
  expect(scope(() => (there.forward(x) as Tensor).toArray())).toEqual(
    scope(() => (pipe.getStageModule(1).forward(x) as Tensor).toArray()),
  );
  expect(() => buildStage(there, 2, info)).toThrow(/there is no stage 2; the pipe has 2/);
});

test('a stage runs where it is put: new tensors too, wherever the device is written', () => {
  class Places extends nn.Module {
    fc = new nn.Linear(4, 4);
    forward(y: Tensor): Tensor {
      const rows = arange(y.size(0), { device: y.device }).unsqueeze(1);
      const moved = callOp('aten::to.device', [rows, 'cpu', 'float64']) as Tensor;
      return this.fc
        .forward(y)
        .add(moved)
        .add(zeros([4], { dtype: float64 }))
        .add(ones([1], { device: 'cpu' }));
    }
  }
  const pipe = pipeline(new Places().double(), { mbArgs: [x] });
  const stage = pipe.buildStage(0, { device: 'meta' });
  const y = scope(() => {
    const out = stage.module.forward(zeros([3, 4], { dtype: float64, device: 'meta' }) as never) as Tensor;
    return [out.device, out.shape];
  });
  expect(y).toEqual(['meta', [3, 4]]);
});

describe('training and evaluation', () => {
  test('of a pipe and its stages', () => {
    const model = new nn.Sequential(new nn.Linear(4, 4), new nn.Dropout(0.5), new nn.Linear(4, 4)).double();
    const pipe = pipeline(model, { mbArgs: [x], splitSpec: { 1: SplitPoint.BEGINNING, 2: SplitPoint.BEGINNING } });
    expect(pipe.numStages).toBe(3);
    const run = (forward: (y: Tensor) => unknown): unknown =>
      scope(() => {
        manualSeed(7);
        return (forward(x) as Tensor).toArray();
      });
    for (const mode of [true, false]) {
      model.train(mode);
      pipe.train(mode);
      expect(run((y) => pipe.forward(y))).toEqual(run((y) => model.forward(y)));
      expect(pipe.buildStage(1).module.training).toBe(mode);
    }
    expect(pipeline(model, { mbArgs: [x] }).training).toBe(false);
  });

  test('a pipe that can do only one says so', () => {
    class Other extends nn.Module {
      forward(y: Tensor): Tensor {
        return this.training ? y.tanh() : y.mul(2);
      }
    }
    const pipe = pipeline(new Other(), { mbArgs: [x] });
    expect(() => pipe.eval()).toThrow(/the graph does only training; make a second pipe/);
    expect(pipe.train().training).toBe(true);
    expect(() => pipeline(new Other().eval(), { mbArgs: [x] }).train()).toThrow(/the graph does only evaluation/);
  });
});

test('gradients of an input that several stages take are added', () => {
  class Twice extends LossWrapper {
    forward(y: Tensor): Tensor {
      const one = (this.module as Block).forward(y);
      pipeSplit();
      return (this.lossFn as (a: Tensor) => Tensor)(one.mul(y));
    }
  }
  const model = new Twice(new Block(), ((y: Tensor) => y.sum()) as never).double();
  const pipe = pipeline(model, { mbArgs: [x], lossSpec: true });
  const added = pipe
    .info()
    .graph.nodes.filter((node) => node.kind === 'call' && node.op === 'pipewright::null_coalesce_add');
  expect(added.length).toBe(1);
  scope(() => pipe.forward(x.clone().requiresGrad_()));
  expect(pipe.parameters().every((parameter) => parameter.grad !== null)).toBe(true);
});

test('a pipe in numbers and as a picture', () => {
  const pipe = pipeline(new Unet().double(), { mbArgs: [x, x] });
  const report = describePipe(pipe, { batch: 2 });
  expect(
    report.stages.map(({ layers, bytesIn, bytesOut, parameters }) => [layers, bytesIn, bytesOut, parameters.bytes]),
  ).toEqual([
    [['down.0'], 64, 64, 160],
    [['down.1'], 64, 64, 160],
    [['up.0'], 64, 64, 160],
    [['up.1'], 192, 64, 160],
  ]);
  expect(report.skips.map(({ name, from, to }) => [name, from, to])).toEqual([
    ['late', null, [3]],
    ['add', 0, [1, 3]],
  ]);
  expect(report.stages.reduce((sum, { share }) => sum + share, 0)).toBeCloseTo(1, 12);
  expect(() => describePipe(pipe, { time: 3 })).toThrow(/there is no dynamic size 'time'; there are batch/);
  expect(() => describePipe(pipe, { batch: 0 })).toThrow(/is 0; give a whole number/);
  const picture = drawPipe(report, { title: 'a < b & "c"' });
  expect(picture).toContain('a &lt; b &amp; &quot;c&quot;');
  expect(picture.match(/class="box"/g)?.length).toBe(4);
  expect(picture.match(/class="arrow"/g)?.length).toBe(4);
});
