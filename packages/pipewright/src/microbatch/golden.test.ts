/** @file Microbatches as PyTorch cuts and merges them, and the three cases where it is wrong and we are not. */
import { readFileSync } from 'node:fs';
import { arange, Tensor } from '@pipewright/torch';
import { describe, expect, test } from 'vitest';
import { flatten, unflatten } from '../base/tree.ts';
import { mergeChunks, Replicate, type SplitOptions, splitArgsKwargsIntoChunks, TensorChunkSpec } from './index.ts';

type Case = readonly [name: string, result: { readonly error?: true; readonly [key: string]: unknown }];
const golden = new Map(
  JSON.parse(readFileSync(new URL('../../../../testdata/micro.json', import.meta.url), 'utf8')) as Case[],
);

/** 0, 1, 2, … in a shape. */
function A(...shape: number[]): Tensor {
  return arange(shape.reduce((product, size) => product * size, 1)).reshape(shape);
}

/** Tensors as their shapes. */
function shapes(value: unknown): unknown {
  const { leaves, spec } = flatten(value);
  return unflatten(
    spec,
    leaves.map((leaf) => (leaf instanceof Tensor ? leaf.shape : leaf)),
  );
}

interface Split {
  readonly args?: unknown[];
  readonly kwargs?: Record<string, unknown>;
  readonly chunks: number;
  readonly options?: SplitOptions;
}

const along = (dim: number): TensorChunkSpec => new TensorChunkSpec(dim);
const splits: Readonly<Record<string, () => Split>> = {
  even: () => ({ args: [A(8, 3)], chunks: 4 }),
  uneven: () => ({ args: [A(7, 3)], chunks: 4 }),
  uneven10by4: () => ({ args: [A(10, 2)], chunks: 4 }),
  fewer: () => ({ args: [A(3, 2)], chunks: 4 }),
  one: () => ({ args: [A(1, 2)], chunks: 4 }),
  'two args': () => ({ args: [A(8, 3), A(8)], kwargs: { m: A(8, 2) }, chunks: 4 }),
  nontensor: () => ({ args: [A(8), 5, 's', null], kwargs: { flag: true }, chunks: 2 }),
  nested: () => ({ args: [{ a: A(4), b: [A(4, 2), 3] }], chunks: 2 }),
  dim1: () => ({ args: [A(3, 8)], chunks: 4, options: { argsChunkSpec: [along(1)] } }),
  replicate: () => ({ args: [A(3, 8)], chunks: 2, options: { argsChunkSpec: [new Replicate()] } }),
  kwspec: () => ({ kwargs: { x: A(2, 6) }, chunks: 3, options: { kwargsChunkSpec: { x: along(1) } } }),
  'scalar tensor': () => ({ args: [A()], chunks: 2 }),
  empty: () => ({ chunks: 3 }),
  'zero chunks': () => ({ args: [A(4)], chunks: 0 }),
  'spec len': () => ({ args: [A(4), A(4)], chunks: 2, options: { argsChunkSpec: [along(0)] } }),
  'dim out of range': () => ({ args: [A(4)], chunks: 2, options: { argsChunkSpec: [along(3)] } }),
  'negative dim': () => ({ args: [A(4, 6)], chunks: 2, options: { argsChunkSpec: [along(-1)] } }),
  'spec not tensor': () => ({ args: [5], chunks: 2, options: { argsChunkSpec: [along(0)] } }),
};
/** Where the reference goes wrong without an error; its results need `compat`. */
const faults: Readonly<Record<string, () => Split>> = {
  mismatched: () => ({ args: [A(8, 3), A(4)], chunks: 4 }),
  'bad kw': () => ({ kwargs: { x: A(4) }, chunks: 2, options: { kwargsChunkSpec: { y: along(0) } } }),
};
const merges: Readonly<Record<string, () => unknown>> = {
  merge: () => mergeChunks([A(2, 3), A(2, 3)]),
  'merge dim1': () => mergeChunks([A(2, 3), A(2, 1)], along(1)),
  'merge dict': () => mergeChunks([{ a: A(2) }, { a: A(3) }]),
  'merge replicate': () => mergeChunks([5, 5], new Replicate()),
  'merge replicate diff': () => mergeChunks([5, 6], new Replicate()),
  'merge none': () => mergeChunks([]),
  'merge tuple': () =>
    mergeChunks([
      [A(2), A(1)],
      [A(2), A(1)],
    ]),
  'merge mismatch': () => mergeChunks([A(2, 3), A(2, 4)]),
};

function run({ args = [], kwargs, chunks, options }: Split): unknown {
  const [positional, named] = splitArgsKwargsIntoChunks(args, kwargs, chunks, options);
  return { args: shapes(positional), kwargs: shapes(named) };
}

/** `body` gives the golden result, or fails where that says so. */
function expectGolden(name: string, body: () => unknown): void {
  const wanted = golden.get(name);
  if (wanted?.error === true) expect(body).toThrow(/^(splitArgsKwargsIntoChunks|mergeChunks): /);
  else expect(body()).toEqual(wanted);
}

test('every golden case is here', () => {
  expect([...golden.keys()].sort()).toEqual(Object.keys({ ...splits, ...faults, ...merges }).sort());
});

describe.each(Object.entries(splits))('split %s', (name, make) => {
  test('as PyTorch', () => expectGolden(name, () => run(make())));
  test('the same with compat', () => {
    expectGolden(name, () => run({ ...make(), options: { ...make().options, compat: 'torch' } }));
  });
  test('the same with the specs one after the other', () => {
    const { args = [], kwargs, chunks, options } = make();
    expectGolden(name, () => {
      const { argsChunkSpec, kwargsChunkSpec } = options ?? {};
      const [positional, named] = splitArgsKwargsIntoChunks(args, kwargs, chunks, argsChunkSpec, kwargsChunkSpec);
      return { args: shapes(positional), kwargs: shapes(named) };
    });
  });
});

describe.each(Object.entries(faults))('split %s', (name, make) => {
  test('is an error', () => expect(() => run(make())).toThrow(/rows|shaped/));
  test('as PyTorch with compat', () => {
    expectGolden(name, () => run({ ...make(), options: { ...make().options, compat: 'torch' } }));
  });
});

describe.each(Object.entries(merges))('%s', (name, merge) => {
  test('as PyTorch', () => {
    expectGolden(name, () => {
      const result = merge();
      return { shape: shapes(result), value: result instanceof Tensor ? result.toArray() : null };
    });
  });
});
