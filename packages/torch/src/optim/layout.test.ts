/** @file Parameters, gradients and state whose memory is laid out differently: transposed, with gaps, as loaded. */
import { describe, expect, test } from 'vitest';
import { manualSeed, nn, optim, randn, type Tensor } from '../index.ts';

type Type = new (params: Iterable<Tensor>, options?: object) => optim.Optimizer;
const types: readonly [string, Type, object][] = [
  ['SGD', optim.SGD, { lr: 0.1 }],
  ['SGD with momentum', optim.SGD, { lr: 0.1, momentum: 0.9 }],
  ['Adam', optim.Adam, { lr: 0.1 }],
  ['AdamW, amsgrad', optim.AdamW, { lr: 0.1, amsgrad: true }],
  ['Adagrad', optim.Adagrad, { lr: 0.1 }],
  ['RMSprop', optim.RMSprop, { lr: 0.1, momentum: 0.9 }],
  ['Adadelta', optim.Adadelta, {}],
  ['Adamax', optim.Adamax, {}],
  ['NAdam', optim.NAdam, {}],
  ['RAdam', optim.RAdam, {}],
  ['ASGD', optim.ASGD, {}],
  ['Rprop', optim.Rprop, {}],
  ['Adafactor', optim.Adafactor, {}],
  ['Muon', optim.Muon, {}],
] as unknown as [string, Type, object][];

const transposed = (x: Tensor): Tensor => x.t().contiguous().t();

function steps(optimizer: optim.Optimizer, parameter: Tensor, gradients: readonly Tensor[]): void {
  for (const gradient of gradients) {
    parameter.grad = gradient;
    optimizer.step();
  }
}

describe.each(types)('%s', (_, Type, options) => {
  manualSeed(7);
  const begin = randn([3, 4]);
  const gradients = Array.from({ length: 3 }, () => randn([3, 4]));
  const plain = new nn.Parameter(begin.clone());
  steps(new Type([plain], options), plain, gradients);
  const isPlain = (parameter: Tensor): void => {
    const expected = (plain.toArray() as number[][]).flat();
    (parameter.toArray() as number[][]).flat().forEach((value, i) => {
      expect(Math.abs(value - expected[i]!)).toBeLessThanOrEqual(1e-5 * Math.max(1, Math.abs(expected[i]!)));
    });
  };

  test('a transposed parameter, gradients as they are', () => {
    const parameter = new nn.Parameter(transposed(begin));
    steps(new Type([parameter], options), parameter, gradients);
    isPlain(parameter);
  });

  test('gradients that are transposed', () => {
    const parameter = new nn.Parameter(begin.clone());
    steps(new Type([parameter], options), parameter, gradients.map(transposed));
    isPlain(parameter);
  });

  test('a parameter that is a part of other memory, which stays as it is', () => {
    const memory = randn([3, 8]);
    const rest = memory.narrow(1, 4, 4).toArray();
    memory.narrow(1, 0, 4).copy_(begin);
    const parameter = new nn.Parameter(memory.narrow(1, 0, 4));
    steps(new Type([parameter], options), parameter, gradients);
    isPlain(parameter);
    expect(memory.narrow(1, 4, 4).toArray()).toEqual(rest);
    expect(memory.narrow(1, 0, 4).toArray()).toEqual(parameter.toArray());
  });

  test('state that was saved of a parameter laid out otherwise', () => {
    const first = new nn.Parameter(begin.clone());
    const saved = new Type([first], options);
    steps(saved, first, gradients.slice(0, 2));
    const parameter = new nn.Parameter(transposed(first.detach()));
    const optimizer = new Type([parameter], options);
    optimizer.loadStateDict(saved.stateDict());
    steps(optimizer, parameter, gradients.slice(2));
    isPlain(parameter);
  });
});
