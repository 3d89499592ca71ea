/** @file One suite for every kind of group: collectives against a plain model, messages, objects, subgroups, limits. */
import fc from 'fast-check';
import { beforeAll, describe, expect, test } from 'vitest';
import { processResults, type RankData, runThreads } from '../../testing/launch.ts';

interface Case {
  readonly kind: 'allReduce' | 'reduce' | 'broadcast' | 'allGather' | 'reduceScatter' | 'allToAll' | 'sendRecv';
  readonly dtype: string;
  readonly shape: readonly number[];
  readonly strided: boolean;
  readonly op: 'sum' | 'avg' | 'product' | 'min' | 'max';
  readonly root: number;
}

const kinds = ['allReduce', 'reduce', 'broadcast', 'allGather', 'reduceScatter', 'allToAll', 'sendRecv'] as const;
const dtypes = [
  'float32',
  'float64',
  'float16',
  'bfloat16',
  'int64',
  'int32',
  'int16',
  'int8',
  'uint8',
  'bool',
  'complex64',
];

const arbCase: fc.Arbitrary<Case> = fc
  .record({
    kind: fc.constantFrom(...kinds),
    dtype: fc.constantFrom(...dtypes),
    shape: fc.array(fc.integer({ min: 0, max: 4 }), { maxLength: 3 }),
    strided: fc.boolean(),
    op: fc.constantFrom('sum' as const, 'avg' as const, 'product' as const, 'min' as const, 'max' as const),
    root: fc.nat(3),
  })
  .map((one) => {
    const isFloat = one.dtype.includes('float');
    const isComplex = one.dtype.startsWith('complex');
    if (isComplex && one.op !== 'sum' && one.op !== 'avg') return { ...one, op: 'sum' as const };
    return one.op === 'avg' && !isFloat && !isComplex ? { ...one, op: 'sum' as const } : one;
  });

/** Large enough to be cut into several items, and a case of each kind with every dtype. */
const fixedCases: Case[] = [
  { kind: 'allReduce', dtype: 'float32', shape: [50_001], strided: false, op: 'sum', root: 0 },
  { kind: 'reduceScatter', dtype: 'float64', shape: [40_000], strided: false, op: 'max', root: 0 },
  ...kinds.flatMap((kind) =>
    dtypes.map((dtype, i) => ({ kind, dtype, shape: [3, 2], strided: i % 2 === 0, op: 'sum' as const, root: i })),
  ),
];

/** The same as `numbers` in ranks.mjs. */
function numbers(seed: number, count: number): number[] {
  return Array.from({ length: count }, (_, i) => ((seed * 7 + i * 5 + ((seed * i) % 3)) % 4) + 1);
}

function reduceValues(values: number[], { op, dtype }: Case): number {
  if (dtype === 'bool') return op === 'sum' || op === 'max' ? Math.max(...values) : Math.min(...values);
  const sum = values.reduce((a, b) => a + b, 0);
  if (op === 'sum') return sum;
  // The average of 16-bit floats is rounded to what they can hold; the others are exact or nearly so.
  if (op === 'avg')
    return dtype === 'bfloat16'
      ? roundTo(sum / values.length, 8)
      : dtype === 'float16'
        ? roundTo(sum / values.length, 11)
        : sum / values.length;
  if (op === 'product') return values.reduce((a, b) => a * b, 1);
  return op === 'min' ? Math.min(...values) : Math.max(...values);
}

function roundTo(value: number, bits: number): number {
  const unit = 2 ** (Math.floor(Math.log2(value)) - bits + 1);
  return Math.round(value / unit) * unit;
}

/** What rank `rank` of `size` must get. */
function model(one: Case, index: number, rank: number, size: number): number[] {
  const count = one.shape.reduce((a, b) => a * b, 1);
  const input = (from: number, part = 0): number[] => {
    const values = numbers(index * 31 + from * 11 + part * 3, count);
    return one.dtype === 'bool' ? values.map((value) => (value > 2 ? 1 : 0)) : values;
  };
  const ranks = Array.from({ length: size }, (_, i) => i);
  const reduced = (part: number): number[] => {
    const inputs = ranks.map((from) => input(from, part));
    return Array.from({ length: count }, (_, i) =>
      reduceValues(
        inputs.map((values) => values[i] as number),
        one,
      ),
    );
  };
  const root = one.root % size;
  const result = {
    allReduce: () => reduced(0),
    reduce: () => (rank === root ? reduced(0) : input(rank)),
    broadcast: () => input(root),
    allGather: () => ranks.flatMap((from) => input(from)),
    reduceScatter: () => reduced(rank),
    allToAll: () => ranks.flatMap((from) => input(from, rank)),
    sendRecv: () => [...input((rank + size - 1) % size), ...input((rank + size - 1) % size)],
  }[one.kind]();
  return one.dtype.startsWith('complex') ? result.flatMap((value) => [value, 0]) : result;
}

function expectModel(cases: readonly Case[], results: unknown[]): void {
  const size = results.length;
  for (const [rank, lists] of (results as number[][][]).entries()) {
    for (const [index, one] of cases.entries()) {
      const got = lists[index] as number[];
      const wanted = model(one, index, rank, size);
      const close =
        got.length === wanted.length && got.every((value, i) => Math.abs(value - (wanted[i] as number)) <= 1e-5);
      if (!close) expect({ rank, one, got: got.slice(0, 20) }).toEqual({ rank, one, got: wanted.slice(0, 20) });
    }
  }
}

type Runner = (count: number, data: RankData) => Promise<unknown[]>;

const runners: { name: string; run: Runner; sizes: readonly number[]; numRuns: number }[] = [
  { name: 'threads', run: runThreads, sizes: [1, 2, 3, 4], numRuns: 8 },
  { name: 'gloo', run: (count, data) => processResults(count, data, 'tcp'), sizes: [3], numRuns: 2 },
];

describe.each(runners)('$name', ({ run, sizes, numRuns }) => {
  test.each(sizes)('collectives of %i ranks equal the model', async (size) => {
    const cases = size === 1 ? fixedCases.filter(({ kind }) => kind !== 'sendRecv') : fixedCases;
    expectModel(cases, await run(size, { scenario: 'cases', cases }));
  });

  test('random collectives equal the model', async () => {
    const size = sizes.at(-1)!;
    await fc.assert(
      fc.asyncProperty(fc.array(arbCase, { minLength: 5, maxLength: 25 }), async (cases) => {
        expectModel(cases, await run(size, { scenario: 'cases', cases }));
      }),
      { numRuns, endOnFailure: true, seed: 20261115 },
    );
  });

  describe('two ranks', () => {
    let both: [Record<string, unknown>, Record<string, unknown>];
    beforeAll(async () => {
      const scenarios = ['objects', 'shapes', 'many', 'self', 'later', 'timeouts', 'leak'];
      both = (await run(2, { scenarios, rounds: 200 })) as typeof both;
    });

    test('objects travel as JSON', () => {
      const common = {
        broadcast: { by: 1, list: [1, 'two', null] },
        gathered: [
          [0, 'x'],
          [1, 'x'],
        ],
      };
      expect(both.map((rank) => rank['objects'])).toEqual([
        { got: { from: 1 }, ...common },
        { got: { from: 0 }, ...common },
      ]);
    });

    test('shapes and dtypes travel with each message, found by tag', () => {
      expect(both.map((rank) => rank['shapes'])).toEqual([
        'done',
        {
          sums: [
            [[3], 'float32', 3],
            [[100_000], 'float32', expect.closeTo(4_999_950_000, -4)],
            [[0], 'float32', 0],
            [[5], 'float32', 10],
            [[1], 'float32', 0],
          ],
          parts: [[[1, 2]], null, true],
          header: 70_000,
          empty: [[3, 0, 2], 'bfloat16'],
          turned: [
            [1, 3],
            [2, 4],
          ],
        },
      ]);
    });

    test('a message may have many tensors', () => {
      expect(both.map((rank) => rank['many'])).toEqual([
        'done',
        { count: 1003, sum: (1000 * 999) / 2, ends: [10_000, null, 20_000], next: [5] },
      ]);
    });

    test('a rank can send to itself', () => {
      expect(both.map((rank) => rank['self'])).toEqual([
        [0, 2],
        [1, 2],
      ]);
    });

    test('work is waited for later, asynchronously and in any order, while the event loop runs', () => {
      expect(both.map((rank) => rank['later'])).toEqual([
        { a: 3, b: 11, got: 1, again: 1, over: true, loop: true },
        { a: 3, b: 11, got: 0, again: 0, over: true, loop: true },
      ]);
    });

    test('a wait gives up in time, names peer and tag, and leaves the group usable', () => {
      for (const [rank, { timeouts }] of both.entries()) {
        const errors = timeouts as { code: string; peer: number; tag: number; message: string; ms: number }[];
        expect(errors.map(({ code, peer, tag }) => [code, peer, tag])).toEqual([
          ['TIMED_OUT', 1 - rank, 41],
          ['TIMED_OUT', 1 - rank, 42],
          ['TIMED_OUT', 1 - rank, 43],
        ]);
        for (const { message, tag, ms } of errors) {
          const told = `in group '.+': rank ${rank} waited \\d+ ms for rank ${1 - rank} with tag ${tag}: no message came`;
          expect(message).toMatch(new RegExp(told));
          expect(ms).toBeGreaterThanOrEqual(149);
          expect(ms).toBeLessThan(30_000);
        }
      }
    });

    test('nothing is left alive', () => {
      expect(both.map((rank) => rank['leak'])).toEqual([0, 0]);
    });
  });

  test('subgroups', async () => {
    expect(await run(3, { scenario: 'subgroups' })).toEqual([
      { rank: 0, size: 2, sum: 2, both: false },
      { rank: 0, size: 1, sum: 1, both: false },
      { rank: 1, size: 2, sum: 2, both: false },
    ]);
  });

  test('a collective that a rank never joins gives up in time', async () => {
    const results = (await run(3, { scenario: 'missing', close: false })) as { code: string; message: string }[];
    expect(results[2]).toBe('absent');
    for (const error of results.slice(0, 2)) {
      expect(error.code).toBe('TIMED_OUT');
      expect(error.message).toMatch(
        /^barrier in group '.+': rank \d waited \d+ ms: (missing ranks: 2|not all ranks did their part)/,
      );
    }
  });
});

test('processes find each other through a file', async () => {
  const results = await processResults(2, { scenario: 'objects' }, 'file');
  expect(results.map((result) => (result as { got: unknown }).got)).toEqual([{ from: 1 }, { from: 0 }]);
});
