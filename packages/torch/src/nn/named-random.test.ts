/** @file Random numbers by name: the generator word for word, initial values and draws that depend on names only. */
import { describe, expect, test } from 'vitest';
import {
  bernoulli,
  checkpoint,
  empty,
  float64,
  manualSeed,
  nn,
  noGrad,
  ones,
  rand,
  randn,
  scope,
  type Tensor,
  zeros,
} from '../index.ts';
import { drawName } from '../tensor/draws.ts';

/** Philox 4x32-10, word for word as in the paper. */
function philox(counter: readonly number[], key: readonly number[]): number[] {
  let [a, b, c, d] = counter.map(BigInt) as [bigint, bigint, bigint, bigint];
  let [k0, k1] = key.map(BigInt) as [bigint, bigint];
  const mask = 0xffffffffn;
  for (let round = 0; round < 10; round++) {
    const [p, q] = [a * 0xd2511f53n, c * 0xcd9e8d57n];
    [a, b, c, d] = [(q >> 32n) ^ b ^ k0, q & mask, (p >> 32n) ^ d ^ k1, p & mask];
    k0 = (k0 + 0x9e3779b9n) & mask;
    k1 = (k1 + 0xbb67ae85n) & mask;
  }
  return [a, b, c, d].map(Number);
}

const wide = (value: bigint): bigint => BigInt.asUintN(64, value);
function scramble(value: bigint): bigint {
  let x = value;
  x = wide((x ^ (x >> 33n)) * 0xff51afd7ed558ccdn);
  x = wide((x ^ (x >> 33n)) * 0xc4ceb9fe1a85ec53n);
  return x ^ (x >> 33n);
}
const combine = (hash: bigint, value: bigint): bigint => scramble(hash ^ scramble(wide(value + 0x9e3779b97f4a7c15n)));

/** The words that a draw gets: of a seed, a step, training, a layer's name and the number of its call. */
function wordsOf(
  at: { seed: number; step: number; name: string; call: number; draw: number },
  first: number,
  count: number,
): number[] {
  const { low, high } = drawName(at.name);
  let key = 0n;
  for (const value of [at.seed, at.step, 2]) key = combine(key, BigInt(value));
  key = combine(combine(key, (BigInt(high) << 32n) | BigInt(low)), BigInt(at.call));
  const halves = [Number(key & 0xffffffffn), Number(key >> 32n)];
  return Array.from({ length: count }, (_, i) => {
    const word = first + i;
    return philox([Math.floor(word / 4), 0, at.draw, 0], halves)[word % 4] as number;
  });
}

const numbers = (value: Tensor): number[] => value.detach().double().flatten().toArray() as number[];

test('the generator of the tests gives the published values', () => {
  const full = 0xffffffff;
  expect(philox([0, 0, 0, 0], [0, 0])).toEqual([0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8]);
  expect(philox([full, full, full, full], [full, full])).toEqual([0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd]);
});

test('dropout, uniform_ and normal_ are that generator', () => {
  const random = new nn.NamedRandom({ seed: 5 });
  random.step = 3;
  class Layer extends nn.Module {
    forward(): Tensor[] {
      return [
        nn.functional.dropout(ones([75]), { p: 0.3 }),
        empty([11]).uniform_(-1, 1),
        empty([7], { dtype: float64 }).uniform_(),
        empty([9], { dtype: float64 }).normal_(2, 3),
      ];
    }
  }
  const layer = new Layer();
  random.name(layer, { '': 'blocks.4' });
  const at = { seed: 5, step: 3, name: 'blocks.4', call: 1 };
  const results = random.run(() => {
    layer.forward();
    return layer.forward(); // the second call
  });
  const [dropped, single, double, normal] = results as [Tensor, Tensor, Tensor, Tensor];
  const kept = wordsOf({ ...at, draw: 0 }, 0, 75).map((word) => (word >= Math.round(0.3 * 2 ** 32) ? 1 / 0.7 : 0));
  numbers(dropped).forEach((value, i) => expect(value).toBeCloseTo(kept[i] as number, 6));
  wordsOf({ ...at, draw: 1 }, 0, 11).forEach((word, i) =>
    expect(numbers(single)[i]).toBeCloseTo(-1 + 2 * ((word >>> 8) / 2 ** 24), 6),
  );
  const unit = (words: number[], i: number): number =>
    Number(((BigInt(words[i + 1] as number) << 32n) | BigInt(words[i] as number)) >> 11n) / 2 ** 53;
  const pairs = wordsOf({ ...at, draw: 2 }, 0, 14);
  numbers(double).forEach((value, i) => expect(value).toBe(unit(pairs, 2 * i)));
  const four = wordsOf({ ...at, draw: 3 }, 0, 36);
  numbers(normal).forEach((value, i) => {
    const radius = Math.sqrt(-2 * Math.log(1 - unit(four, 4 * i)));
    expect(value).toBeCloseTo(2 + 3 * radius * Math.cos(2 * Math.PI * unit(four, 4 * i + 2)), 11);
  });
});

test('they have the moments that they should have', () => {
  const random = new nn.NamedRandom({ seed: 1 });
  const check = (value: Tensor, mean: number, std: number): void => {
    const { length } = numbers(value);
    expect(Math.abs(value.mean().item() - mean)).toBeLessThan((6 * std) / Math.sqrt(length));
    expect(Math.abs(value.std().item() / std - 1)).toBeLessThan(0.02);
  };
  scope(() =>
    random.run(() => {
      check(empty([400, 250]).uniform_(), 0.5, Math.sqrt(1 / 12));
      check(empty([400, 250]).normal_(), 0, 1);
      check(nn.functional.dropout(ones([400, 250]), { p: 0.1 }), 1, Math.sqrt(0.1 / 0.9));
      check(randn([400, 250]), 0, 1); // the generator of libtorch, seeded for the call
    }),
  );
});

describe('initial values', () => {
  const model = (): nn.Sequential =>
    new nn.Sequential(
      new nn.Linear(5, 6),
      new nn.Sequential(new nn.Embedding(4, 6), new nn.MultiheadAttention(6, 2)),
      new nn.LSTM(6, 3),
      new nn.Conv2d(2, 4, 3),
      new nn.BatchNorm1d(4),
    );
  const table = (module: nn.Module, name = (one: string) => one): Record<string, number[]> =>
    Object.fromEntries(module.namedParameters().map(([key, value]) => [name(key), numbers(value)]));

  test('depend on the seed and the name, not on what is drawn before or beside', () => {
    manualSeed(1);
    const whole = table(new nn.NamedRandom({ seed: 3 }).initialize(model()));
    manualSeed(2);
    expect(table(new nn.NamedRandom({ seed: 3 }).initialize(model()))).toEqual(whole);
    expect(table(new nn.NamedRandom({ seed: 4 }).initialize(model()))['0.weight']).not.toEqual(whole['0.weight']);
    // A part of the model alone, under names of its own.
    const part = new nn.Sequential(new nn.Conv2d(2, 4, 3), new nn.LSTM(6, 3));
    const names = { 0: '3', 1: '2' };
    new nn.NamedRandom({ seed: 3 }).initialize(part, { names });
    const renamed = table(part, (name) => name.replace(/^[01]/, (key) => names[key as '0' | '1']));
    for (const [name, values] of Object.entries(renamed)) expect(values, name).toEqual(whole[name]);
    expect(whole['3.weight']).not.toEqual(whole['0.weight']);
  });

  test("may be filled by a function of one's own; what it leaves out is an error", () => {
    const init = (module: nn.Module): void => {
      for (const parameter of module.parameters())
        if (parameter.dim() > 1) nn.init.truncNormal_(parameter, { std: 0.02 });
        else noGrad(() => parameter.normal_(0, 0.02));
    };
    const first = table(new nn.NamedRandom({ seed: 3 }).initialize(model(), { init }));
    const only = new nn.Conv2d(2, 4, 3);
    new nn.NamedRandom({ seed: 3 }).initialize(only, { init, names: { '': '3' } });
    expect(table(only, (name) => `3.${name}`)).toEqual({ '3.weight': first['3.weight'], '3.bias': first['3.bias'] });
    class Own extends nn.Module {
      readonly gain = new nn.Parameter(ones([2]));
      forward(): void {}
    }
    expect(() => new nn.NamedRandom({ seed: 1 }).initialize(new Own())).toThrow(
      /nothing has filled gain: its module has no/,
    );
  });
});

describe('draws of layers', () => {
  const layers = (): nn.Sequential => new nn.Sequential(new nn.Dropout(0.5), new nn.Linear(8, 8), new nn.Dropout(0.5));
  const random = new nn.NamedRandom({ seed: 2 });
  const whole = random.initialize(layers());
  const x = randn([12, 8]);

  test('parts of a model and parts of a batch draw what the whole draws', () => {
    const wanted = random.run(() => whole.forward(x));
    const [first, ...rest] = [...whole.children()] as [nn.Dropout, nn.Linear, nn.Dropout];
    const head = new nn.NamedRandom({ seed: 2 }).name(first, { '': '0' });
    const tail = new nn.Sequential(...rest);
    head.name(tail, { 0: '1', 1: '2' });
    const parts = [0, 1, 2].map((microbatch) => {
      const rows = x.narrow(0, 4 * microbatch, 4);
      const between = head.run(() => first.forward(rows), { microbatch });
      return head.run(() => tail.forward(between), { microbatch });
    });
    parts.forEach((part, i) => {
      const want = numbers(wanted.narrow(0, 4 * i, 4));
      numbers(part).forEach((value, k) => expect(value).toBeCloseTo(want[k] as number, 5));
    });
    random.name(whole, (name) => name);
  });

  test('depend on step, seed, microbatch, layer and kind', () => {
    const draws = new Set<string>();
    const note = (one: nn.NamedRandom, options?: nn.DrawOptions): unknown =>
      draws.add(one.run(() => numbers(whole.forward(ones([4, 8]))).join(), options));
    note(random);
    note(random);
    expect(draws.size).toBe(1);
    note(random, { microbatch: 1 });
    note(random, { training: false });
    random.step = 1;
    note(random);
    random.step = 0;
    note(new nn.NamedRandom({ seed: 3 }));
    expect(draws.size).toBe(5);
    const both = random.run(() => [0, 2].map((i) => numbers((whole.children()[i] as nn.Dropout).forward(ones([64])))));
    expect(both[0]).not.toEqual(both[1]);
  });

  test('every operator that draws does so by name, and generators are left alone', () => {
    const draw = (): Tensor[] => [
      rand([3]),
      bernoulli(ones([5]).mul(0.5)),
      nn.functional.alphaDropout(ones([6]), { p: 0.5, training: true }),
      nn.functional.scaledDotProductAttention(ones([1, 4, 8]), ones([1, 4, 8]), ones([1, 4, 8]), { dropoutP: 0.5 }),
      zeros([4]).exponential_(),
    ];
    manualSeed(1);
    const before = random.run(() => draw().map(numbers));
    const plain = numbers(rand([4]));
    manualSeed(1);
    expect(numbers(rand([4]))).toEqual(plain);
    expect(random.run(() => draw().map(numbers))).toEqual(before);
    expect(new Set(before.map((values) => values.join())).size).toBe(before.length);
  });

  test('backward and recomputing draw the same again', () => {
    const grads = [false, true].map((recompute) => {
      whole.zeroGrad();
      const input = x.detach().requiresGrad_();
      const out = random.run(() =>
        recompute ? checkpoint((one: Tensor) => whole.forward(one), [input]) : whole.forward(input),
      );
      rand([3]);
      out.square().sum().backward();
      return [out, input.grad!, ...whole.parameters().map(({ grad }) => grad!)].map(numbers);
    });
    expect(grads[1]).toEqual(grads[0]);
    // The gradient of a dropout is its own mask.
    const input = ones([50], { requiresGrad: true });
    const out = random.run(() => nn.functional.dropout(input, { p: 0.4 }));
    out.sum().backward();
    expect(numbers(input.grad!)).toEqual(numbers(out));
    expect(out.gradFn?.name).toBe('NamedDropoutBackward0');
  });

  test('the state is a seed and a step', () => {
    const one = new nn.NamedRandom({ seed: -7n });
    one.step = 12;
    const other = new nn.NamedRandom({ seed: 0 });
    other.loadStateDict(JSON.parse(JSON.stringify(one.stateDict())) as nn.NamedRandomState);
    expect([other.seed, other.step]).toEqual([-7n, 12]);
    expect(() => other.loadStateDict({} as never)).toThrow(/not what stateDict\(\) gave/);
    expect(() => new nn.NamedRandom({ seed: 0.5 })).toThrow(/the seed is 0.5/);
    expect(() => one.run(() => 1, { microbatch: -1 })).toThrow(/microbatch is -1/);
    expect(() => {
      one.step = -1;
    }).toThrow(/the step is -1/);
  });
});
