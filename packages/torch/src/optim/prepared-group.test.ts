/** @file What optimizers remember when groups, parameters or options change. */
import { expect, test } from 'vitest';
import { inputs, kinds, model, train } from '../../testing/optimizers.ts';
import { float64, nn, ones, optim, Tensor, tensor, zeros } from '../index.ts';

test('groups can be changed after a step: what is remembered stays with its parameter', () => {
  const [a, b, c] = [ones([1]).requiresGrad_(), ones([1]).requiresGrad_(), ones([1]).requiresGrad_()];
  const grads = (): void => {
    for (const one of [a, b, c]) one.grad = ones([1]);
  };
  const optimizer = new optim.AdamW([{ params: [a] }, { params: [b] }], { lr: 0.1 });
  const [first, second] = [optimizer.paramGroups[0]!, optimizer.paramGroups[1]!];
  const steps = (...of: Tensor[]): unknown[] => of.map((one) => optimizer.stateOf(one)['step']?.item());
  grads();
  optimizer.step();
  first.params.push(c);
  optimizer.step();
  expect(steps(a, b, c)).toEqual([2, 2, 1]);
  optimizer.zeroGrad();
  expect([a, b, c].map((one) => one.grad)).toEqual([null, null, null]);
  first.params = first.params.filter((one) => one !== a);
  second.params.unshift(a);
  grads();
  optimizer.step();
  expect(steps(a, b, c)).toEqual([3, 3, 2]);
  expect(optimizer.stateDict().paramGroups.map((group) => group.params)).toEqual([[0], [1, 2]]);
  optimizer.paramGroups.splice(0, 1);
  expect(steps(a, b)).toEqual([3, 3]);
  const before = c.item();
  optimizer.step();
  expect([c.item(), ...steps(a, b)]).toEqual([before, 4, 4]);
  second.params[0] = c;
  expect(steps(c, b)).toEqual([undefined, 4]);
  optimizer.step();
  expect(steps(c, b)).toEqual([1, 5]);
});

test.each(kinds)('%s goes on with parameters that have become others', (_, Type) => {
  const [a, b] = [model(3), model(3)];
  const x = ones([2, 3]);
  const [first, second] = [new Type(a.parameters()), new Type(b.parameters())];
  train(a, first, 2, x);
  train(b, second, 2, x);
  for (const parameter of b.parameters()) parameter.become(parameter.detach().clone());
  train(a, first, 2, x);
  train(b, second, 2, x);
  a.parameters().forEach((parameter, i) => {
    expect(b.parameters()[i]!.toArray()).toEqual(parameter.toArray());
  });
});

test.each(kinds)('%s goes on with a model whose element type was changed', (name, Type) => {
  const options = name === 'SGD' ? { lr: 0.05, momentum: 0.9 } : { lr: 0.02 };
  const [a, b] = [model(3), model(3)];
  const [first, second] = [new Type(a.parameters(), options), new Type(b.parameters(), options)];
  train(a, first, 2, inputs);
  train(b, second, 2, inputs);
  b.double();
  train(a, first, 2, inputs);
  train(b, second, 2, inputs.double());
  a.parameters().forEach((parameter, i) => {
    const other = b.parameters()[i]!;
    expect(other.dtype).toBe(float64);
    expect(other.sub(parameter).abs().max().item()).toBeLessThan(1e-4);
    expect(second.stateOf(other)['step']?.item()).toBe(name === 'SGD' ? undefined : 4);
  });
});

test.each(kinds)('%s refuses parameters that have become others of another shape', (_, Type) => {
  const net = model();
  const optimizer = new Type(net.parameters(), { ...(Type === (optim.SGD as unknown) ? { momentum: 0.9 } : {}) });
  train(net, optimizer, 1, ones([2, 3]));
  const [weight] = net.parameters() as [nn.Parameter];
  const kept = weight.detach().clone();
  weight.become(zeros([2, 3]));
  weight.grad = ones([2, 3]);
  expect(() => optimizer.step()).toThrow(
    /: parameter 0 is \[2, 3\] now, and was another one when this optimizer took a step: .*; make the optimizer after/,
  );
  weight.become(kept);
  train(net, optimizer, 1, ones([2, 3]));
});

test('state survives a change of what is remembered', () => {
  const p = ones([2]).requiresGrad_();
  const optimizer = new optim.RMSprop([p]);
  p.grad = ones([2]);
  optimizer.step();
  (optimizer.paramGroups[0] as { momentum: number }).momentum = 0.9;
  optimizer.step();
  expect(optimizer.stateOf(p)['step']?.item()).toBe(2);
  expect(Object.keys(optimizer.stateOf(p))).toContain('momentum_buffer');
});

test.each([
  ['Rprop', (params: Tensor[], lr: number | Tensor) => new optim.Rprop(params, { lr }), 1 - 0.5],
  ['ASGD', (params: Tensor[], lr: number | Tensor) => new optim.ASGD(params, { lr }), 1 * (1 - 1e-4 * 0.5) - 0.5],
] as const)('%s begins with the rate of the first step that a parameter takes', (_, make, wanted) => {
  for (const isTensor of [false, true]) {
    const [first, late] = [ones([1], { requiresGrad: true }), ones([1], { requiresGrad: true })];
    const optimizer = make([first, late], isTensor ? tensor(0.01) : 0.01);
    const setRate = (rate: number): void => {
      const [group] = optimizer.paramGroups;
      if (group!.lr instanceof Tensor) group!.lr.fill_(rate);
      else group!.lr = rate;
    };
    optimizer.zeroGrad();
    setRate(0.5);
    first.sum().backward();
    optimizer.step();
    expect(first.item()).toBeCloseTo(wanted, 6);
    setRate(0.25);
    optimizer.zeroGrad();
    optimizer.step();
    setRate(0.5);
    late.sum().backward();
    optimizer.step();
    expect(late.item()).toBeCloseTo(wanted, 6);
  }
});
