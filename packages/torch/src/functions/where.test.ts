import { expect, test } from 'vitest';
import { grad, indexCopy, nn, ones, scope, tensor, zeros } from '../index.ts';

test('x.where() keeps elements where the condition holds, with gradients', () =>
  scope(() => {
    const x = tensor([1.5, -2, 3], { requiresGrad: true });
    expect(x.where(x.gt(0), 0).toArray()).toEqual([1.5, 0, 3]);
    const other = tensor([7, 8, 9], { dtype: 'float64' });
    const y = x.where(tensor([true, false, false]), other);
    expect([y.toArray(), y.dtype.name]).toEqual([[1.5, 8, 9], 'float64']);
    expect(grad([y.sum()], [x])[0]!.toArray()).toEqual([1, 0, 0]);
    expect(() => x.where(x, 0)).toThrow(/boolean/);
    expect(() => x.where(x.gt(0), undefined as unknown as number)).toThrow(/argument 'other' is missing/);
  }));

test('indexCopy is an operator of its own, not the copying twin of a view', () =>
  scope(() => {
    const x = zeros([3], { requiresGrad: true });
    const [at, source] = [tensor([2, 0]), tensor([5.5, 6.5])];
    expect(x.indexCopy(0, at, source).toArray()).toEqual([6.5, 0, 5.5]);
    expect(grad([indexCopy(x, 0, at, source).sum()], [x])[0]!.toArray()).toEqual([0, 1, 0]);
  }));

test('a tensor in the place of options is named as one', () =>
  scope(() => {
    const x = ones([2, 3]);
    expect(() => nn.functional.dropout(x, x as never)).toThrow(
      'dropout: the options are a Tensor; give an object of p, training, inplace',
    );
  }));
