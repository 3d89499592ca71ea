/** @file Steps of optimizers that are skipped where a loss is not finite: only losses whose gradients are still there count. */
import { optim } from '@pipewright/torch';
import { describe, expect, test } from 'vitest';
import { batch, layers, make } from '../../testing/layers.ts';

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
