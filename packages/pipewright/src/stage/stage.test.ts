/** @file Stages: what they exchange, what they declare, what they refuse. */
import { cat, GradientEdge, manualSeed, type nn, ones, scope, Tensor, tensor, zeros } from '@pipewright/torch';
import { describe, expect, test, vi } from 'vitest';
import { batch, expectClose, gradsOf, Layer, layers, make, mse, WIDTH } from '../../testing/layers.ts';
import { PipelineRuntime } from '../runtime/runtime.ts';
import { PipelineStage } from './pipeline-stage.ts';

describe('what stages exchange', () => {
  const schedules = ['Interleaved1F1B', 'InterleavedZeroBubble', 'LoopedBFS'] as const;

  test.each(schedules)('views, values without influence, integers and texts, under %s', (schedule) => {
    manualSeed(3);
    const first = new Layer((fc, x: Tensor) => {
      const y = fc.forward(x);
      // A transposed view, a tensor that nobody uses, an integer tensor, a text.
      return [y.t().contiguous().t(), y.mul(2), x.argmax(-1), 'text'];
    });
    const second = new Layer((fc, ...[y, , index, text]: [Tensor, Tensor, Tensor, string]) => {
      expect(text).toBe('text');
      return fc.forward(y).add(index.to('float64').unsqueeze(-1)).reshape([-1, WIDTH]);
    });
    const { runtime, modules } = make([first, second], schedule);
    const data = batch(8);
    runtime.step(data.x, { target: data.y });
    const found = gradsOf(modules);
    for (const module of modules) module.zeroGrad();
    const [y, , index] = first.forward(data.x) as [Tensor, Tensor, Tensor];
    mse(second.forward(y, y, index, 'text') as Tensor, data.y).backward();
    expectClose(found, gradsOf(modules));
  });

  test('a stage without parameters computes where it was told to', () => {
    const identity = (): Layer => {
      const layer = new Layer((_fc, x: Tensor) => x);
      (layer as { fc?: unknown }).fc = null;
      return layer;
    };
    expect(identity().parameters()).toHaveLength(0);
    expect(new PipelineStage(identity(), 0, 1).device).toBe('cpu');
    expect(new PipelineStage(identity(), 0, 1, { device: 'meta' }).device).toBe('meta');
    expect(new PipelineStage(new Layer(), 0, 1, 'cpu').device).toBe('cpu');
  });

  test.each(schedules)('a stage fed by integers only still learns, under %s', (schedule) => {
    manualSeed(3);
    const first = new Layer((_fc, x: Tensor) => x.argmax(-1));
    const table = new Layer((fc, index: Tensor) => fc.weight.index([index]));
    const { runtime } = make([first, table], schedule);
    const data = batch(8);
    runtime.step(data.x, { target: data.y });
    expect(gradsOf([first])).toEqual([null, null]);
    const found = gradsOf([table]);
    table.zeroGrad();
    mse(table.forward(first.forward(data.x)) as Tensor, data.y).backward();
    expectClose([found[0]!], [gradsOf([table])[0]!]);
  });

  test.each([false, true])(
    'gradients of inputs are there before those of weights are computed, on a GPU: %s',
    (isCuda) => {
      manualSeed(3);
      const module = new Layer();
      const stage = new PipelineStage(module, 1, 3);
      const [x, grad] = [batch(4).x, ones([4, WIDTH], { dtype: 'float64' })];
      const leaf = x.detach().requiresGrad_();
      stage.setInput(0, 0, [leaf], [leaf]);
      const output = stage.forwardOneChunk(0) as Tensor;
      stage.setOutgoing(0, 2, [output]);
      stage.setOutputGrads(0, 2, [grad.clone()]);
      const device = vi.spyOn(Tensor.prototype, 'isCuda', 'get').mockReturnValue(isCuda);
      const found: (Tensor | null)[] = [];
      const inputsReady = (): void => {
        expect(module.fc.weight.grad).toBeNull();
        found.push(...stage.takeInputGrads(0, 0));
      };
      try {
        stage.backwardOneChunk(0, { inputsReady });
      } finally {
        device.mockRestore();
      }
      const input = x.detach().requiresGrad_();
      const weights = gradsOf([module]);
      module.zeroGrad();
      (module.forward(input) as Tensor).backward(grad);
      const numbers = (of: Tensor | null): number[] | null => of && (of.flatten().toArray() as number[]);
      expectClose([...found.map(numbers), ...weights], [numbers(input.grad), ...gradsOf([module])]);
      expect(stage.inFlight).toBe(0);
    },
  );

  test('the last stage may return anything', () => {
    const made = layers(2);
    made[1] = new Layer((fc, x: Tensor) => ({ y: fc.forward(x), note: 'all well', count: 3 }));
    const { runtime } = make(made, 'InterleavedZeroBubble', {
      lossFn: (output: { y: Tensor; note: string; count: number }, target: Tensor) => mse(output.y, target),
    });
    const { x, y } = batch(8);
    const output = runtime.step(x, { target: y });
    expect(output?.y.shape).toEqual([8, WIDTH]);
    expect(output?.y.requiresGrad).toBe(false);
    expect([output?.note, output?.count]).toEqual(['all well', 3]);
  });

  test('a module that returns its own parameter or its input does not lose them', () => {
    manualSeed(3);
    const echo = new Layer((fc, x: Tensor) => [x, fc.weight]);
    const use = new Layer((fc, x: Tensor, weight: Tensor) => fc.forward(x).matmul(weight));
    const { runtime, modules } = make([echo, use], 'Interleaved1F1B');
    const data = batch(8);
    for (let i = 0; i < 2; i++) {
      for (const module of modules) module.zeroGrad();
      runtime.step(data.x, { target: data.y });
    }
    const found = gradsOf(modules);
    for (const module of modules) module.zeroGrad();
    mse(use.forward(data.x, echo.fc.weight) as Tensor, data.y).backward();
    expectClose([found[0]!], [gradsOf(modules)[0]!]);
    expect(data.x.isDisposed).toBe(false);
  });

  test('a missing element is named', () => {
    const made = layers(2);
    const { runtime } = make(made, 'LoopedBFS', {}, (i) => (i === 1 ? { inputs: [{ stage: 0, output: 'skip' }] } : {}));
    const { x, y } = batch(8);
    expect(() => runtime.step(x, { target: y })).toThrow('stage 1 takes output "skip" of stage 0, which returned');
  });
});

describe('declared shapes', () => {
  const meta = (rows: number): Tensor => zeros([rows, WIDTH], { dtype: 'float64', device: 'meta' });

  test('are compared between neighbours before the first step', () => {
    const { runtime } = make(layers(2), 'LoopedBFS', {}, (i) => ({
      inputArgs: meta(2),
      outputArgs: i === 0 ? meta(3) : meta(2),
    }));
    const { x, y } = batch(8);
    expect(() => runtime.step(x, { target: y })).toThrow(
      'stage 0 declares the outputs float64[3, 4], stage 1 the inputs float64[2, 4]',
    );
  });

  test('are compared with what comes, by value', () => {
    const { runtime } = make(layers(2), 'LoopedBFS', {}, () => ({ inputArgs: meta(3), outputArgs: meta(3) }));
    const { x, y } = batch(8);
    expect(() => runtime.step(x, { target: y })).toThrow(
      'stage 0: tensor 0 of its inputs differs from inputArgs: declared float64[3, 4]; got float64[2, 4]',
    );
  });

  test('outputs alone are refused', () => {
    expect(() => new PipelineStage(new Layer(), 0, 1, { outputArgs: meta(1) })).toThrow('outputArgs without inputArgs');
  });
});

describe('a stage by itself', () => {
  test('says what is out of order', () => {
    const stage = new PipelineStage(new Layer(), 1, 3);
    expect(() => stage.backwardOneChunk(0)).toThrow('stage 1: backward of microbatch 0 without its forward');
    expect(() => stage.backwardWeightOneChunk(0)).toThrow('without the input half of its backward');
    expect(() => stage.forwardOneChunk(0)).toThrow('without its input from stage 0');
    expect(() => stage.takeInputGrads(0, 0)).toThrow('without its backward');
    const x = ones([2, WIDTH], { dtype: 'float64' }).requiresGrad_();
    stage.setInput(0, 0, [x], [x]);
    const y = stage.forwardOneChunk(0) as Tensor;
    stage.setOutgoing(0, 2, [y.alias()]);
    stage.setOutputGrads(0, 2, [ones([2, WIDTH], { dtype: 'float64' })]);
    stage.backwardOneChunk(0, { full: false });
    expect(stage.takeInputGrads(0, 0).length).toBe(1);
    stage.backwardWeightOneChunk(0);
    expect(stage.inFlight).toBe(0);
    expect(() => stage.backwardWeightOneChunk(0)).toThrow('without the input half of its backward');
    expect(() => stage.setOutputGrads(3, 2, [x])).toThrow('stage 2 sent back 1 gradients for 0 outputs');
  });

  test.each([true, false])('needs no values of what was sent for its backward, in full: %s', (full) => {
    const run = (release: boolean): unknown => {
      const stage = new PipelineStage(new Layer(), 1, 3);
      const x = ones([2, WIDTH], { dtype: 'float64' }).requiresGrad_();
      stage.setInput(0, 0, [x], [x]);
      const sent = (stage.forwardOneChunk(0) as Tensor).alias();
      stage.setOutgoing(0, 2, [sent]);
      if (release) stage.releaseOutgoing(0, 2);
      expect(sent.isDisposed).toBe(release);
      const [root] = stage.sentTo(0, 2);
      expect(root instanceof GradientEdge).toBe(release);
      expect(root?.shape).toEqual([2, WIDTH]);
      stage.setOutputGrads(0, 2, [ones([2, WIDTH], { dtype: 'float64' })]);
      stage.backwardOneChunk(0, { full });
      const [dx] = stage.takeInputGrads(0, 0);
      if (!full) stage.backwardWeightOneChunk(0);
      expect(stage.inFlight).toBe(0);
      return [dx, ...stage.module.parameters().map(({ grad }) => grad)].map((grad) => grad?.toArray());
    };
    manualSeed(7);
    const expected = run(false);
    manualSeed(7);
    expect(run(true)).toEqual(expected);
  });

  test('refuses wiring that makes no sense', () => {
    const layer = new Layer();
    expect(() => new PipelineStage(layer, 1, 3, { inputs: [{ stage: 1 }] })).toThrow(
      'inputs come from an earlier stage',
    );
    expect(
      () =>
        new PipelineStage(layer, 2, 3, {
          inputs: [
            { stage: 0, spread: true },
            { stage: 0, output: 1 },
          ],
        }),
    ).toThrow('name the elements');
    expect(() => new PipelineStage(layer, 0, 1, { ties: { nothing: 'x' } })).toThrow(
      /^PipelineStage 0: ties has 'nothing', which is no parameter of its module \(.*'nothing'.*\); give each stage the tied/,
    );
    expect(() => new PipelineStage(layer, 0, 1, { devise: 'cpu' } as object)).toThrow("did you mean 'device'?");
    expect(() => new PipelineStage({} as nn.Module, 0, 1)).toThrow(
      'must be an nn.Module, got an object with nothing in it',
    );
  });

  test('takes named inputs by name', () => {
    const gate = new Layer((fc, x: Tensor, { gate: by }: { gate: Tensor }) => fc.forward(x).mul(by));
    const stage = new PipelineStage(gate, 0, 1, { kwargs: ['gate'] });
    const runtime = new PipelineRuntime(stage, 'GPipe', { microbatches: 2, lossFn: (y: Tensor) => y.sum() });
    const x = ones([4, WIDTH], { dtype: 'float64' });
    expect(() => runtime.step(x)).toThrow("takes the named input 'gate'");
    const gates = tensor([1, 2, 3, 4], { dtype: 'float64' }).reshape([4, 1]);
    const y = runtime.step(x, { kwargs: { gate: gates, other: gates } })!;
    const expected = scope(() => gate.fc.forward(x).mul(gates));
    expect(cat([y.sub(expected).abs().max().reshape([1])]).item()).toBeLessThan(1e-12);
  });
});

describe('what a script of PyTorch writes', () => {
  test('the device alone as the options, and submod', () => {
    const layer = new Layer();
    const stage = new PipelineStage(layer, 0, 1, 'cpu');
    expect(stage.submod).toBe(layer);
    expect(stage.module.parameters().map((parameter) => String(parameter.device))).toEqual(['cpu', 'cpu']);
  });

  test('numbers of stage and microbatch come to the module that asks for them', () => {
    const seen: unknown[] = [];
    const modules = layers(2, (fc, x: Tensor, named?: object) => {
      seen.push(named);
      return fc.forward(x);
    });
    const { runtime } = make(modules, 'LoopedBFS', {}, (index) => ({ passStageAndMicrobatchIndices: index === 1 }));
    const { x, y } = batch(8);
    runtime.step(x, { target: y });
    const own = [0, 1, 2, 3].map((m) => ({ pipelineStageIndex: 1, pipelineMicrobatchIndex: m }));
    expect(seen.filter((named) => named !== undefined)).toEqual(own);
    expect(seen.length).toBe(8);
    expect(() => runtime.step(x, { target: y, kwargs: { pipelineStageIndex: 3 } })).toThrow(
      "stage 1 gets 'pipelineStageIndex' from the runtime",
    );
  });
});

describe('calls in a wrong order or of a wrong kind', () => {
  test('an input or a forward of a microbatch comes once', () => {
    const stage = new PipelineStage(new Layer(), 1, 2);
    const { x } = batch(2);
    stage.setInput(0, 0, [x], []);
    expect(() => stage.setInput(0, 0, [x], [])).toThrow(
      'stage 1: the input of microbatch 0 from stage 0 for the second time; each comes once in a step',
    );
    stage.forwardOneChunk(0);
    expect(() => stage.forwardOneChunk(0)).toThrow('stage 1: the forward of microbatch 0 for the second time');
    stage.clearRuntimeStates();
    stage.setInput(0, 0, [batch(2).x], []);
    stage.forwardOneChunk(0);
    expect(() => stage.setInput(1, 5, [x], [])).toThrow('stage 1 takes nothing from stage 5; its inputs come from 0');
  });

  test('so do its outputs, its loss, what comes back for them, and its backward', () => {
    const x = (): Tensor => batch(2).x.requiresGrad_();
    const grad = (): Tensor => ones([2, WIDTH], { dtype: 'float64' });
    const first = new PipelineStage(new Layer(), 0, 3);
    expect(() => first.setOutgoing(0, 1, [x()])).toThrow('sending outputs of microbatch 0 without its forward');
    const y = first.forwardOneChunk(0, [x()]) as Tensor;
    for (const nowhere of [0, -1, 3, 'x' as never])
      expect(() => first.setOutgoing(0, nowhere, [y])).toThrow('outputs go to later ones of 3 stages');
    first.setOutgoing(0, 1, [y.alias()]);
    expect(() => first.setOutgoing(0, 1, [y])).toThrow('the output of microbatch 0 for stage 1 for the second time');
    first.setOutputGrads(0, 1, [grad()]);
    expect(() => first.setOutputGrads(0, 1, [grad()])).toThrow(
      'the gradients of microbatch 0 from stage 1 for the second time',
    );

    for (const full of [true, false]) {
      const last = new PipelineStage(new Layer(), 1, 2);
      const input = x();
      last.setInput(0, 0, [input], [input]);
      expect(() => last.backwardOneChunk(0)).toThrow('backward of microbatch 0 without its forward');
      const loss = (last.forwardOneChunk(0) as Tensor).sum();
      last.setLoss(0, loss.alias());
      expect(() => last.setLoss(0, loss)).toThrow('the loss of microbatch 0 for the second time');
      if (full) last.startBackward(0);
      if (full) expect(() => last.startBackward(0)).toThrow('the backward of microbatch 0 for the second time');
      last.backwardOneChunk(0, { full });
      for (const again of [
        () => last.backwardOneChunk(0, { full }),
        () => last.startBackward(0),
        () => last.backwardStart(0),
        () => last.endBackward(0, [null]),
      ])
        expect(again).toThrow('the backward of microbatch 0 for the second time');
      expect(last.takeInputGrads(0, 0)).toHaveLength(1);
      if (!full) last.backwardWeightOneChunk(0);
      expect(gradsOf([last.module]).every((each) => each !== null)).toBe(true);
      expect(last.inFlight).toBe(0);
    }
  });

  test('wrong options and numbers are refused by name', () => {
    const make = (options: unknown): PipelineStage => new PipelineStage(new Layer(), 0, 1, options as object);
    expect(() => make(null)).toThrow('PipelineStage: the options are null; give an object');
    expect(() => make(3)).toThrow('PipelineStage: the options are 3');
    expect(() => make([])).toThrow('the options are an array of 0');
    expect(() => make(new Map([['checkpoint', true]]))).toThrow('PipelineStage: the options are a Map');
    expect(() => make(Promise.resolve({}))).toThrow('PipelineStage: the options are a Promise');
    expect(() => make({ group: 3 })).toThrow('PipelineStage 0: group is 3; give a process group');
    expect(() => make({ inputs: 3 })).toThrow('PipelineStage 0: inputs is 3; give an array');
    expect(() => make({ kwargs: 'mask' })).toThrow("kwargs is 'mask'; give an array of names");
    expect(() => make({ ties: ['w'] })).toThrow('ties is an array of 1; give an object');
    expect(() => make({ checkpoint: 1 })).toThrow('checkpoint is 1; give true or false');
    expect(() => make({ dwBuilder: 1 })).toThrow('dwBuilder is 1; give a function');
    expect(() => make({ inputArgs: 1 })).toThrow('inputArgs is 1; give a tensor or an array of tensors');
    const stage = new PipelineStage(new Layer(), 0, 1);
    expect(() => stage.forwardOneChunk(-1, [batch(2).x])).toThrow('the microbatch is -1');
    expect(() => stage.forwardOneChunk('0' as unknown as number, [batch(2).x])).toThrow("the microbatch is '0'");
  });
});

test('a stage that changes its input in place leaves what other stages get of it alone', () => {
  const run = (share: (h: Tensor) => unknown): number[] => {
    const modules = layers(3);
    modules[0] = new Layer((_fc, x: Tensor) => share(x.add(1)));
    modules[1] = new Layer((_fc, x: Tensor) => x.mul_(100));
    modules[2] = new Layer((_fc, y: Tensor, skip: Tensor) => y.mul(0).add(skip));
    const { runtime } = make(modules, 'LoopedBFS', {}, (index) => ({
      ...(index === 1 ? { inputs: [{ stage: 0, output: 0 }] } : {}),
      ...(index === 2 ? { inputs: [{ stage: 1 }, { stage: 0, output: 1 }] } : {}),
    }));
    const { x } = batch(4);
    const output = runtime.eval(x)!;
    expect(output.sub(x).sub(1).abs().max().item()).toBeLessThan(1e-12);
    return output.shape;
  };
  expect(run((h) => [h, h])).toEqual([4, WIDTH]);
  expect(run((h) => [h, h.view([-1, WIDTH])])).toEqual([4, WIDTH]);
});
