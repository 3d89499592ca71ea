/** @file What a runtime is given: losses, schedules, ties, options of lowering and cutting, and wrong calls. */
import { Schedule } from '@pipewright/schedule';
import { keep, nn, ones, scope, type Tensor } from '@pipewright/torch';
import { describe, expect, test } from 'vitest';
import { batch, expectClose, gradsOf, Layer, layers, make, plainGrads, WIDTH } from '../../testing/layers.ts';
import { PipelineStage } from '../stage/pipeline-stage.ts';
import { PipelineRuntime } from './runtime.ts';

describe('a loss and a schedule', () => {
  test('without backwards: step says which one is missing, eval computes losses', () => {
    const { x, y } = batch(8);
    for (const schedule of ['ForwardOnly', Schedule.from({ order: [['0F0', '0F1']] })] as const) {
      const { runtime } = make(layers(1), schedule);
      expect(() => runtime.step(x, { target: y })).toThrow(
        /^step: there is a lossFn, but the schedule .* has no backward for 0F0 \(and \d more\); add 0B0, or 0I0 and 0W0/,
      );
      const losses: Tensor[] = [];
      runtime.eval(x, { target: y, losses });
      expect(losses.length).toBe(runtime.microbatches);
    }
    expect(make(layers(1), 'ForwardOnly', { lossFn: undefined }).runtime.step(x)?.shape).toEqual([8, WIDTH]);
  });

  test('the loss may be a module; anything else is refused at once', () => {
    const { runtime, modules } = make(layers(2), 'Interleaved1F1B', { lossFn: new nn.MSELoss() });
    const data = batch(8);
    runtime.step(data.x, { target: data.y });
    const found = gradsOf(modules);
    expectClose(found, plainGrads(modules, data));
    expect(() => runtime.step(data.x)).toThrow('needs a target');
    const stage = new PipelineStage(new Layer(), 0, 1);
    const lossFn = 'mse' as unknown as () => Tensor;
    expect(() => new PipelineRuntime(stage, 'GPipe', { microbatches: 2, lossFn })).toThrow(
      "lossFn is 'mse'; give a function (output, target) => loss, or a module such as new nn.MSELoss()",
    );
    expect(() => new PipelineRuntime(stage, 'GPipe', { microbatches: 2, lossFn: nn.MSELoss as never })).toThrow(
      'lossFn is the function MSELoss; give a function (output, target) => loss, or a module such as new nn.MSELoss()',
    );
  });

  test('losses belong to the scope around the step; what outlives it is kept or read inside', () => {
    const { runtime } = make(layers(2));
    const { x, y } = batch(8);
    const losses: Tensor[] = [];
    scope(() => void runtime.step(x, { target: y, losses }));
    expect(() => losses[0]?.item()).toThrow('keep() it, or return it from the scope');
    scope(() => {
      runtime.step(x, { target: y, losses });
      keep(losses);
    });
    expect(losses.map((loss) => Number.isFinite(loss.item()))).toEqual([true, true, true, true]);
  });
});

describe('tied parameters', () => {
  test('keep what earlier steps have accumulated when a step fails midway and is repeated', () => {
    let fails = false;
    const made = layers(2);
    made[1] = new Layer((fc, x: Tensor) => {
      if (fails && (made[1] as Layer).calls % 4 === 2) throw new Error('out of luck');
      return fc.forward(x).tanh();
    });
    const tied = (index: number): object => ({ ties: { 'fc.weight': `w` }, checkpoint: index > 1 });
    const { runtime, modules } = make(made, 'LoopedBFS', {}, tied);
    const data = batch(8);
    runtime.step(data.x, { target: data.y });
    const one = gradsOf(modules);
    fails = true;
    expect(() => runtime.step(data.x, { target: data.y })).toThrow('out of luck');
    fails = false;
    const left = gradsOf(modules);
    for (const i of [0, 2]) expect(left[i]).not.toBeNull();
    runtime.step(data.x, { target: data.y });
    const found = gradsOf(modules);
    // The failed step got as far as no backward: what is there is twice the first one.
    expectClose(
      found,
      one.map((grad) => grad?.map((value) => 2 * value) ?? null),
    );
  });
});

describe('options for lowering and cutting', () => {
  test('unshardWindow puts UNSHARD and RESHARD into the schedule, and custom functions execute them', () => {
    const { runtime } = make(layers(2), 'Interleaved1F1B', { unshardWindow: 1 });
    const seen: string[] = [];
    for (const kind of ['UNSHARD', 'RESHARD'] as const)
      runtime.registerCustomFunction(kind, (action) => void seen.push(`${action.kind}${action.stage}`));
    const { x, y } = batch(8);
    runtime.step(x, { target: y });
    expect(new Set(seen)).toEqual(new Set(['UNSHARD0', 'UNSHARD1', 'RESHARD0', 'RESHARD1']));
    expect(make(layers(2)).runtime.schedule.toString()).not.toContain('UNSHARD');
  });

  test("lengths: 'any' cuts each input by its own length", () => {
    const modules = layers(1, (fc, x: Tensor, named: { bias: Tensor }) => fc.forward(x).add(named.bias.sum()));
    const given = { kwargs: { bias: ones([4], { dtype: 'float64' }) } };
    const { x } = batch(8);
    expect(() => make(modules, 'GPipe').runtime.eval(x, given)).toThrow("lengths: 'any'");
    expect(make(modules, 'GPipe', { lengths: 'any' }).runtime.eval(x, given)?.shape).toEqual([8, WIDTH]);
  });
});

test.each<[string, unknown, string]>([
  ['scaleGrads', 3, 'true or false'],
  ['capture', 'yes', 'true or false'],
  ['earlyGradients', null, 'true or false'],
  ['autocast', 'bfloat16', 'an object'],
  ['costs', 3, 'an object'],
  ['dataParallel', new Map(), 'an object'],
  ['kwargsChunkSpec', new Map(), 'an object'],
  ['group', {}, 'a process group'],
  ['scaler', 1024, 'new GradScaler()'],
])('%s of another kind is refused before any step: %s', (name, value, wanted) => {
  const stage = new PipelineStage(new Layer(), 0, 1);
  const make1 = (): unknown => new PipelineRuntime(stage, 'GPipe', { microbatches: 2, [name]: value });
  expect(make1).toThrow(`PipelineRuntime: ${name} is `);
  expect(make1).toThrow(`; give ${wanted}`);
});

test('wrong calls name what is wrong', () => {
  const stage = new PipelineStage(new Layer(), 0, 1);
  const make1 = (...args: unknown[]): unknown => Reflect.construct(PipelineRuntime, args);
  expect(() => make1()).toThrow('PipelineRuntime: the first argument is a PipelineStage or an array of them');
  expect(() => make1(null, 'GPipe')).toThrow('the first argument is a PipelineStage');
  expect(() => make1(stage)).toThrow('the schedule is undefined');
  expect(() => make1(stage, null, {})).toThrow('the schedule is null');
  expect(() => make1(stage, 3, {})).toThrow('the schedule is 3');
  expect(() => make1(stage, 'GPipe', null)).toThrow('the options are null');
  expect(() => make1(stage, 'GPipe', 4)).toThrow('the options are 4');
  expect(() => make1(stage, 'GPipe', new Map())).toThrow('the options are a Map');
  const { runtime } = make(layers(2));
  const hook = (value: unknown): unknown => Reflect.apply(runtime.addHook.bind(runtime), null, [value]);
  expect(() => hook(null)).toThrow('addHook: the hook is null; give an object with before, after');
  expect(() => hook({ befor: () => undefined })).toThrow("unknown option 'befor' (did you mean 'before'?)");
  expect(() => hook({ before: 3 })).toThrow('addHook: before is 3; give a function');
  class Counter {
    readonly kinds: string[] = [];
    before({ kind }: { kind: string }): void {
      this.kinds.push(kind);
    }
  }
  const counter = new Counter();
  runtime.addHook(counter);
  runtime.eval(batch(8).x);
  expect(counter.kinds.length).toBe(8);
  const custom = (f: unknown): unknown => Reflect.apply(runtime.registerCustomFunction.bind(runtime), null, ['F', f]);
  expect(() => custom(3)).toThrow('registerCustomFunction: the function for F is 3; give a function');
  expect(() => runtime.clipGradNorm_(1, null as unknown as object)).toThrow('the options are null');
});
