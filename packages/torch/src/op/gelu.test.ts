/** @file gelu is computed one way for small tensors and another for large ones (native/kernels/gelu.cc): both must agree. */
import { describe, expect, it } from 'vitest';
import { unitOf } from '../../testing/rounding.ts';
import { float32, grad, nn, scope, type Tensor, tensor } from '../index.ts';

const count = 40_000; // elements: in one piece beyond the limit for small ones, in eight pieces below it

function gelu(
  values: Float32Array,
  dtype: 'float32' | 'float64',
  pieces: number,
): { output: number[]; gradient: number[] } {
  return scope(() => {
    const input = tensor(values).to(dtype).requiresGrad_();
    const parts = input.chunk(pieces).map((part: Tensor) => nn.functional.gelu(part));
    for (const part of parts) part.mul(part.detach()).sum().backward();
    const flat = (one: Tensor | null): number[] => (one?.flatten().tolist() ?? []) as number[];
    return { output: parts.flatMap(flat), gradient: flat(input.grad) };
  });
}

/** The largest difference in units in the last place of float32 at the size of the input, from which all terms are made. */
function unitsOff(got: readonly number[], exact: readonly number[], inputs: Float32Array): number {
  expect(got.length).toBe(exact.length);
  return got.reduce((most, value, i) => {
    const unit = unitOf(float32, Math.max(1, Math.abs(inputs[i] as number)));
    return Math.max(most, Math.abs(value - (exact[i] as number)) / unit);
  }, 0);
}

describe('gelu of small tensors', () => {
  const values = Float32Array.from({ length: count }, (_, i) => -8 + (16 * i) / count);
  const exact = gelu(values, 'float64', 1);

  it.each([1, 8])('in %i pieces is right to the last digits of float32', (pieces) => {
    const got = gelu(values, 'float32', pieces);
    expect(unitsOff(got.output, exact.output, values)).toBeLessThan(16);
    expect(unitsOff(got.gradient, exact.gradient, values)).toBeLessThan(64);
  });

  it('has second derivatives, and none of them is lost in strided inputs', () => {
    scope(() => {
      const input = tensor(values.slice(18_000, 22_000)).reshape([40, 100]).requiresGrad_();
      const [first] = grad(nn.functional.gelu(input.t()).sum(), [input], { createGraph: true }) as [Tensor];
      const [second] = grad(first.sum(), [input]) as [Tensor];
      const x = input.detach().to('float64');
      // d2 gelu = phi(x) (2 - x^2)
      const expected = x
        .square()
        .neg()
        .div(2)
        .exp()
        .div(Math.sqrt(2 * Math.PI))
        .mul(x.square().neg().add(2));
      expect(second.to('float64').sub(expected).abs().max().item()).toBeLessThan(64 * unitOf(float32, 1));
    });
  });
});
