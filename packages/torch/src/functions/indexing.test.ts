import fc from 'fast-check';
import { expect, test } from 'vitest';
import {
  arange,
  bool,
  type Index,
  int64,
  type NestedArray,
  range,
  scope,
  type Tensor,
  TorchError,
  tensor,
  zeros,
} from '../index.ts';

// A plain model: an array in row-major order with its shape.
interface Plain {
  shape: number[];
  data: number[];
}

function offsets(shape: readonly number[]): number[][] {
  return shape.reduce<number[][]>(
    (all, size) => all.flatMap((at) => Array.from({ length: size }, (_, i) => [...at, i])),
    [[]],
  );
}

function flat(shape: readonly number[], at: readonly number[]): number {
  return at.reduce((sum, i, dim) => sum * (shape[dim] as number) + i, 0);
}

/** Indexing by the book: every result position says which source position it reads. */
function model(source: Plain, items: readonly Index[]): Plain {
  const used = items.filter((item) => item !== null && item !== '...').length;
  const whole = Array.from({ length: source.shape.length - used }, () => range());
  const full = items.includes('...')
    ? items.flatMap((item) => (item === '...' ? whole : [item]))
    : [...items, ...whole];
  type Axis = { dim: number; positions: number[]; keep: boolean } | { added: true };
  const axes: Axis[] = [];
  let dim = 0;
  for (const item of full) {
    const size = source.shape[dim] as number;
    if (item === null) axes.push({ added: true });
    else if (typeof item === 'number')
      axes.push({ dim: dim++, positions: [item < 0 ? item + size : item], keep: false });
    else {
      const { start, end, step } = item as { start: number | null; end: number | null; step: number };
      const clamp = (value: number): number => Math.min(size, Math.max(0, value < 0 ? value + size : value));
      const positions: number[] = [];
      for (let i = clamp(start ?? 0); i < clamp(end ?? size); i += step) positions.push(i);
      axes.push({ dim: dim++, positions, keep: true });
    }
  }
  const kept = axes.filter((axis) => 'added' in axis || axis.keep);
  const shape = kept.map((axis) => ('added' in axis ? 1 : axis.positions.length));
  const data = offsets(shape).map((at) => {
    const where = new Array<number>(source.shape.length).fill(0);
    for (const axis of axes) if (!('added' in axis) && !axis.keep) where[axis.dim] = axis.positions[0] as number;
    kept.forEach((axis, i) => {
      if (!('added' in axis)) where[axis.dim] = axis.positions[at[i] as number] as number;
    });
    return source.data[flat(source.shape, where)] as number;
  });
  return { shape, data };
}

const arbShape = fc.array(fc.integer({ min: 0, max: 4 }), { minLength: 1, maxLength: 4 });

const arbCase = arbShape.chain((shape) => {
  const item = (size: number): fc.Arbitrary<Index> => {
    const bound = fc.option(fc.integer({ min: -size - 2, max: size + 2 }));
    const ranges = fc.tuple(bound, bound, fc.integer({ min: 1, max: 3 })).map(([a, b, step]) => range(a, b, step));
    return size === 0 ? ranges : fc.oneof(fc.integer({ min: -size, max: size - 1 }), ranges);
  };
  return fc
    .tuple(fc.integer({ min: 0, max: shape.length }), fc.tuple(...shape.map(item)), fc.option(fc.nat(4)), fc.nat(4))
    .map(([count, all, dots, extra]) => {
      const head: Index[] = all.slice(0, count);
      if (dots !== null && dots % 2 === 0) head.push('...');
      if (extra < head.length) head.splice(extra, 0, null);
      return { shape, items: head };
    });
});

function count(shape: readonly number[]): Tensor {
  const size = shape.reduce((product, n) => product * n, 1);
  return arange(size).reshape([...shape]);
}

function plain(value: Tensor): Plain {
  return { shape: value.shape, data: [value.toArray()].flat(Infinity as 1) as number[] };
}

test('numbers, ranges, null and ... read what a plain array would', () => {
  fc.assert(
    fc.property(arbCase, ({ shape, items }) => {
      scope(() => {
        const source = count(shape);
        expect(plain(source.at(...items))).toEqual(model(plain(source), items));
      });
    }),
    { numRuns: 400 },
  );
});

test('set_ writes where at reads', () => {
  fc.assert(
    fc.property(arbCase, fc.integer({ min: -9, max: -1 }), ({ shape, items }, value) => {
      scope(() => {
        const source = count(shape);
        const touched = new Set(model(plain(source), items).data);
        const expected = plain(source).data.map((old) => (touched.has(old) ? value : old));
        source.set_(items, value);
        expect(plain(source).data).toEqual(expected);
      });
    }),
    { numRuns: 200 },
  );
});

test('integer tensors and masks pick as in PyTorch', () => {
  const x = count([3, 4]);
  expect(x.at([2, 0]).toArray()).toEqual([
    [8, 9, 10, 11],
    [0, 1, 2, 3],
  ]);
  expect(x.at(tensor([0, 2]), tensor([1, 3])).toArray()).toEqual([1, 11]);
  expect(x.at(':', [3, 0]).toArray()).toEqual([
    [3, 0],
    [7, 4],
    [11, 8],
  ]);
  expect(
    x
      .at(
        tensor([
          [0, 1],
          [2, 0],
        ]),
        1,
      )
      .toArray(),
  ).toEqual([
    [1, 5],
    [9, 1],
  ]);
  expect(x.at(x.gt(8)).toArray()).toEqual([9, 10, 11]);
  expect(x.at([true, false, true], '1:3').toArray()).toEqual([
    [1, 2],
    [9, 10],
  ]);
  expect(x.at(true).shape).toEqual([1, 3, 4]);
  expect(x.at(false).shape).toEqual([0, 3, 4]);
  expect(x.at(tensor(1), -1).item()).toBe(7);
  expect(
    count([2, 3, 4])
      .at(count([2, 3]).gt(3), '0:2')
      .toArray(),
  ).toEqual([
    [16, 17],
    [20, 21],
  ]);
});

test('picking agrees with a plain model for random positions', () => {
  fc.assert(
    fc.property(
      fc.array(fc.integer({ min: -5, max: 4 }), { minLength: 1, maxLength: 6 }),
      fc.array(fc.boolean(), { minLength: 5, maxLength: 5 }),
      (rows, mask) => {
        scope(() => {
          const x = count([5, 3]);
          const nested = x.toArray() as NestedArray[];
          expect(x.at(rows).toArray()).toEqual(rows.map((i) => nested[i < 0 ? i + 5 : i]));
          expect(x.at(mask).toArray()).toEqual(nested.filter((_, i) => mask[i]));
          expect(x.at(tensor(mask, { dtype: bool })).toArray()).toEqual(nested.filter((_, i) => mask[i]));
        });
      },
    ),
  );
});

test('assignment with tensors, masks and broadcasting', () => {
  const x = count([2, 3]);
  x.set_([0], tensor([7, 8, 9]));
  x.set_([x.eq(5)], -1);
  x.set_([':', 1], tensor([[1, 2]]));
  expect(x.toArray()).toEqual([
    [7, 1, 9],
    [3, 2, -1],
  ]);
  x.set_([tensor([0, 1]), tensor([2, 0])], tensor([100, 200]));
  expect(x.toArray()).toEqual([
    [7, 1, 100],
    [200, 2, -1],
  ]);
});

test('slice takes ranges as arrays and gives a view', () => {
  const x = count([4, 4]);
  const view = x.slice([1, 3], [null, null, 2]);
  expect(view.toArray()).toEqual([
    [4, 6],
    [8, 10],
  ]);
  view.zero_();
  expect(x.at(1).toArray()).toEqual([0, 5, 0, 7]);
});

test.each([
  [() => count([2]).at(2), /index 2 at place 0 is outside dimension 0 of size 2; -2 to 1 are allowed/],
  [() => count([2]).at(0, 0), /too many indices: the tensor has 1 dimensions, the index names 2/],
  [() => count([2, 2]).at('...', '...'), /at most one '...'/],
  [() => count([2]).at('1;2'), /'1;2' is not a range/],
  [() => count([2]).at('::-1'), /use flip\(\)/],
  [() => count([2]).at(0.5), /whole number/],
  [() => count([2, 2]).at(tensor([true, false, true])), /the mask has shape \[3\]/],
  [() => count([2, 2]).at(tensor([0.5])), /must hold integers or booleans/],
  [() => count([2]).at({} as unknown as number), /expected a number, a range/],
] as const)('%s is refused', (call, message) => {
  expect(call).toThrow(TorchError);
  expect(call).toThrow(message);
});

test('int64 positions come from any integer type', () => {
  expect(count([3]).at(tensor([2, 1], { dtype: 'int32' })).dtype).toBe(int64);
});

test('a value for a mask may have leading dimensions of one', () => {
  const x = zeros([2, 3]);
  x.set_([tensor([[true, false, true], [false, false, true]])], tensor([[1.5, 2, 3]])); // biome-ignore format: rows
  expect(x.toArray()).toEqual([[1.5, 0, 2], [0, 0, 3]]); // biome-ignore format: rows
});

test('a mask is given to the kernel as it is: a single value of another type is taken, and dimensions after it keep their place', () => {
  const half = zeros([4], { dtype: 'float16' });
  half.set_([tensor([true, false, true, true])], tensor([1.5]));
  expect(half.toArray()).toEqual([1.5, 0, 1.5, 1.5]);
  const x = count([2, 2, 3]);
  const mask = tensor([
    [true, false],
    [false, true],
  ]);
  expect(x.at(mask, '1:').toArray()).toEqual([[1, 2], [10, 11]]); // biome-ignore format: rows
  expect(x.at(mask.to('uint8'), tensor([0, 2])).toArray()).toEqual([0, 11]);
  expect(x.at(null, mask, -1).toArray()).toEqual([[2, 11]]);
});

test('an index that names everything is a view, as any other', () => {
  const x = zeros([2], { requiresGrad: true });
  for (const items of [[], ['...'], [':']] as Index[][]) {
    const all = x.at(...items);
    expect([all.isLeaf, all.requiresGrad, all.gradFn?.name]).toEqual([false, true, 'AliasBackward0']);
  }
  x.detach().at().fill_(3);
  expect(x.toArray()).toEqual([3, 3]);
});
