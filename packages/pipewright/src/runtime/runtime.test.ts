/** @file What a step promises apart from its numbers: where PyTorch's pipeline runtime goes wrong, this one does not. */
import { buildSchedule, formatCsv, lower, parseCsv, Schedule } from '@pipewright/schedule';
import {
  type AutocastOptions,
  autocast,
  GradScaler,
  liveTensors,
  nn,
  noGrad,
  ones,
  optim,
  scope,
  Tensor,
  tensor,
} from '@pipewright/torch';
import { describe, expect, test } from 'vitest';
import { batch, expectClose, gradsOf, Layer, layers, make, mse, plainGrads, WIDTH } from '../../testing/layers.ts';
import { TensorChunkSpec } from '../microbatch/index.ts';
import { PipelineStage } from '../stage/pipeline-stage.ts';
import { PipelineRuntime } from './runtime.ts';

describe('evaluation', () => {
  test('leaves gradients alone, needs no target, records nothing and frees everything', () => {
    const { runtime, modules } = make(layers(2), 'ZBVZeroBubble');
    const { x, y } = batch(8);
    runtime.step(x, { target: y });
    const before = gradsOf(modules);
    const live = liveTensors();
    const output = runtime.eval(x)!;
    expect(output.requiresGrad).toBe(false);
    expect(output.shape).toEqual([8, WIDTH]);
    output.dispose();
    expect(liveTensors()).toBe(live);
    expect(gradsOf(modules)).toEqual(before);
  });

  test('before the first step, between steps, and with a loss where a target is given', () => {
    const { runtime, modules } = make(layers(4));
    const data = batch(8);
    const losses: Tensor[] = [];
    runtime.eval(data.x, { target: data.y, losses });
    expect(losses.length).toBe(4);
    runtime.step(data.x, { target: data.y });
    const first = gradsOf(modules);
    expectClose(first, plainGrads(modules, data));
    runtime.eval(data.x);
    runtime.step(data.x, { target: data.y });
    expectClose(gradsOf(modules), first);
  });
});

test('disposing closes nothing: a later step does what the first one did', () => {
  const { runtime, modules } = make(layers(2));
  const data = batch(8);
  runtime.step(data.x, { target: data.y });
  runtime.dispose();
  const first = gradsOf(modules);
  expectClose(first, plainGrads(modules, data));
  runtime.step(data.x, { target: data.y });
  expectClose(gradsOf(modules), first);
});

describe('outputs', () => {
  test('come microbatch by microbatch to whoever wants them so, and are merged or not', () => {
    const { runtime } = make(layers(2));
    const { x } = batch(8);
    const parts: unknown[] = [];
    const onOutput = (output: unknown, microbatch: number): void => {
      parts[microbatch] = (output as Tensor).toArray();
    };
    const whole = runtime.eval(x, { onOutput })!;
    expect(parts.flat()).toEqual(whole.toArray());
    expect(runtime.eval(x, { onOutput, returnOutputs: false })).toBeUndefined();
    expect(runtime.eval(x, { returnOutputs: 'everywhere' })!.toArray()).toEqual(whole.toArray());
  });

  test('bad wishes', () => {
    const { runtime } = make(layers(2));
    // @ts-expect-error: no such choice
    expect(() => runtime.eval(batch(8).x, { returnOutputs: 'all' })).toThrow(
      "eval: returnOutputs is 'all'; give true, false or 'everywhere'",
    );
    // @ts-expect-error: not a function
    expect(() => runtime.eval(batch(8).x, { onOutput: 3 })).toThrow('eval: onOutput is 3; give a function');
  });
});

describe('the loss', () => {
  test('of several steps accumulates, whatever is in the gradients already', () => {
    const { runtime, modules } = make(layers(2));
    const data = batch(8);
    const one = plainGrads(modules, data);
    for (let i = 0; i < 3; i++) runtime.step(data.x, { target: data.y });
    expectClose(
      gradsOf(modules),
      one.map((grad) => grad!.map((value) => 3 * value)),
    );
  });

  test('counts by the rows of its microbatch: a batch that does not divide gives the gradient of its mean', () => {
    const { runtime, modules } = make(layers(3), 'LoopedBFS');
    const data = batch(11);
    const expected = plainGrads(modules, data);
    runtime.step(data.x, { target: data.y });
    expectClose(gradsOf(modules), expected);
  });

  test('that is a sum is divided by the divisor, or by nothing', () => {
    const sum = (output: Tensor, target: Tensor): Tensor => nn.functional.mseLoss(output, target, { reduction: 'sum' });
    const data = batch(8);
    const divided = make(layers(2), 'Interleaved1F1B', { lossFn: sum });
    const mean = plainGrads(divided.modules, data);
    divided.runtime.step(data.x, { target: data.y, divisor: 8 * WIDTH });
    expectClose(gradsOf(divided.modules), mean);
    const whole = make(layers(2), 'Interleaved1F1B', { lossFn: sum, scaleGrads: false });
    whole.runtime.step(data.x, { target: data.y });
    expectClose(
      gradsOf(whole.modules),
      mean.map((grad) => grad!.map((value) => value * 8 * WIDTH)),
    );
  });

  test('belongs to its microbatch, also where the last stage takes them in another order', () => {
    const forward = [2, 0, 3, 1].flatMap((m) => [`0F${m}`, `1F${m}`]);
    const backward = [1, 3, 0, 2].flatMap((m) => [`1B${m}`, `0B${m}`]);
    const schedule = Schedule.from({ name: 'shuffled', order: [[...forward, ...backward]] });
    const { runtime, modules } = make(layers(2), schedule);
    const data = batch(10);
    const expected = plainGrads(modules, data);
    const losses: Tensor[] = [];
    runtime.step(data.x, { target: data.y, losses });
    expectClose(gradsOf(modules), expected);
    const output = noGrad(() => modules.reduce((h, module) => module.forward(h) as Tensor, data.x));
    const rows = [3, 3, 2, 2];
    let start = 0;
    rows.forEach((count, m) => {
      const own = mse(output.narrow(0, start, count), data.y.narrow(0, start, count));
      expect((losses[m] as Tensor).item()).toBeCloseTo(own.item(), 12);
      start += count;
    });
  });

  test('is handed out detached, under full and split backwards', () => {
    for (const schedule of ['Interleaved1F1B', 'InterleavedZeroBubble'] as const) {
      const { runtime } = make(layers(2), schedule);
      const { x, y } = batch(8);
      const losses: Tensor[] = [];
      runtime.step(x, { target: y, losses });
      expect(losses.map((loss) => loss.requiresGrad)).toEqual([false, false, false, false]);
    }
  });

  test('is given the options of the step', () => {
    const seen: unknown[] = [];
    const lossFn = (output: Tensor, target: Tensor, options?: { scale: number }): Tensor => {
      seen.push(options);
      return mse(output, target).mul(options?.scale ?? 1);
    };
    const { runtime, modules } = make(layers(2), 'Interleaved1F1B', { lossFn });
    const data = batch(8);
    runtime.step(data.x, { target: data.y, lossKwargs: { scale: 3 } });
    const found = gradsOf(modules);
    expectClose(
      found,
      plainGrads(modules, data).map((item) => item?.map((value) => 3 * value) ?? null),
    );
    runtime.step(data.x, { target: data.y });
    expect(seen).toEqual([...new Array(4).fill({ scale: 3 }), ...new Array(4).fill(undefined)]);
    // @ts-expect-error: not an object
    expect(() => runtime.step(data.x, { target: data.y, lossKwargs: 3 })).toThrow('lossKwargs is 3; give an object');
  });

  test('must be one number', () => {
    const { runtime } = make(layers(2), 'LoopedBFS', {
      lossFn: (output: Tensor, target: Tensor) => output.sub(target),
    });
    const { x, y } = batch(8);
    expect(() => runtime.step(x, { target: y })).toThrow('lossFn returned a tensor of shape [2, 4] for microbatch 0');
  });

  test.each(['LoopedBFS', 'Interleaved1F1B', 'InterleavedZeroBubble'] as const)(
    '%s: one that needs no gradient is refused where something is learned',
    (schedule) => {
      const lossFn = (output: Tensor, target: Tensor): Tensor => mse(output.detach(), target);
      const data = batch(8);
      const step = (frozen: readonly number[]): string => {
        const { runtime, modules } = make(layers(2), schedule, { lossFn });
        for (const i of frozen) modules[i]!.requiresGrad_(false);
        try {
          runtime.step(data.x, { target: data.y });
          return gradsOf(modules).every((grad) => grad === null) ? 'no gradients' : 'gradients';
        } catch (error) {
          return (error as Error).message;
        }
      };
      const text = (learned: number, waiting: number): string =>
        `: the loss needs no gradient, but the stage has parameters to learn (${learned}) and inputs whose gradients earlier stages wait for (${waiting}); compute the loss from the output itself, without detach(), noGrad() and item(), or freeze what shall not learn: requiresGrad_(false)`;
      expect(step([])).toContain(text(2, 1));
      expect(step([0])).toContain(text(2, 0));
      expect(step([1])).toContain(text(0, 1));
      expect(step([0, 1])).toBe('no gradients');
    },
  );
});

describe('schedules', () => {
  test.each(['compute_only', 'compute_comms'] as const)(
    'from a CSV file of PyTorch (%s) run as the named ones',
    (format) => {
      const built = buildSchedule('InterleavedZeroBubble', { ranks: 1, stagesPerRank: 2, microbatches: 4 });
      const written = format === 'compute_only' ? built : lower(built, { unshardWindow: false });
      const { runtime, modules } = make(layers(2), parseCsv(formatCsv(written, { format }), { format }));
      const data = batch(8);
      const expected = plainGrads(modules, data);
      runtime.step(data.x, { target: data.y });
      expectClose(gradsOf(modules), expected);
    },
  );

  test("PyTorch's own orders run, and the one that is misnumbered is refused", () => {
    const torchOrder = (name: string): Schedule => buildSchedule(name, { ranks: 1, microbatches: 4, compat: 'torch' });
    const { runtime, modules } = make(layers(1), torchOrder('GPipe'));
    const data = batch(8);
    const expected = plainGrads(modules, data);
    runtime.step(data.x, { target: data.y });
    expectClose(gradsOf(modules), expected);
    const wrong = make(layers(1), torchOrder('1F1B')).runtime;
    expect(() => wrong.step(data.x, { target: data.y })).toThrow('0F0 is not before it');
  });
});

describe('inputs', () => {
  test('are checked before anything runs', () => {
    const { runtime, modules } = make(layers(2));
    const { x, y } = batch(8);
    expect(() => runtime.step(x)).toThrow('holds the last stage and needs a target');
    expect(() => runtime.step(x, { target: y, losses: {} as Tensor[] })).toThrow(
      'losses is an object with nothing in it; give an array',
    );
    // @ts-expect-error: misspelt
    expect(() => runtime.step(x, { targets: y })).toThrow("did you mean 'target'?");
    expect(() => runtime.step(batch(3).x, { target: batch(3).y })).toThrow(
      'a batch of 3 rows cannot be cut into 4 microbatches',
    );
    expect(() => runtime.step(x, { target: y, divisor: 0 })).toThrow('divisor is 0; give a number above 0');
    expect(() => noGrad(() => runtime.step(x, { target: y }))).toThrow('gradients are switched off here');
    expect(modules.map((module) => module.calls)).toEqual([0, 0]);
  });

  test('may change their shape from step to step; the module runs once per microbatch, never for shapes alone', () => {
    const { runtime, modules } = make(layers(2));
    for (const rows of [8, 5, 12]) {
      const data = batch(rows);
      const before = modules.map((module) => module.calls);
      runtime.step(data.x, { target: data.y });
      expect(modules.map((module, i) => module.calls - (before[i] as number))).toEqual([4, 4]);
      const found = gradsOf(modules);
      expectClose(found, plainGrads(modules, data));
    }
  });

  test('targets may be trees, cut by specs like inputs', () => {
    const { x, y } = batch(8);
    const lossFn = (output: Tensor, target: { y: Tensor; scale: Tensor }): Tensor =>
      mse(output, target.y).mul(target.scale.mean());
    const { runtime, modules } = make(layers(2), 'Interleaved1F1B', {
      lossFn,
      targetChunkSpec: { y: new TensorChunkSpec(0), scale: new TensorChunkSpec(1) },
    });
    runtime.step(x, { target: { y, scale: ones([1, 8], { dtype: 'float64' }) } });
    expectClose(gradsOf(modules), plainGrads(modules, { x, y }));
  });

  test('an object as the last input of the model is followed by {}', () => {
    const take = layers(1, (fc: nn.Linear, { h }: { h: Tensor }) => fc.forward(h));
    const { runtime } = make<Tensor, Tensor, [{ h: Tensor }]>(take, 'GPipe', {
      lossFn: (output: Tensor) => output.sum(),
    });
    const { x } = batch(8);
    expect(() => runtime.step({ h: x })).toThrow("'h' is not one of target, kwargs");
    expect(runtime.step({ h: x }, {})?.shape).toEqual([8, WIDTH]);
  });

  test('that need gradients get them', () => {
    for (const schedule of ['Interleaved1F1B', 'InterleavedZeroBubble'] as const) {
      const { runtime, modules } = make(layers(2), schedule);
      const { x, y } = batch(8);
      const given = x.clone().requiresGrad_();
      runtime.step(given, { target: y });
      const found = given.grad!;
      const plain = x.clone().requiresGrad_();
      mse(
        modules.reduce((h, module) => module.forward(h) as Tensor, plain),
        y,
      ).backward();
      expect(found.sub(plain.grad!).abs().max().item()).toBeLessThan(1e-12);
    }
  });
});

describe('failures', () => {
  test('name rank, slot, action, stage and inputs, and the next step begins afresh', () => {
    let fails = true;
    const made = layers(2);
    made[1] = new Layer((fc, x: Tensor) => {
      if (fails && made[1]?.calls === 3) throw new Error('out of luck');
      return fc.forward(x);
    });
    const { runtime, modules } = make(made, 'LoopedBFS');
    const data = batch(8);
    const live = liveTensors();
    expect(() => runtime.step(data.x, { target: data.y })).toThrow(
      /rank 0, slot \d+ \(1F2\): stage 1, forward of microbatch 2: out of luck \(inputs: \[0\]: float64\[2, 4\] with gradient\)/,
    );
    expect(liveTensors()).toBe(live);
    fails = false;
    for (const module of modules) module.zeroGrad();
    runtime.step(data.x, { target: data.y });
    const found = gradsOf(modules);
    expectClose(found, plainGrads(modules, data));
  });

  test('of backward name it too', () => {
    const made = layers(2);
    const { runtime } = make(made, 'LoopedBFS');
    const { x, y } = batch(8);
    made[1]?.fc.weight.registerHook(() => {
      throw new Error('no gradient today');
    });
    expect(() => runtime.step(x, { target: y })).toThrow(
      /\(1B\d\): stage 1, backward of microbatch \d: .*no gradient today/,
    );
  });

  test('a schedule that skips something is refused with the place', () => {
    const schedule = Schedule.from({ name: 'short', order: [['0F0', '1F0', '1W0', '0B0']] });
    const { runtime } = make(layers(2), schedule);
    const { x, y } = batch(8);
    expect(() => runtime.step(x, { target: y })).toThrow(/the schedule short cannot be run|lower: /);
  });

  test('stages that do not make a pipeline are refused', () => {
    const [a, b] = layers(2) as [Layer, Layer];
    expect(() => new PipelineStage(a, 2, 2)).toThrow('stage 2 of 2 stages; stages are numbered 0 to 1');
    expect(() => new PipelineRuntime([new PipelineStage(a, 0, 2), new PipelineStage(b, 0, 2)], 'LoopedBFS')).toThrow(
      'a stage was given twice',
    );
    expect(() => new PipelineRuntime([new PipelineStage(a, 0, 2), new PipelineStage(b, 1, 3)], 'LoopedBFS')).toThrow(
      'stage 1 says there are 3 stages, stage 0 says 2',
    );
    expect(() => new PipelineRuntime(new PipelineStage(a, 0, 1), 'LoopedBFS')).toThrow('microbatches is undefined');
    const alone = new PipelineRuntime(new PipelineStage(a, 0, 2), 'LoopedBFS', { microbatches: 2, lossFn: mse });
    expect(() => alone.step(batch(4).x, { target: batch(4).y })).toThrow(
      'stage 1 belongs to rank 0 in LoopedBFS, but no rank has it',
    );
  });
});

describe('mixed precision', () => {
  const floats = (): Layer[] => {
    const made = layers(2);
    for (const module of made) module.float();
    return made;
  };
  const data = (): { x: Tensor; y: Tensor } => {
    const { x, y } = batch(8);
    return { x: x.float(), y: y.float() };
  };

  test('forwards and losses run in the lower type, gradients arrive in the higher', () => {
    const options: AutocastOptions = { device: 'cpu', dtype: 'bfloat16' };
    const { runtime, modules } = make(floats(), 'InterleavedZeroBubble', { autocast: options });
    const { x, y } = data();
    const output = runtime.step(x, { target: y })!;
    expect(output.dtype.name).toBe('bfloat16');
    const found = gradsOf(modules);
    for (const module of modules) module.zeroGrad();
    for (let m = 0; m < 4; m++) {
      const loss = autocast(options, () =>
        mse(
          modules.reduce((h, module) => module.forward(h) as Tensor, x.narrow(0, 2 * m, 2)),
          y.narrow(0, 2 * m, 2),
        ),
      );
      loss.backward(tensor(0.25));
    }
    expect(found).toEqual(gradsOf(modules));
  });

  test('a scaler scales the losses, and its gradients unscale to the same', () => {
    const { x, y } = data();
    const plain = make(floats(), 'InterleavedZeroBubble');
    plain.runtime.step(x, { target: y });
    const scaler = new GradScaler({ initScale: 1024 });
    const scaled = make(floats(), 'InterleavedZeroBubble', { scaler });
    const optimizer = new optim.SGD(
      scaled.modules.flatMap((module) => module.parameters()),
      { lr: 0.1 },
    );
    scaled.runtime.step(x, { target: y });
    expect(gradsOf(scaled.modules)[0]![0]).toBe(1024 * (gradsOf(plain.modules)[0]![0] as number));
    scaler.unscale_(optimizer);
    expect(gradsOf(scaled.modules)).toEqual(gradsOf(plain.modules));
  });
});

describe('hooks and custom functions', () => {
  test('see every action, the parts of overlapped ones too', () => {
    const { runtime } = make(layers(2), 'DualPipeV', { microbatches: 4 });
    const { x, y } = batch(8);
    const seen: string[] = [];
    const remove = runtime.addHook({ before: ({ kind, microbatch }) => void seen.push(`${kind}${microbatch ?? ''}`) });
    let own = 0;
    runtime.registerCustomFunction('F', (_action, context) => {
      own++;
      context.run();
    });
    runtime.step(x, { target: y });
    remove();
    expect(seen.filter((kind) => kind.startsWith('F')).length).toBe(8);
    expect(seen.some((kind) => kind === 'OVERLAP_F_B')).toBe(
      runtime.schedule.order[0]?.some((cell) => cell?.kind === 'OVERLAP_F_B'),
    );
    expect(own).toBe(8);
    const count = seen.length;
    runtime.step(x, { target: y });
    expect(seen.length).toBe(count);
  });

  test('a custom function may replace an action', () => {
    const { runtime } = make(layers(2), 'LoopedBFS');
    const { x, y } = batch(8);
    const actions: string[] = [];
    runtime.registerCustomFunction('REDUCE_GRAD', ({ stage }, { losses }) => {
      actions.push(`${stage} ${losses === undefined}`);
    });
    runtime.step(x, { target: y });
    expect(actions.sort()).toEqual(['0 true', '1 true']);
    expect(() => runtime.registerCustomFunction('SEND_F', () => undefined)).toThrow("'SEND_F' cannot be replaced");
  });

  test('dwBuilder: the weight work that a module has put off runs at W, or at once in a full backward', () => {
    for (const [schedule, expected] of [
      ['LoopedBFS', ['build', 'run', 'build', 'run', 'build', 'run', 'build', 'run']],
      ['InterleavedZeroBubble', undefined],
    ] as const) {
      const log: string[] = [];
      const made = layers(2);
      const { runtime } = make(made, schedule, {}, (i) =>
        i === 1
          ? {
              dwBuilder: () => {
                log.push('build');
                return () => void log.push('run');
              },
            }
          : {},
      );
      const { x, y } = batch(8);
      runtime.step(x, { target: y });
      if (expected !== undefined) expect(log).toEqual(expected);
      expect(log.filter((item) => item === 'run').length).toBe(4);
      expect(log.filter((item) => item === 'build').length).toBe(4);
    }
  });
});

test('two thousand steps: live tensors constant, memory flat', () => {
  const { runtime, modules } = make(layers(4), 'InterleavedZeroBubble');
  const { x, y } = batch(8);
  const step = (): void =>
    scope(() => {
      for (const module of modules) module.zeroGrad();
      runtime.step(x, { target: y, losses: [] });
    });
  for (let i = 0; i < 200; i++) step();
  const [live, rss] = [liveTensors(), process.memoryUsage().rss];
  for (let i = 0; i < 1800; i++) step();
  expect(liveTensors()).toBe(live);
  expect(process.memoryUsage().rss - rss).toBeLessThan(64 * 2 ** 20);
});
