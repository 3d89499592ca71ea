/** @file Steps of optimizers that are skipped where a loss is not finite: only losses whose gradients are still there count. */
import { GradScaler, nn, noGrad, optim, type Tensor, tensor } from '@pipewright/torch';
import { describe, expect, test, vi } from 'vitest';
import { batch, expectClose, type Layer, layers, make, mse } from '../../../testing/layers.ts';
import { LossLog } from './optimizer-step.ts';

describe('a loss that is not finite', () => {
  const { runtime, modules } = make(layers(2));
  const optimizer = new optim.SGD(
    modules.flatMap((module) => module.parameters()),
    { lr: 0.1 },
  );
  const { x, y } = batch(8);
  const bad = y.mul(Number.NaN);

  test('is forgotten where its gradients were cleared before the next step', () => {
    runtime.step(x, { target: bad });
    optimizer.zeroGrad();
    runtime.step(x, { target: y });
    expect(runtime.stepOptimizer(optimizer)).toMatchObject({ skipped: false, reason: null });
    optimizer.zeroGrad();
  });

  test('counts where its gradients are still there, or cleared after the last step', () => {
    runtime.step(x, { target: bad });
    runtime.step(x, { target: y });
    expect(runtime.stepOptimizer(optimizer).reason).toBe('a loss on rank 0 is not finite');
    optimizer.zeroGrad();
    runtime.step(x, { target: y });
    runtime.step(x, { target: bad });
    for (const module of modules) for (const parameter of module.parameters()) parameter.grad?.zero_();
    expect(runtime.stepOptimizer(optimizer).reason).toBe('a loss on rank 0 is not finite');
    expect(runtime.skippedSteps).toBe(2);
  });
});

describe('optimizers that follow each other', () => {
  const RATE = 0.1;
  const weightsOf = (modules: readonly Layer[]): number[][] =>
    modules.flatMap((module) =>
      module.parameters().map((each) => Array.from(each.detach().flatten().toTypedArray(), Number)),
    );
  const optimizersOf = (modules: readonly Layer[]): [optim.SGD, optim.SGD] => {
    const [first, second] = modules.map((module) => new optim.SGD(module.parameters(), { lr: RATE }));
    return [first!, second!];
  };
  const { x, y } = batch(8);

  test.each([
    ['one after the other', 'apart'],
    ['together', 'together'],
    ['one after the other, unscaled by hand', 'by hand'],
  ])('clip by the norm without the scale: %s', (_, way) => {
    const scaler = new GradScaler({ initScale: 1024 });
    const { runtime, modules } = make(layers(2), 'Interleaved1F1B', { scaler });
    const plain = layers(2);
    const [optimizers, others] = [optimizersOf(modules), optimizersOf(plain)];
    for (let step = 0; step < 3; step++) {
      runtime.step(x, { target: y });
      if (way === 'by hand') scaler.unscale_(optimizers[1]);
      mse(
        plain.reduce<Tensor>((h, module) => module.forward(h) as Tensor, x),
        y,
      ).backward();
      for (const some of way === 'together' ? [[0, 1]] : [[0], [1]]) {
        const { norm } = runtime.stepOptimizer(
          some.map((i) => optimizers[i]!),
          { maxNorm: 0.01 },
        );
        const parameters = plain.flatMap((module) => module.parameters());
        expect(Math.abs(norm - nn.utils.clipGradNorm_(parameters, 0.01).item())).toBeLessThan(1e-12);
        for (const i of some) others[i]!.step();
      }
      scaler.update();
      for (const each of [...optimizers, ...others]) each.zeroGrad();
      expectClose(weightsOf(modules), weightsOf(plain));
    }
  });

  test('are all skipped where a loss is not finite, though gradients are', () => {
    const lossFn = (output: Tensor, target: Tensor): Tensor => mse(output, target).add(Number.POSITIVE_INFINITY);
    const { runtime, modules } = make<Tensor, Tensor>(layers(2), 'Interleaved1F1B', { lossFn });
    const before = weightsOf(modules);
    runtime.step(x, { target: y });
    for (const optimizer of optimizersOf(modules))
      expect(runtime.stepOptimizer(optimizer).reason).toBe('a loss on rank 0 is not finite');
    expect(weightsOf(modules)).toEqual(before);
  });
});

test('losses on a GPU are asked only for the last step that was not finite', () => {
  const log = new LossLog();
  const add = (...losses: number[]): void => {
    log.begin('held');
    // As for losses elsewhere: here they are on the CPU.
    noGrad(() => Reflect.apply(Reflect.get(log, 'addLater') as () => void, log, [losses.map((loss) => tensor(loss))]));
  };
  add(1, 2);
  add(1, Number.NaN);
  add(Number.POSITIVE_INFINITY, 3);
  add(4, 5);
  expect(log.ask()).toEqual({ bad: 3, clear: 0 });
  expect(log.ask()).toEqual({ bad: 3, clear: 0 });
  add(3e38, 3e38); // the sum would be infinite
  expect(log.ask()).toEqual({ bad: 0, clear: 0 });
  log.begin('cleared');
  log.begin('held');
  expect(log.ask().clear).toBe(1);
  log.begin('nothing');
  expect(log.ask().clear).toBe(Number.POSITIVE_INFINITY);
  log.dispose();
});

test('an optimizer of another module, whose steps would train nothing, is told of once', () => {
  const warn = vi.spyOn(process, 'emitWarning').mockImplementation(() => undefined);
  try {
    const { runtime, modules } = make(layers(2));
    const { x, y } = batch(8);
    const right = new optim.SGD(modules[1]!.parameters(), { lr: 0.1 });
    const wrong = new optim.SGD(new nn.Linear(2, 3).parameters(), { lr: 0.1 });
    const besides = new nn.Linear(2, 1); // trained beside the pipeline
    const other = new optim.SGD(besides.parameters(), { lr: 0.1 });
    for (let step = 0; step < 2; step++) {
      runtime.step(x, { target: y });
      besides
        .forward(tensor([[1, 2]], { dtype: 'float32' }))
        .sum()
        .backward();
      runtime.stepOptimizer([right, other, wrong]);
    }
    expect(warn.mock.calls).toEqual([
      [
        expect.stringMatching(/^stepOptimizer: none of the 2 parameters of the optimizer is in a stage of this rank/),
        { code: 'PIPEWRIGHT_OTHER_PARAMETERS' },
      ],
    ]);
  } finally {
    warn.mockRestore();
  }
});
