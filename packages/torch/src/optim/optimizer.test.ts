/** @file What all optimizers share: steps, gradients and memory. */
import { describe, expect, test } from 'vitest';
import { inputs, kinds, model, train } from '../../testing/optimizers.ts';
import { float32, float64, liveTensors, nn, ones, optim, tensor } from '../index.ts';
import { markShard } from '../internal.ts';

describe.each(kinds)('%s', (name, type) => {
  const options = name === 'SGD' ? { lr: 0.05, momentum: 0.9 } : { lr: 0.02 };

  test('brings a loss down, inside scopes, and leaves nothing behind', () => {
    const net = model();
    const optimizer = new type(net.parameters(), options);
    const first = train(net, optimizer, 2, inputs);
    const live = liveTensors();
    expect(train(net, optimizer, 60, inputs)).toBeLessThan(first * 0.5);
    expect(liveTensors()).toBe(live);
    optimizer.dispose();
    net.dispose();
  });

  test('goes on exactly where its state was saved', () => {
    const [a, b] = [model(1), model(1)];
    const first = new type(a.parameters(), options);
    train(a, first, 5, inputs);
    b.loadStateDict(a.stateDict());
    const second = new type(b.parameters(), { lr: 1 });
    second.loadStateDict(first.stateDict());
    expect(second.paramGroups[0]?.lr).toBe(options.lr);
    train(a, first, 5, inputs);
    train(b, second, 5, inputs);
    for (const [key, value] of a.stateDict()) expect(b.stateDict().get(key)?.equal(value), key).toBe(true);
  });

  test('skips parameters without a gradient and counts steps of each', () => {
    const [p, q] = [ones([2]).requiresGrad_(), ones([2]).requiresGrad_()];
    const optimizer = new type([p, q], options);
    p.grad = ones([2]);
    optimizer.step();
    expect(q.toArray()).toEqual([1, 1]);
    expect(optimizer.stateOf(q)).toEqual({});
    q.grad = ones([2]);
    optimizer.step();
    expect(q.toArray()).not.toEqual([1, 1]);
    const count = optimizer.stateOf(p)['step']?.item();
    expect([count, optimizer.stateOf(q)['step']?.item()]).toEqual(name === 'SGD' ? [undefined, undefined] : [2, 1]);
  });

  test('takes parameters of several types', () => {
    const [p, q] = [ones([2]).requiresGrad_(), ones([2], { dtype: float64 }).requiresGrad_()];
    const optimizer = new type([p, q], options);
    [p.grad, q.grad] = [ones([2]), ones([2], { dtype: float64 })];
    optimizer.step();
    expect(p.at(0).item()).toBeCloseTo(q.at(0).item(), 5);
  });

  test('takes the learning rate as a tensor', () => {
    const [p, q] = [ones([2]).requiresGrad_(), ones([2]).requiresGrad_()];
    [p.grad, q.grad] = [ones([2]), ones([2])];
    const rate = tensor(0.25, { dtype: float32 });
    new type([p], { lr: rate }).step();
    new type([q], { lr: 0.25 }).step();
    expect(p.at(0).item()).toBeCloseTo(q.at(0).item(), 6);
  });

  test('can go up instead of down', () => {
    const p = ones([1]).requiresGrad_();
    p.grad = ones([1]);
    new type([p], { ...options, maximize: true }).step();
    expect(p.item()).toBeGreaterThan(1);
  });
});

test.each([optim.Muon, optim.Adafactor])('%o computes with whole matrices, and refuses shards', (Type) => {
  const make = (): nn.Parameter => new nn.Parameter(ones([2, 2]));
  const [shard, later] = [make(), make()];
  markShard(shard);
  const rule = expect.objectContaining({
    code: 'BAD_ARGUMENT',
    message: `${Type.name}: a parameter is this rank's part of a sharded one, [2, 2], and ${Type.name} computes with whole matrices; use replicate instead of fullyShard, or another optimizer, AdamW for example`,
  }) as Error;
  expect(() => new Type([shard])).toThrow(rule);
  for (const steps of [0, 1]) {
    const parameter = make();
    const optimizer = new Type([parameter, later]);
    parameter.grad = ones([2, 2]);
    for (let i = 0; i < steps; i++) optimizer.step();
    parameter.become(ones([2, 2]));
    markShard(parameter);
    expect(() => optimizer.step()).toThrow(rule);
  }
  shard.grad = ones([2, 2]);
  new optim.AdamW([shard]).step();
  expect(shard.at(0, 0).item()).toBeLessThan(1);
});

test('sparse gradients: SGD takes them, others say what to do', () => {
  const table = new nn.Embedding(4, 2, { sparse: true });
  table
    .forward(tensor([1, 1]))
    .sum()
    .backward();
  const before = table.weight.detach().clone();
  expect(() => new optim.Adam(table.parameters()).step()).toThrow(/use SGD/);
  new optim.SGD(table.parameters(), { lr: 0.5 }).step();
  expect(table.weight.sub(before).toArray()).toEqual([
    [0, 0],
    [-1, -1],
    [0, 0],
    [0, 0],
  ]);
});

test('gradients are dropped, or made zero', () => {
  const p = ones([2]).requiresGrad_();
  const optimizer = new optim.SGD([p]);
  p.grad = ones([2]);
  optimizer.zeroGrad({ setToNone: false });
  expect(p.grad.toArray()).toEqual([0, 0]);
  optimizer.zeroGrad();
  expect(p.grad).toBeNull();
});

test.each([undefined, null, 3, 'weight', {}])('parameters that are %o are refused', (parameters) => {
  expect(() => new optim.SGD(parameters as never)).toThrow(expect.objectContaining({ code: 'BAD_ARGUMENT' }));
});

test.each([
  ['SGD', optim.SGD],
  ['Adam', optim.Adam],
  ['AdamW', optim.AdamW],
  ['Adagrad', optim.Adagrad],
] as const)('%s: a backward through weights that a step has changed since is refused', (_, Type) => {
  const weight = new nn.Parameter(ones([2]));
  const x = tensor([1, 2], { dtype: float32 }).requiresGrad_();
  const loss = x.mul(weight).sum();
  loss.backward(null, { retainGraph: true });
  const before = weight.version;
  new Type([weight], { lr: 0.5 }).step();
  expect(weight.version).toBeGreaterThan(before);
  expect(() => loss.backward()).toThrow(/modified by an inplace operation/);
});
