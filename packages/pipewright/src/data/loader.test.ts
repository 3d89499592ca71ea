/** @file The loader: its state, its workers, and what is left when something goes wrong. */

import { mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { createRequire } from 'node:module';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { fc, test as property } from '@fast-check/vitest';
import { liveTensors, scope, type Tensor, tensor } from '@pipewright/torch';
import { afterAll, describe, expect, test } from 'vitest';
import { Dataset, IterableDataset, Subset, TensorDataset } from './dataset.ts';
import { JsonLinesDataset } from './json-lines.ts';
import { DataLoader, type DataLoaderOptions, type DataLoaderState } from './loader.ts';
import { ParquetDataset } from './parquet.ts';
import {
  DistributedSampler,
  RandomSampler,
  type Sampler,
  SubsetRandomSampler,
  WeightedRandomSampler,
} from './sampler.ts';
import { TokenDataset, writeTokens } from './tokens.ts';
import { WorkerPool } from './worker-pool.ts';

const folder = mkdtempSync(join(tmpdir(), 'pipewright-data-'));
afterAll(() => rmSync(folder, { recursive: true }));

const module = new URL('../../testing/worker-datasets.mjs', import.meta.url);
type Batch = { readonly index: Tensor; readonly row: Tensor };

class Numbers extends Dataset<number> {
  readonly length: number;

  constructor(length: number) {
    super();
    this.length = length;
  }

  getItem(index: number): number {
    return index;
  }
}

class Stream extends IterableDataset<number> {
  private readonly size: number;

  constructor(size: number) {
    super();
    this.size = size;
  }

  *[Symbol.iterator](): Iterator<number> {
    for (let i = 0; i < this.size; i++) yield i;
  }
}

const idsOf = (batch: unknown): number[] => (batch as { index: Tensor }).index.toArray() as number[];
const plainIds = (samples: readonly unknown[]): readonly unknown[] => samples;

interface Layout {
  readonly replicas: number;
  readonly batchSize: number;
}

/** One loader for each replica. */
function replicasOf(
  source: Dataset | IterableDataset,
  { replicas, batchSize }: Layout,
  rest: DataLoaderOptions,
): DataLoader<number[]>[] {
  return Array.from(
    { length: replicas },
    (_, rank) => new DataLoader(source, { ...rest, batchSize, numReplicas: replicas, rank, collateFn: plainIds }),
  );
}

describe('each sample once an epoch', () => {
  const layout = fc.record({ replicas: fc.integer({ min: 1, max: 4 }), batchSize: fc.integer({ min: 1, max: 5 }) });

  property.prop([
    fc.integer({ min: 4, max: 60 }),
    fc.nat({ max: 99 }),
    fc.array(fc.tuple(layout, fc.integer({ min: 0, max: 6 })), { minLength: 1, maxLength: 4 }),
    fc.boolean(),
  ])('whatever the seed, the stops and the replicas before and after', (length, seed, runs, streams) => {
    const source = streams ? new Stream(length) : new Numbers(length);
    const rest = { fillLast: true, ...(streams ? {} : { shuffle: true, seed }) };
    let state: DataLoaderState | null = null;
    const given: number[] = [];
    for (const [one, steps] of runs) {
      const loaders = replicasOf(source, one, rest);
      if (state !== null) for (const loader of loaders) loader.loadStateDict(state);
      for (let step = 0; step < steps; step++) for (const loader of loaders) given.push(...loader.nextBatch());
      const states: DataLoaderState[] = loaders.map((loader) => loader.stateDict());
      for (const other of states) expect(other).toEqual(states[0]);
      state = JSON.parse(JSON.stringify(states[0])) as DataLoaderState;
    }
    // One loader that is never stopped has the same samples in the same order.
    const [alone] = replicasOf(source, { replicas: 1, batchSize: 1 }, rest) as [DataLoader<number[]>];
    expect(given).toEqual(given.map(() => alone.nextBatch()[0]));
    for (let from = 0; from + length <= given.length; from += length)
      expect(new Set(given.slice(from, from + length)).size).toBe(length);
    const { epoch, position } = state!;
    expect(epoch * length + position).toBe(given.length);
  });

  property.prop([fc.integer({ min: 1, max: 40 }), layout, fc.nat({ max: 50 })])(
    'with a short last batch an epoch ends with its last sample',
    (length, one, seed) => {
      fc.pre(length % (one.replicas * one.batchSize) === 0 || length % (one.replicas * one.batchSize) >= one.replicas);
      const loaders = replicasOf(new Numbers(length), one, { shuffle: true, seed });
      for (const epoch of [0, 1]) {
        const seen = loaders.flatMap((loader) => [...loader].flat());
        expect([...seen].sort((a, b) => a - b)).toEqual(Array.from({ length }, (_, i) => i));
        for (const loader of loaders) expect(loader.stateDict()).toMatchObject({ epoch: epoch + 1, position: 0 });
      }
    },
  );
});

test('a loop that was left goes on where it was left; setEpoch begins afresh', () => {
  const loader = new DataLoader<number[]>(new Numbers(10), { batchSize: 3, collateFn: plainIds });
  for (const batch of loader) if (batch[0] === 3) break;
  expect([...loader]).toEqual([[6, 7, 8], [9]]);
  expect(loader.epoch).toBe(1);
  expect(loader.length).toBe(4);
  loader.setEpoch(1);
  expect(loader.nextBatch()).toEqual([0, 1, 2]);
  expect(String(loader)).toMatchInlineSnapshot(`"DataLoader(batches of 3, 0 workers; epoch 1, position 3)"`);
  expect([...new DataLoader(new Numbers(10), { batchSize: 3, dropLast: true, collateFn: plainIds })].length).toBe(3);
});

test('a state of another dataset, order or version is refused', () => {
  const state = new DataLoader(new Numbers(10), { shuffle: true, seed: 1 }).stateDict();
  expect(state).toMatchInlineSnapshot(`
    {
      "epoch": 0,
      "order": "RandomSampler(10 of 10, seed 1)",
      "position": 0,
      "version": 1,
    }
  `);
  const load = (given: object, options: DataLoaderOptions = { shuffle: true, seed: 1 }, size = 10) => {
    new DataLoader(new Numbers(size), options).loadStateDict(given as DataLoaderState);
  };
  load(state);
  expect(() => load(state, { shuffle: true, seed: 2 })).toThrow(
    /the order 'RandomSampler\(10 of 10, seed 1\)', this loader has/,
  );
  expect(() => load(state, { shuffle: true, seed: 1 }, 11)).toThrow(/11 of 11/);
  expect(() => load({ ...state, version: 2 })).toThrow(/give what stateDict\(\)/);
  expect(() => load({ ...state, position: 11 })).toThrow(/position 11 of an epoch of 10/);
  expect(() => load({ ...state, epoch: -1 })).toThrow(/epoch is -1/);
});

test('a state of other weights or indices is refused; one that an earlier version saved without them loads', () => {
  const makers: [name: string, make: (values: number[]) => Sampler][] = [
    ['weights', (values) => new WeightedRandomSampler(values, 10, { seed: 1 })],
    ['indices', (values) => new SubsetRandomSampler(values, { seed: 1 })],
    [
      'weights',
      (values) =>
        new DistributedSampler(new WeightedRandomSampler(values, 10, { seed: 1 }), { numReplicas: 2, rank: 0 }),
    ],
  ];
  for (const [name, make] of makers) {
    const loaderOf = (values: number[]): DataLoader => new DataLoader(new Numbers(10), { sampler: make(values) });
    const first = loaderOf([1, 2, 3]);
    first.nextBatch();
    const state = first.stateDict();
    loaderOf([1, 2, 3]).loadStateDict(state);
    const message = new RegExp(`seed 1, ${name} [0-9a-f]{8}\\)', this loader has`);
    for (const values of [
      [1, 2, 4],
      [2, 1, 3],
    ])
      expect(() => loaderOf(values).loadStateDict(state), String(values)).toThrow(message);
    const earlier = { ...state, order: state.order!.replace(/, (weights|indices) [0-9a-f]+/, '') };
    expect(earlier.order).not.toBe(state.order);
    const other = loaderOf([1, 2, 3]);
    other.loadStateDict(earlier);
    expect(other.stateDict()).toEqual(state);
  }
});

test('samples are collated: tensors, typed arrays, numbers, objects; what is not alike is named', () => {
  scope(() => {
    const rows = new TensorDataset(
      tensor([
        [1, 2],
        [3, 4],
        [5, 6],
      ]),
      tensor([7, 8, 9]),
    );
    const [x, y] = new DataLoader<[Tensor, Tensor]>(new Subset(rows, [2, 0]), { batchSize: 2 }).nextBatch();
    expect([x.toArray(), y.toArray()]).toEqual([
      [
        [5, 6],
        [1, 2],
      ],
      [9, 7],
    ]);
    class Ragged extends Numbers {
      override getItem(index: number): never {
        return { name: `n${index}`, on: index > 0, values: new Float32Array(1 + index) } as never;
      }
    }
    expect(() => new DataLoader(new Ragged(2), { batchSize: 2 }).nextBatch()).toThrow(
      /'values' of samples in one batch must be alike: the first is a Float32Array of 1, the one at place 1 is a Float32Array of 2/,
    );
    const one = new DataLoader<{ name: string[]; on: Tensor; values: Tensor }>(new Ragged(2)).nextBatch();
    expect([one.name, one.on.toArray(), one.values.shape]).toEqual([['n0'], [false], [1, 1]]);
  });
});

describe('workers', () => {
  const make = (data: object, options: DataLoaderOptions = {}): DataLoader<Batch> =>
    new DataLoader<Batch>({ module, data }, { batchSize: 4, numWorkers: 2, ...options });

  test('give what the loader itself gives, in order, over the end of an epoch, and leave nothing behind', async () => {
    const before = liveTensors();
    using loader = make({ length: 30 }, { shuffle: true, seed: 9 });
    const order = new RandomSampler({ length: 30 }, { seed: 9 });
    const wanted = (epoch: number): number[] => Array.from({ length: 30 }, (_, i) => order.indexAt(epoch, i));
    for (const epoch of [0, 1])
      expect(
        scope(() => [...loader].flatMap(idsOf)),
        `epoch ${epoch}`,
      ).toEqual(wanted(epoch));
    // Reading ahead is no part of the state.
    scope(() => void loader.nextBatch());
    expect(loader.stateDict()).toMatchObject({ epoch: 2, position: 4 });
    using other = make({ length: 30 }, { sampler: order, numWorkers: 1, batchSize: 2 });
    other.loadStateDict(loader.stateDict());
    const { index, row } = other.nextBatch();
    expect(index.toArray()).toEqual(wanted(2).slice(4, 6));
    expect(row.toArray()).toEqual(
      wanted(2)
        .slice(4, 6)
        .map((i) => [i, i + 0.5]),
    );
    index.dispose();
    row.dispose();
    const threads = [loader, other].flatMap((one) => poolOf(one).threads);
    expect(threads.length).toBe(3);
    loader.dispose();
    other.dispose();
    expect(liveTensors()).toBe(before);
    await Promise.all(
      threads.map(async (thread) => {
        if (thread.threadId !== -1) await new Promise((done) => thread.once('exit', done));
      }),
    );
    expect(threads.map((thread) => thread.threadId)).toEqual([-1, -1, -1]);
  });

  test('an error names the sample; the loader stays where it was', () => {
    using loader = make({ length: 12, fail: 6 });
    expect(idsOf(loader.nextBatch())).toEqual([0, 1, 2, 3]);
    for (let i = 0; i < 2; i++) expect(() => loader.nextBatch()).toThrow(/^DataLoader: sample 6: this file is broken$/);
    expect(loader.stateDict()).toMatchObject({ position: 4 });
    loader.loadStateDict({ ...loader.stateDict(), position: 8 });
    expect(idsOf(loader.nextBatch())).toEqual([8, 9, 10, 11]);
  });

  test('a worker that ends is named with what it read; the loader can be used again', () => {
    using loader = make({ length: 12, die: 5 });
    expect(idsOf(loader.nextBatch())).toEqual([0, 1, 2, 3]);
    expect(() => loader.nextBatch()).toThrow(
      /worker \d of 2 has ended while it read samples 4, 5, 6, 7: it was terminated/,
    );
    loader.loadStateDict({ ...loader.stateDict(), position: 8 });
    expect(idsOf(loader.nextBatch())).toEqual([8, 9, 10, 11]);
    using other = make({ length: 12 });
    for (let i = 0; i < 2; i++) other.nextBatch(); // both have answered
    void poolOf(other).threads[0]?.terminate();
    expect(() => {
      for (let i = 0; i < 100; i++) other.nextBatch();
    }).toThrow(/worker \d of 2 has ended/);
    other.setEpoch(0);
    expect(idsOf(other.nextBatch())).toEqual([0, 1, 2, 3]);
  });

  test('a worker that ends before it has started is an error in time', () => {
    const pool = new WorkerPool({ module, data: { length: 4 } }, 1, {
      pinMemory: false,
      collates: true,
      startMs: 1000,
    });
    void pool.threads[0]?.terminate();
    expect(() => pool.ready()).toThrow(/worker 0 of 1 has (not started within 1 s|ended)/);
    pool.dispose();
  });

  test('what cannot begin, or cannot be sent, is an error', () => {
    expect(() => make({ missing: true }).nextBatch()).toThrow(/there is no such file/);
    using bad = make({ length: 8, clone: true });
    expect(() => bad.nextBatch()).toThrow(/could not be cloned/);
    const none = new DataLoader(
      { module: new URL('../../testing/zip-writer.mjs', import.meta.url) },
      { numWorkers: 1 },
    );
    expect(() => none.nextBatch()).toThrow(/zip-writer\.mjs exports no function 'dataset'/);
    expect(() => new DataLoader(new Numbers(3), { numWorkers: 1 })).toThrow(/workers cannot make this Numbers again/);
    expect(() => new DataLoader({ module })).toThrow(/say numWorkers: 1 or more/);
  });

  test('streams: their own state, or what was read before, on other replicas', () => {
    for (const seeks of [true, false]) {
      const loaderOf = (replicas: number, rank: number): DataLoader<Batch> =>
        make(
          { length: 11, stream: true, seeks },
          { numWorkers: 1, batchSize: 4 / replicas, numReplicas: replicas, rank },
        );
      using first = loaderOf(1, 0);
      expect(idsOf(first.nextBatch())).toEqual([0, 1, 2, 3]);
      const state = first.stateDict();
      expect(state).toMatchObject({ epoch: 0, position: 4, order: null, ...(seeks ? { dataset: { at: 4 } } : {}) });
      using left = loaderOf(2, 0);
      using right = loaderOf(2, 1);
      for (const one of [left, right]) one.loadStateDict(state);
      expect([left, right].map((one) => [...one].map(idsOf))).toEqual([
        [[4, 5], [8]],
        [
          [6, 7],
          [9, 10],
        ],
      ]);
      expect(left.stateDict()).toMatchObject({ epoch: 1, position: 0 });
    }
    expect(() => make({ length: 4, stream: true }).nextBatch()).toThrow(/an iterable dataset is read by one/);
  });

  test('promises: in workers, or with for await', async () => {
    using loader = make({ length: 6, promise: true }, { numWorkers: 1 });
    expect([...loader].map(idsOf)).toEqual([
      [0, 1, 2, 3],
      [4, 5],
    ]);
    const seen: number[][] = [];
    for await (const batch of loader) seen.push(idsOf(batch));
    expect(seen).toEqual([
      [0, 1, 2, 3],
      [4, 5],
    ]);
    class Later extends Numbers {
      override getItem(index: number): never {
        return Promise.resolve(index) as never;
      }
    }
    const here = new DataLoader<Tensor>(new Later(3), { batchSize: 2 });
    expect(() => here.nextBatch()).toThrow(/gives promises; say numWorkers: 1/);
    const values: unknown[] = [];
    for await (const batch of here) values.push(batch.toArray());
    expect(values).toEqual([[0, 1], [2]]);
  });

  test('a function that collates here gets samples', () => {
    using loader = make({ length: 4 }, { collateFn: (samples) => samples.length });
    expect([...loader]).toEqual([4]);
  });
});

describe('files', () => {
  test('tokens are mapped; samples are moved on by one', () => {
    const path = join(folder, 'tokens.bin');
    expect(writeTokens(path, [[1, 2, 3], Uint16Array.of(65535, 5, 6, 7)])).toBe(7);
    using data = new TokenDataset(path, { length: 2, stride: 2 });
    expect([data.length, data.tokens]).toEqual([3, 7]);
    expect(data.getItem(1).map((one) => one.toArray())).toEqual([
      [3, 65535],
      [65535, 5],
    ]);
    using loader = new DataLoader<[Tensor, Tensor]>(data, { batchSize: 2, numWorkers: 1 });
    const [inputs, targets] = loader.nextBatch();
    expect([inputs.toArray(), targets.toArray()]).toEqual([
      [
        [1, 2],
        [3, 65535],
      ],
      [
        [2, 3],
        [65535, 5],
      ],
    ]);
    expect(inputs.dtype.name).toBe('int64');
    expect(() => writeTokens(path, [[70000]])).toThrow(/token 0 is 70000, but uint16 holds 0 to 65535/);
    expect(() => new TokenDataset(path, { length: 7 })).toThrow(/has 7 tokens, a sample of 7 needs 8/);
    expect(() => data.getItem(3)).toThrow(/there is no sample 3; there are 3/);
    for (const [wrong, why] of [
      [join(folder, 'none.bin'), 'No such file or directory'],
      [folder, 'not a regular file'],
    ] as const)
      expect(() => new TokenDataset(wrong, { length: 2 })).toThrow(
        `TokenDataset: cannot read ${wrong}: ${why}; give the path of a file that writeTokens has made, or one with the same bytes`,
      );
  });

  test('JSON lines by number; a broken one is named', () => {
    const path = join(folder, 'lines.jsonl');
    writeFileSync(path, '{"a":1}\n\n{"a":2}\r\n  \n{"a":\n{"a":"ü"}');
    using data = new JsonLinesDataset<{ a: unknown }>(path);
    expect(data.length).toBe(4);
    expect([0, 1, 3].map((i) => data.getItem(i).a)).toEqual([1, 2, 'ü']);
    using loader = new DataLoader(data, { numWorkers: 1, shuffle: false });
    loader.nextBatch();
    loader.nextBatch();
    expect(() => loader.nextBatch()).toThrow(/sample 2: JsonLinesDataset: line 5 of .*lines\.jsonl: /);
    expect(() => new JsonLinesDataset(join(folder, 'none'))).toThrow(/no such file/);
    expect(() => new JsonLinesDataset(folder)).toThrow(`JsonLinesDataset: ${folder} is not a file`);
  });

  test('Parquet rows, with types and row groups', async () => {
    const { parquetWriteFile } = createRequire(import.meta.url)('hyparquet-writer') as {
      parquetWriteFile(options: object): void;
    };
    const path = join(folder, 'rows.parquet');
    const text = Array.from({ length: 10 }, (_, i) => `row ${i}`);
    parquetWriteFile({
      filename: path,
      columnData: [
        { name: 'text', data: text },
        { name: 'label', data: text.map((_, i) => i % 3), type: 'INT32' },
      ],
      rowGroupSize: 4,
    });
    const rows = await ParquetDataset.open(path, { keepGroups: 1 });
    expect(rows.length).toBe(10);
    expect(await rows.getItem(9)).toEqual({ text: 'row 9', label: 0 });
    using loader = new DataLoader<{ text: string[]; label: Tensor }>(rows, {
      batchSize: 4,
      shuffle: true,
      numWorkers: 1,
    });
    const seen = [...loader];
    expect(seen.flatMap((batch) => batch.text).sort()).toEqual(text);
    expect(seen.flatMap((batch) => batch.label.toArray())).toEqual(
      seen.flatMap((batch) => batch.text.map((one) => Number(one.slice(4)) % 3)),
    );
    await expect(ParquetDataset.open(path, { columns: ['txt'] })).rejects.toThrow(
      /no column 'txt'; there are text, label/,
    );
    await expect(ParquetDataset.open(join(folder, 'lines.jsonl'))).rejects.toThrow(/ParquetDataset: .*lines\.jsonl: /);
  });
});

test.each([
  [{ batchSize: 0 }, /batchSize is 0/],
  [{ bachSize: 1 }, /unknown option 'bachSize' \(did you mean 'batchSize'\?\)/],
  [{ dropLast: true, fillLast: true }, /exclude each other/],
  [{ rank: 1 }, /rank 1 of 1 replicas/],
  [{ sampler: new RandomSampler({ length: 3 }), shuffle: true }, /sampler and shuffle exclude each other/],
  [
    { sampler: new DistributedSampler({ length: 3 }, { numReplicas: 2, rank: 0 }), rank: 0 },
    /leave out numReplicas and rank/,
  ],
])('refused: %#', (options, message) => {
  expect(() => new DataLoader(new Numbers(3), options as DataLoaderOptions)).toThrow(message);
});

test('a last batch that is too small for the replicas is an error with a way out', () => {
  const loader = new DataLoader(new Numbers(5), { batchSize: 2, numReplicas: 2, rank: 1 });
  loader.nextBatch();
  expect(() => loader.nextBatch()).toThrow(/has 1 sample for 2 replicas; say dropLast: true, or fillLast: true/);
});

/** The threads of a loader. */
function poolOf(loader: DataLoader<Batch>): { readonly threads: readonly import('node:worker_threads').Worker[] } {
  return Reflect.get(loader, 'pool') as never;
}
