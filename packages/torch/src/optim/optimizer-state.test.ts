/** @file State of optimizers: names, copies, and what does not fit. */
import { describe, expect, test } from 'vitest';
import { codeOf } from '../../testing/error-code.ts';
import { model, train } from '../../testing/optimizers.ts';
import { float32, ones, optim, scope, type Tensor, tensor, zeros } from '../index.ts';

describe('state', () => {
  test('has the names of PyTorch and shares memory', () => {
    const p = ones([2]).requiresGrad_();
    const optimizer = new optim.AdamW([p], { amsgrad: true });
    p.grad = ones([2]);
    optimizer.step();
    const { state, paramGroups } = optimizer.stateDict();
    expect(Object.keys(state[0] ?? {})).toEqual(['step', 'exp_avg', 'exp_avg_sq', 'max_exp_avg_sq']);
    expect(paramGroups[0]?.params).toEqual([0]);
    state[0]?.['exp_avg']?.zero_();
    expect(optimizer.stateOf(p)['exp_avg']?.toArray()).toEqual([0, 0]);
  });

  test('is copied, or taken as it is', () => {
    const [a, b] = [ones([2]).requiresGrad_(), ones([2]).requiresGrad_()];
    const [first, second] = [new optim.Adam([a]), new optim.Adam([b])];
    a.grad = ones([2]);
    first.step();
    for (const copy of [true, false]) {
      second.loadStateDict(first.stateDict(), { copy });
      first.stateOf(a)['exp_avg']?.fill_(copy ? 3 : 4);
      expect(second.stateOf(b)['exp_avg']?.at(0).item() === 4, `copy: ${copy}`).toBe(!copy);
    }
    expect(() => second.loadStateDict(first.stateDict(), { share: true } as object)).toThrow("unknown option 'share'");
  });

  test('with a learning rate that is a tensor: the value is copied, and a tensor that is there stays', () => {
    const make = (lr: number | Tensor): optim.AdamW => new optim.AdamW([ones([2]).requiresGrad_()], { lr });
    const saved = tensor(0.25, { dtype: float32 });
    const from = make(saved);
    from.paramGroups[0]!.betas = [0.5, 0.5];
    const own = tensor(0.5, { dtype: float32 });
    const [tensors, numbers, back] = [make(own), make(0.5), make(own.clone())];
    scope(() => {
      tensors.loadStateDict(from.stateDict());
      numbers.loadStateDict(from.stateDict());
    });
    back.loadStateDict(make(0.125).stateDict());
    saved.fill_(8);
    expect(tensors.paramGroups[0]!.lr).toBe(own);
    const rates = [tensors, numbers, back].map((optimizer) => (optimizer.paramGroups[0]!.lr as Tensor).item());
    expect(rates).toEqual([0.25, 0.25, 0.125]);
    expect(numbers.paramGroups[0]!.betas).not.toBe(from.paramGroups[0]!.betas);
    tensors.loadStateDict(tensors.stateDict());
    expect(own.item()).toBe(0.25);
  });

  test('that does not fit is refused', () => {
    const [a, b] = [new optim.Adam([ones([2]).requiresGrad_()]), new optim.Adam([ones([3]).requiresGrad_()])];
    const parameter = a.paramGroups[0]?.params[0] as Tensor;
    parameter.grad = ones([2]);
    a.step();
    expect(() => b.loadStateDict(a.stateDict())).toThrow(/parameter 0: exp_avg is \[2\] and must have the shape \[3\]/);
    expect(codeOf(() => new optim.Adam([zeros([1]), zeros([1])]).loadStateDict(a.stateDict()))).toBe('STATE_DICT');
  });

  test('of another kind of optimizer is refused, and nothing was changed', () => {
    const [a, b] = [model(), model()];
    const adam = new optim.AdamW(a.parameters(), { lr: 0.5 });
    train(a, adam, 1, ones([2, 3]));
    const sgd = new optim.SGD([{ params: b.parameters() }], { lr: 0.1, momentum: 0.9 });
    const before = String(sgd);
    expect(() => sgd.loadStateDict(adam.stateDict())).toThrow(
      /^SGD.loadStateDict: the state has step, exp_avg, exp_avg_sq, which SGD does not remember; load it into the kind/,
    );
    expect(() => sgd.checkStateDict(adam.stateDict())).toThrow(expect.objectContaining({ code: 'STATE_DICT' }));
    expect(String(sgd)).toBe(before);
    sgd.checkStateDict(sgd.stateDict());
  });
});
