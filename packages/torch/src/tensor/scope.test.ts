import { expect, test } from 'vitest';
import {
  float,
  fromTypedArray,
  keep,
  liveTensors,
  ones,
  Scope,
  scope,
  type Tensor,
  TorchError,
  tensor,
  zeros,
} from '../index.ts';

function leftBy(body: () => unknown): number {
  const before = liveTensors();
  body();
  return liveTensors() - before;
}

test('a scope frees all but what is returned or kept', () => {
  expect(leftBy(() => scope(() => void ones([4]).add(1).mul(2)))).toBe(0);
  let held: Tensor | undefined;
  expect(leftBy(() => (held = scope(() => ones([4]).add(1))))).toBe(1);
  expect(held!.toArray()).toEqual([2, 2, 2, 2]);
  held!.dispose();
  const kept: { a?: Tensor } = {};
  expect(
    leftBy(() =>
      scope(() => {
        kept.a = keep(ones([1]));
        ones([2]);
      }),
    ),
  ).toBe(1);
  kept.a!.dispose();
  expect(leftBy(() => scope(() => scope(() => ({ list: [ones([1])], map: new Map([['x', ones([1])]]) }))))).toBe(2);
});

test('tensors of an inner scope belong to the outer one afterwards', () => {
  expect(
    leftBy(() =>
      scope(() => {
        const x = scope(() => ones([2]));
        x.add(1);
      }),
    ),
  ).toBe(0);
});

test('using and dispose', () => {
  expect(
    leftBy(() => {
      const x = ones([2]);
      x.dispose();
      x.dispose();
      expect(x.isDisposed).toBe(true);
    }),
  ).toBe(0);
  expect(
    leftBy(() => {
      const inner = new Scope();
      ones([2]);
      inner[Symbol.dispose]();
    }),
  ).toBe(0);
});

test('a scope knows what it and the scopes inside it own', () => {
  const before = ones([2]);
  scope(() => {
    const outer = ones([2]);
    using inner = new Scope();
    const own = ones([2]);
    expect([before, outer, own].map((each) => inner.has(each))).toEqual([false, false, true]);
    scope(() => expect(inner.has(ones([2]))).toBe(true));
    expect(inner.has(keep(own))).toBe(false);
  });
  before.dispose();
});

test('using a tensor after its end is a clear error', () => {
  const x = scope(() => {
    const gone = ones([2]);
    return { id: () => gone };
  }).id();
  for (const call of [() => x.shape, () => x.add(1), () => ones([2]).add(x), () => x.item(), () => x.at(0)]) {
    expect(call).toThrow(TorchError);
    expect(call).toThrow(/was disposed of/);
  }
});

test('an asynchronous function is refused, and an error inside frees too', () => {
  expect(() => scope(async () => ones([1]))).toThrow(/asynchronous/);
  expect(
    leftBy(() =>
      expect(() =>
        scope(() => {
          ones([3]);
          throw new Error('stop');
        }),
      ).toThrow('stop'),
    ),
  ).toBe(0);
});

test('100,000 operators in scopes: handles and memory stay flat', () => {
  const x = ones([64, 64]);
  const round = (): void => {
    for (let i = 0; i < 1000; i++)
      scope(() => {
        for (let k = 0; k < 10; k++) x.add(1).mul(2);
      });
  };
  round();
  const live = liveTensors();
  const before = process.memoryUsage().rss;
  for (let i = 0; i < 5; i++) round();
  expect(liveTensors()).toBe(live);
  // All of them together take 1.6 GB.
  expect((process.memoryUsage().rss - before) / 2 ** 20).toBeLessThan(200);
});

test('memory is shared with typed arrays when asked for', () => {
  const data = Float32Array.of(1, 2, 3, 4);
  const x = fromTypedArray(data, [2, 2], { share: true });
  data[0] = 9;
  x.set_([1, 1], 7.5);
  expect(x.toArray()).toEqual([
    [9, 2],
    [3, 7.5],
  ]);
  expect(data[3]).toBe(7.5);
  const shared = x.sharedArray();
  shared[1] = 5;
  expect(x.at(0, 1).item()).toBe(5);
});

test('values decide the type, and int64 never loses digits', () => {
  expect(tensor([1, 2]).dtype.name).toBe('int64');
  expect(tensor([1, 2.5]).dtype.name).toBe('float32');
  expect(tensor([float(1)]).dtype.name).toBe('float32');
  expect(tensor([true]).dtype.name).toBe('bool');
  expect(tensor([2n ** 60n + 1n]).toArray()).toEqual([2n ** 60n + 1n]);
  expect(
    tensor([2n ** 60n + 1n])
      .at(0)
      .itemValue(),
  ).toBe(2n ** 60n + 1n);
  expect(() => tensor([2n ** 70n])).toThrow(/does not fit into int64/);
  expect(() => tensor([[1], [2, 3]])).toThrow(/equal lengths/);
  expect(() => zeros([2, 2], { dtpye: 'int64' } as object)).toThrow(/did you mean 'dtype'/);
});
