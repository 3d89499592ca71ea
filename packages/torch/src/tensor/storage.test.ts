/** @file Memory that is lent, freed and shared by name. */
import { describe, expect, test } from 'vitest';
import { codeOf } from '../../testing/error-code.ts';
import {
  arange,
  callOp,
  cat,
  commonTensor,
  empty,
  float32,
  forgetCommonTensors,
  freeStorage,
  lendStorage,
  nn,
  ones,
  type Tensor,
  tensor,
  zeros,
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

  const uses: Readonly<Record<string, (x: Tensor) => unknown>> = {
    add: (x) => x.add(1),
    'add in place': (x) => x.add_(1),
    fill: (x) => x.fill_(3),
    sum: (x) => x.sum(),
    matmul: (x) => x.matmul(x),
    copy: (x) => ones([2, 2]).copy_(x),
    'copy over it': (x) => x.copy_(ones([2, 2])),
    clone: (x) => x.clone(),
    cat: (x) => cat([x, x]),
    sort: (x) => x.sort(),
    gelu: (x) => nn.functional.gelu(x),
    linear: (x) => nn.functional.linear(x, x),
    'an element': (x) => x.at(0, 1).item(),
    'the values of a view': (x) => x.at('0:1').toArray(),
    toArray: (x) => x.toArray(),
    sharedArray: (x) => x.sharedArray(),
    'a list of tensors': (x) => callOp('aten::_foreach_add.Scalar', [[x], 1]),
    'lending it': (x) => lendStorage(empty([2, 2]), x),
  };
  test.each(Object.keys(uses))('%s without memory is an error, and right once there is some', (name) => {
    const x = ones([2, 2]);
    const use = uses[name] as (x: Tensor) => unknown;
    freeStorage(x);
    expect(x.dataPtr()).toBe(0n);
    expect(() => use(x)).toThrow(/memory was freed/);
    lendStorage(x, ones([2, 2]));
    use(x);
  });

  test('saved values without memory are an error of the backward', () => {
    const weight = ones([2, 2], { requiresGrad: true });
    const loss = weight.mul(weight).sum();
    freeStorage(weight);
    expect(() => loss.backward()).toThrow(/memory was freed/);
  });

  test('memory that is lent or shared with an array stays where it is until that ends', () => {
    const [borrower, lender] = [zeros([1024]), ones([1024])];
    lendStorage(borrower, lender);
    lendStorage(borrower, borrower); // it has this memory
    for (const move of [
      () => freeStorage(lender),
      () => lender.resize_([1 << 16]),
      () => lendStorage(lender, zeros([1024])),
      () => lendStorage(lender, borrower),
    ])
      expect(codeOf(move)).toBe('NOT_RESIZABLE');
    expect(borrower.sum().item()).toBe(1024);
    freeStorage(borrower);
    lender.resize_([1 << 16]);
    freeStorage(lender);

    const shared = ones([1024]);
    const array = shared.sharedArray() as Float32Array;
    expect(codeOf(() => freeStorage(shared))).toBe('NOT_RESIZABLE');
    expect(codeOf(() => lendStorage(shared, zeros([1024])))).toBe('NOT_RESIZABLE');
    expect(array.every((value) => value === 1)).toBe(true);
  });

  test('the tensor that gets memory has all of its storage', () => {
    const whole = ones([1024]);
    expect(() => lendStorage(whole.at('0:4'), zeros([4]))).toThrow(/has 16 of the 4096 bytes of its storage/);
    freeStorage(whole);
    expect(() => lendStorage(whole.at('0:4'), zeros([4]))).toThrow(/has 16 of the 4096 bytes of its storage/);
    lendStorage(whole, zeros([1024]));
    expect(whole.sum().item()).toBe(0);
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
