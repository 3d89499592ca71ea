/** @file What the tests of gradients share. */
import { expect } from 'vitest';
import { liveCallbacks } from '../src/autograd/callbacks.ts';
import { engine } from '../src/autograd/native.ts';
import { liveTensors, scope } from '../src/tensor/scope.ts';
import type { Tensor } from '../src/tensor/tensor.ts';
import { differenceOf } from './rounding.ts';

/** Runs `body` in a scope and checks that it leaves no tensor and no callback behind. */
export function leakFree(body: () => void): void {
  const before = [liveCallbacks(), liveTensors()];
  scope(body);
  expect([liveCallbacks(), liveTensors()], 'callbacks and tensors left behind').toEqual(before);
}

/** Names of the two ways in which callbacks are reached: on the caller's thread, and through the bridge as on CUDA. */
export const routes = [
  ['direct', false],
  ['bridge', true],
] as const;

/** Runs `body` with the engine on a helper thread or not. */
export function onRoute(bridge: boolean, body: () => void): void {
  const before = engine.forceBridge(bridge);
  try {
    leakFree(body);
  } finally {
    engine.forceBridge(before);
  }
}

/** The values of a gradient, or null. */
export function gradOf(tensor: Tensor): unknown {
  return tensor.grad?.toArray() ?? null;
}

/** Expects the same numbers, bit for bit. */
export function expectSame(found: Tensor | null, wanted: Tensor | null): void {
  if (found === null || wanted === null) {
    expect(found).toBe(wanted);
    return;
  }
  expect(found.shape).toEqual(wanted.shape);
  expect(found.dtype).toBe(wanted.dtype);
  expect(found.toArray()).toEqual(wanted.toArray());
}

/** Expects the same numbers but for the rounding of sums that are added in another order. */
export function expectClose(found: Tensor | null, wanted: Tensor | null): void {
  if (found === null || wanted === null) expect(found).toBe(wanted);
  else expect(differenceOf(found, wanted)).toBe('');
}
