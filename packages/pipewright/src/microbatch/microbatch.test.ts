/** @file Tests of microbatches: rows stay together, pieces are views, merging undoes cutting, errors say what to do. */
import { inspect } from 'node:util';
import { fc, test } from '@fast-check/vitest';
import { arange, cat, liveTensors, ones, scope, Tensor, tensor, zeros } from '@pipewright/torch';
import { describe, expect } from 'vitest';
import type { PipelineError } from '../base/errors.ts';
import { flatten } from '../base/tree.ts';
import {
  CustomReducer,
  chunkSizes,
  mergeChunks,
  Replicate,
  type SpecTree,
  splitArgsKwargsIntoChunks,
  splitBatch,
  sumReducer,
  TensorChunkSpec,
} from './index.ts';

const numbers = (...shape: number[]): Tensor =>
  arange(shape.reduce((product, size) => product * size, 1)).reshape(shape);

/** A tree of tensors with `rows` rows along a dimension of their own, and the specs that say so. */
const arbitraryBatch = fc
  .record({
    rows: fc.integer({ min: 1, max: 12 }),
    chunks: fc.integer({ min: 1, max: 12 }),
    dims: fc.array(fc.tuple(fc.integer({ min: 0, max: 2 }), fc.boolean()), { minLength: 1, maxLength: 4 }),
    nest: fc.boolean(),
  })
  .map(({ rows, chunks, dims, nest }) => {
    const tensors = dims.map(([dim]) => numbers(...Array.from({ length: dim + 1 }, (_, i) => (i === dim ? rows : 2))));
    const specs: SpecTree[] = dims.map(([dim, negative]) => new TensorChunkSpec(negative ? -1 : dim));
    return nest
      ? { rows, chunks, value: { a: tensors, b: 'text' }, spec: { b: new Replicate(), a: specs } }
      : { rows, chunks, value: tensors, spec: specs };
  });

describe('cutting', () => {
  test.prop([arbitraryBatch])(
    'merging undoes it, whatever the dimensions and sizes',
    ({ rows, chunks, value, spec }) => {
      const parts = splitBatch({ args: [value], target: value }, chunks, {
        argsChunkSpec: [spec],
        targetChunkSpec: spec,
      });
      expect(parts.sizes).toEqual(chunkSizes(rows, Math.min(rows, chunks)));
      expect(parts.args).toHaveLength(parts.sizes.length);
      expect(parts.kwargs).toEqual(parts.sizes.map(() => ({})));
      for (const pieces of [parts.args.map(([piece]) => piece), parts.target]) {
        const merged = flatten(mergeChunks(pieces!, spec));
        const whole = flatten(value);
        expect(merged.spec).toEqual(whole.spec);
        for (const [i, leaf] of merged.leaves.entries()) {
          const original = whole.leaves[i];
          if (leaf instanceof Tensor && original instanceof Tensor) expect(leaf.equal(original)).toBe(true);
          else expect(leaf).toBe(original);
        }
      }
    },
  );

  test.prop([fc.integer({ min: 0, max: 1000 }), fc.integer({ min: 1, max: 50 })])(
    'sizes add up, differ by one at most, longer ones first',
    (length, pieces) => {
      const sizes = chunkSizes(length, pieces);
      expect(sizes.reduce((a, b) => a + b)).toBe(length);
      expect(sizes).toEqual(sizes.toSorted((a, b) => b - a));
      expect(sizes[0]! - sizes.at(-1)!).toBeLessThanOrEqual(1);
    },
  );

  test('pieces are views: no copies, and writing to one writes to the batch', () => {
    const x = zeros([6, 4]);
    const [parts] = splitArgsKwargsIntoChunks([x], {}, 3);
    const second = parts[1]![0] as Tensor;
    second.fill_(7);
    expect(x.sum().item()).toBe(2 * 4 * 7);
    const weight = ones([4, 2], { requiresGrad: true });
    const [pieces] = splitArgsKwargsIntoChunks([weight.mul(2)], {}, 2);
    // Each piece is a view of its own, so a model may change it in place.
    (pieces[0]![0] as Tensor).relu_().sum().backward();
    expect(weight.grad!.toArray()).toEqual([
      [2, 2],
      [2, 2],
      [0, 0],
      [0, 0],
    ]);
  });

  test('what is replicated is the same object everywhere', () => {
    const mask = zeros([3]);
    const settings = { deep: mask };
    const [, kwargs] = splitArgsKwargsIntoChunks([numbers(4)], { mask, settings, none: undefined }, 2, {
      kwargsChunkSpec: { mask: Replicate, settings: { deep: new Replicate() }, none: new Replicate() },
    });
    expect(kwargs.map((one) => one['mask'])).toEqual([mask, mask]);
    expect(kwargs[1]!['mask']).toBe(mask);
    expect(kwargs[0]!['settings']).not.toBe(kwargs[1]!['settings']);
    expect(Object.keys(kwargs[0]!)).toEqual(['mask', 'settings', 'none']);
  });

  test('specs of named inputs go by name, not by order', () => {
    const [, kwargs] = splitArgsKwargsIntoChunks([], { x: numbers(6, 2), y: numbers(3, 6) }, 3, {
      kwargsChunkSpec: { y: new TensorChunkSpec(1), x: new TensorChunkSpec(0) },
    });
    expect((kwargs[0]!['x'] as Tensor).shape).toEqual([2, 2]);
    expect((kwargs[0]!['y'] as Tensor).shape).toEqual([3, 2]);
  });

  test('lengths that differ are an error that names both, unless told', () => {
    const batch = [[numbers(8, 2)], { k: numbers(3) }] as const;
    expect(() => splitArgsKwargsIntoChunks(...batch, 3)).toThrowErrorMatchingInlineSnapshot(
      `[PipelineError: splitArgsKwargsIntoChunks: args[0] has 8 rows (dimension 0), kwargs.k has 3 (dimension 0); all that is cut must be equally long. Give new Replicate() for what every microbatch needs whole, or lengths: 'any' to cut each by its own length]`,
    );
    const [args, kwargs] = splitArgsKwargsIntoChunks(...batch, 4, { lengths: 'any' });
    expect(args.map(([piece]) => (piece as Tensor).size(0))).toEqual([3, 3, 2]);
    expect(kwargs.map(({ k }) => (k as Tensor).size(0))).toEqual([1, 1, 1]);
    expect(() => splitBatch({ args: [numbers(8)], target: numbers(6) }, 2)).toThrow(
      /args\[0\] has 8 rows.*target has 6/,
    );
  });

  test('empty containers, absent inputs and a batch without tensors are fine', () => {
    const [args, kwargs] = splitArgsKwargsIntoChunks([[], {}, numbers(4)], null, 2);
    expect(args.map(([list, object, x]) => [list, object, (x as Tensor).shape])).toEqual([
      [[], {}, [2]],
      [[], {}, [2]],
    ]);
    expect(kwargs).toEqual([{}, {}]);
    expect(splitArgsKwargsIntoChunks([[]], {}, 2)).toEqual([
      [[[]], [[]]],
      [{}, {}],
    ]);
    expect(splitBatch({ args: [1] }, 2)).toEqual({ args: [[1], [1]], kwargs: [{}, {}], target: undefined, sizes: [] });
    // A rank without inputs has the specs of the pipeline all the same.
    expect(
      splitArgsKwargsIntoChunks([], {}, 2, {
        argsChunkSpec: [new TensorChunkSpec(0)],
        kwargsChunkSpec: { x: new Replicate() },
      }),
    ).toEqual([
      [[], []],
      [{}, {}],
    ]);
  });

  test('maps are trees too', () => {
    const parts = splitBatch({ args: [new Map([['x', numbers(4)]])] }, 2);
    const piece = parts.args[1]![0] as Map<string, Tensor>;
    expect(piece.get('x')!.toArray()).toEqual([2, 3]);
    const merged = mergeChunks(parts.args.map(([one]) => one)) as Map<string, Tensor>;
    expect(merged.get('x')!.toArray()).toEqual([0, 1, 2, 3]);
  });

  test('masked: whole batches with zeros outside the own rows; merging takes the own rows', () => {
    const x = numbers(5, 2);
    const [args] = splitArgsKwargsIntoChunks([x], {}, 2, { masked: true });
    const pieces = args.map(([piece]) => piece as Tensor);
    expect(pieces[1]!.toArray()).toEqual([
      [0, 0],
      [0, 0],
      [0, 0],
      [6, 7],
      [8, 9],
    ]);
    expect(pieces[0]!.add(pieces[1]!).equal(x)).toBe(true);
    const doubled = pieces.map((piece) => piece.mul(2).add(1));
    expect((mergeChunks(doubled, undefined, { masked: true }) as Tensor).equal(x.mul(2).add(1))).toBe(true);
    expect(() => mergeChunks([numbers(4), numbers(3)], undefined, { masked: true })).toThrow(/microbatches are masked/);
  });

  test('no tensor is left behind', () => {
    const before = liveTensors();
    scope(() => {
      const { args, target } = splitBatch({ args: [numbers(8, 2)], target: numbers(8) }, 4);
      mergeChunks(args);
      mergeChunks(target!);
    });
    expect(liveTensors()).toBe(before);
  });
});

describe('merging', () => {
  test('without a spec, scalars are stacked and equal values pass through', () => {
    const chunk = (loss: number): unknown => ({
      loss: tensor(loss),
      name: 'x',
      at: null,
      y: ones([2, 1]),
      bad: Number.NaN,
    });
    const merged = mergeChunks([chunk(1), chunk(2), chunk(4)]) as Record<string, unknown>;
    expect((merged['loss'] as Tensor).toArray()).toEqual([1, 2, 4]);
    expect((merged['y'] as Tensor).shape).toEqual([6, 1]);
    expect(merged).toMatchObject({ name: 'x', at: null, bad: Number.NaN });
  });

  test('replicated tensors are compared by value', () => {
    const merged = mergeChunks([numbers(3), numbers(3)], new Replicate()) as Tensor;
    expect(merged.toArray()).toEqual([0, 1, 2]);
    expect(() => mergeChunks([numbers(3), numbers(3).add(1)], Replicate)).toThrowErrorMatchingInlineSnapshot(
      `[PipelineError: mergeChunks: result must be the same in all chunks, but is a tensor int64[3] in chunk 0 and a tensor int64[3] in chunk 1; give a CustomReducer to combine them]`,
    );
    expect(() => mergeChunks([numbers(3), numbers(3).float()], Replicate)).toThrow(/int64\[3\].*float32\[3\]/);
  });

  test('reducers fold in the order of the microbatches', () => {
    const text = new CustomReducer('', (all: string, next: string) => all + next);
    expect(mergeChunks(['a', 'b', 'c'], text)).toBe('abc');
    const losses = [1, 2, 4].map((loss) => tensor(loss, { dtype: 'float64' }));
    const total = mergeChunks(losses, sumReducer) as Tensor;
    expect([total.item(), total.dtype.name]).toEqual([7, 'float64']);
    expect(
      mergeChunks(
        [
          { y: numbers(2), n: 1 },
          { n: 2, y: numbers(1) },
        ],
        { n: new CustomReducer(0, Math.max), y: new TensorChunkSpec() },
      ),
    ).toEqual({
      y: expect.any(Tensor),
      n: 2,
    });
  });

  test('gradients flow through', () => {
    const x = ones([4, 2], { requiresGrad: true });
    const [args] = splitArgsKwargsIntoChunks([x], {}, 3);
    const outputs = args.map(([piece], i) => (piece as Tensor).mul(i + 1));
    (mergeChunks(outputs) as Tensor).sum().backward();
    expect(x.grad!.equal(cat([ones([2, 2]), ones([1, 2]).mul(2), ones([1, 2]).mul(3)]))).toBe(true);
  });
});

test('bad input is refused with the way out', () => {
  const x = numbers(4, 2);
  const calls: (() => unknown)[] = [
    () => splitArgsKwargsIntoChunks([x], {}, 1.5),
    () => splitBatch({ args: [x] }, 2, { argChunkSpec: [] } as object),
    () => splitBatch({ args: [x] }, 2, { compat: 'troch' as 'torch' }),
    () => splitArgsKwargsIntoChunks(x as never, {}, 2),
    () => splitArgsKwargsIntoChunks([x], [x] as never, 2),
    () => splitBatch({ args: [zeros([0, 2])] }, 2),
    () => splitBatch({ args: [x] }, 2, { argsChunkSpec: [null] }),
    () => splitBatch({ args: [x] }, 2, { argsChunkSpec: [sumReducer] }),
    () => splitBatch({ args: [[x, x]] }, 2, { argsChunkSpec: [new TensorChunkSpec(0)] }),
    () => splitBatch({ args: [x] }, 2, { argsChunkSpec: [[new TensorChunkSpec(0)]] }),
    () => splitBatch({ kwargs: { x, y: x } }, 2, { kwargsChunkSpec: { x: new Replicate(), z: new Replicate() } }),
    () => splitBatch({ args: [x] }, 2, { argsChunkSpec: [new TensorChunkSpec(2)] }),
    () => new TensorChunkSpec('0' as never),
    () => new CustomReducer(0, 1 as never),
    () => TensorChunkSpec.fromTuple(['0' as never]),
    () => mergeChunks([{ a: x }, { b: x }]),
    () => mergeChunks([tensor(1), tensor(2)], new TensorChunkSpec(0)),
    () => mergeChunks([1, 2], new TensorChunkSpec(0)),
    () => mergeChunks([1, 2]),
    () => mergeChunks([x, numbers(4, 3)]),
    () => mergeChunks([x, x], 0 as never),
    () => mergeChunks(x as never),
  ];
  const messages = calls.map((call) => {
    try {
      call();
      return `no error from ${String(call)}`;
    } catch (error) {
      return `${(error as PipelineError).code} ${(error as Error).message}`;
    }
  });
  expect(messages.join('\n')).toMatchInlineSnapshot(`
    "BAD_OPTION splitArgsKwargsIntoChunks: chunks is 1.5; give a whole number of at least 1
    UNKNOWN_OPTION splitBatch: unknown option 'argChunkSpec' (did you mean 'argsChunkSpec'?); it takes argsChunkSpec, kwargsChunkSpec, lengths, masked, compat, targetChunkSpec
    BAD_OPTION splitBatch: compat is 'troch' (did you mean 'torch'?); give 'torch'
    BAD_INPUT splitArgsKwargsIntoChunks: args is a Tensor; give an array of the positional inputs
    BAD_INPUT splitArgsKwargsIntoChunks: kwargs is an array of 1; give an object of the named inputs
    EMPTY_BATCH splitBatch: args[0] has no rows (dimension 0); give at least one
    BAD_CHUNK_SPEC splitBatch: the spec of args[0] is null; give new TensorChunkSpec(dim) or new Replicate()
    BAD_CHUNK_SPEC splitBatch: the spec of args[0] is LossReducer(add); give new TensorChunkSpec(dim) or new Replicate()
    TREE_MISMATCH splitBatch: argsChunkSpec is not shaped like args: at args[0]: a TensorChunkSpec for an array; give one spec for each value, under the same names
    TREE_MISMATCH splitBatch: argsChunkSpec is not shaped like args: at args[0]: an array of 1 for a single value; give one spec for each value, under the same names
    TREE_MISMATCH splitBatch: kwargsChunkSpec is not shaped like kwargs: at kwargs: nothing for 'y', 'z' for nothing; give one spec for each value, under the same names
    BAD_CHUNK_SPEC splitBatch: args[0] is a tensor [4, 2], it has no dimension 2 to be cut along; give new TensorChunkSpec(dim) with another dimension, or new Replicate()
    BAD_CHUNK_SPEC TensorChunkSpec: the dimension is '0'; give a whole number, such as 0
    BAD_CHUNK_SPEC CustomReducer: the second argument is 1; give a function of the value so far and the next one
    BAD_CHUNK_SPEC TensorChunkSpec: '0' is not a dimension; give whole numbers, in arrays and objects shaped like the inputs
    TREE_MISMATCH mergeChunks: chunk 1 is not shaped like chunk 0: at chunk 0: nothing for 'a', 'b' for nothing; all microbatches must give results of the same structure
    BAD_CHUNK_SPEC mergeChunks: result has shapes [], [], there is no dimension 0; give a CustomReducer such as sumReducer, or no spec to stack scalars
    BAD_CHUNK_SPEC mergeChunks: result is 1, which TensorChunkSpec(0) cannot concatenate; give new Replicate() or a CustomReducer
    NOT_EQUAL mergeChunks: result must be the same in all chunks, but is 1 in chunk 0 and 2 in chunk 1; give a CustomReducer to combine them
    SHAPES_DIFFER mergeChunks: result has shapes [4, 2], [4, 3]; they must be equal but for dimension 0. Give a TensorChunkSpec of the dimension that differs, or a CustomReducer
    BAD_CHUNK_SPEC mergeChunks: the spec of result is 0; give a TensorChunkSpec, a Replicate or a CustomReducer
    BAD_INPUT mergeChunks: chunks is a Tensor; give an array of the results"
  `);
});

test('specs print', () => {
  const specs = [
    TensorChunkSpec.fromTuple([0, [1, { a: -1 }]]),
    TensorChunkSpec.fromDict({ id: 0 }),
    new Replicate(),
    sumReducer,
  ];
  expect(inspect(specs, { depth: 5 })).toMatchInlineSnapshot(`
    "[
      [
        TensorChunkSpec(0),
        [ TensorChunkSpec(1), { a: TensorChunkSpec(-1) } ]
      ],
      { id: TensorChunkSpec(0) },
      Replicate(),
      LossReducer(add)
    ]"
  `);
});

test('splitBatch refuses null for any of its arguments', () => {
  const call = splitBatch as (...args: unknown[]) => unknown;
  const batch = { args: [ones([4, 2])] };
  for (const args of [
    [null, 2],
    [batch, null],
    [batch, 2, null],
  ])
    expect(() => call(...args), JSON.stringify(args.length)).toThrow(expect.objectContaining({ code: 'BAD_OPTION' }));
});
