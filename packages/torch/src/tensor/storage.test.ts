/** @file Memory that is lent, freed and shared by name. */
import { describe, expect, test } from 'vitest';
import {
  arange,
  commonTensor,
  empty,
  float32,
  forgetCommonTensors,
  freeStorage,
  lendStorage,
  nn,
  ones,
  tensor,
} from '../index.ts';

describe('lent memory', () => {
  test('what autograd has saved is right again once memory is lent back', () => {
    const base = tensor([2, 3], { dtype: 'float32' });
    const weight = new nn.Parameter(base);
    const loss = weight.mul(weight).sum();
    freeStorage(weight);
    lendStorage(weight, tensor([2, 3], { dtype: 'float32' }));
    loss.backward();
    expect(weight.grad?.toArray()).toEqual([4, 6]);
  });

  test('the memory lives as long as a tensor has it', () => {
    const target = empty([4]);
    freeStorage(target);
    const source = arange(8).to('float32');
    lendStorage(target, source.at('2:6'));
    source.dispose();
    expect(target.toArray()).toEqual([2, 3, 4, 5]);
  });

  test('sizes and layouts that do not fit are refused', () => {
    expect(() => lendStorage(empty([4]), empty([5]))).toThrow(/16 and 20 bytes/);
    expect(() => lendStorage(empty([4]).at('1:'), empty([3]))).toThrow(/contiguous/);
  });
});

describe('memory by name', () => {
  test('all parties get the same, then the name is free', () => {
    const options = { name: 'test memory', parties: 2, dtype: float32 };
    const [a, b] = [commonTensor([3], options), commonTensor([3], options)];
    a.fill_(7);
    expect(b.toArray()).toEqual([7, 7, 7]);
    const next = commonTensor([3], options);
    next.fill_(1);
    expect(a.toArray()).toEqual([7, 7, 7]);
    expect(() => commonTensor([4], options)).toThrow(/another shape/);
    expect(forgetCommonTensors('test memory')).toBe(1);
    expect(forgetCommonTensors('test memory')).toBe(0);
  });
});

test('two parameters exchange what they are, gradients included', () => {
  const [a, b] = [new nn.Parameter(ones([2])), new nn.Parameter(ones([3]))];
  a.sum().backward();
  a.swap(b);
  expect([a.shape, b.shape, a.grad, b.grad?.toArray()]).toEqual([[3], [2], null, [1, 1]]);
  a.swap(b);
  expect(a.grad?.toArray()).toEqual([1, 1]);
});
