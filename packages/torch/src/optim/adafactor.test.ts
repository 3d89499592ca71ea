/** @file What Adafactor remembers, and what it refuses. */
import { describe, expect, test } from 'vitest';
import { ones, optim, type Tensor } from '../index.ts';

describe('Adafactor', () => {
  test('remembers a number per row and column of a matrix', () => {
    const [matrix, vector] = [ones([2, 3]).requiresGrad_(), ones([4]).requiresGrad_()];
    [matrix.grad, vector.grad] = [ones([2, 3]), ones([4])];
    const optimizer = new optim.Adafactor([matrix, vector]);
    optimizer.step();
    const shapes = (parameter: Tensor): unknown[] =>
      Object.entries(optimizer.stateOf(parameter)).map(([name, value]) => [name, value.shape]);
    expect(shapes(matrix)).toEqual([
      ['step', []],
      ['row_var', [2, 1]],
      ['col_var', [1, 3]],
    ]);
    expect(shapes(vector)).toEqual([
      ['step', []],
      ['variance', [4]],
    ]);
    const other = new optim.Adafactor([ones([3, 3]).requiresGrad_(), ones([4]).requiresGrad_()]);
    expect(() => other.loadStateDict(optimizer.stateDict())).toThrow(
      /parameter 0: row_var is \[2, 1\] and must have the shape \[3, 1\]/,
    );
  });

  test('says what it cannot take', () => {
    const p = ones([1]).requiresGrad_();
    expect(() => new optim.Adafactor([p], { beta2Decay: 1 })).toThrowErrorMatchingInlineSnapshot(
      `[TorchError: Adafactor: beta2Decay must be at most 0, got 1]`,
    );
    expect(() => new optim.Adafactor([p], { d: 0.5 })).toThrowErrorMatchingInlineSnapshot(
      `[TorchError: Adafactor: d must be at least 1, got 0.5]`,
    );
    expect(() => new optim.Adafactor([p], { eps: [null, -1] })).toThrowErrorMatchingInlineSnapshot(
      `[TorchError: Adafactor: eps is [least variance or null, least scale], both at least 0, got [null,-1]]`,
    );
    expect(() => new optim.Adafactor([ones([1], { dtype: 'complex64' })])).toThrowErrorMatchingInlineSnapshot(
      `[TorchError: Adafactor: parameters are real, got one of complex64]`,
    );
  });
});
