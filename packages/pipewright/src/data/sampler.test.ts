/** @file Samplers: every order is a function of seed, epoch and position, and an epoch has every sample once. */
import { fc, test as property } from '@fast-check/vitest';
import { expect, test } from 'vitest';
import { Permutation } from './order.ts';
import {
  BatchSampler,
  DistributedSampler,
  RandomSampler,
  SequentialSampler,
  SubsetRandomSampler,
  WeightedRandomSampler,
} from './sampler.ts';

const small = fc.nat({ max: 1000 });

property.prop([fc.integer({ min: 1, max: 400 }), small, small])(
  'a shuffled epoch has every sample once, and its order depends on nothing else',
  (length, seed, epoch) => {
    const sampler = new RandomSampler({ length }, { seed });
    sampler.setEpoch(epoch);
    const order = [...sampler];
    expect([...order].sort((a, b) => a - b)).toEqual(Array.from({ length }, (_, i) => i));
    const other = new RandomSampler({ length }, { seed });
    other.indexAt(epoch + 1, 0); // whatever was asked before
    expect(order.map((_, position) => other.indexAt(epoch, position))).toEqual(order);
  },
);

property.prop([fc.integer({ min: 65_537, max: 200_000 }), small, small], { numRuns: 5 })(
  'a long epoch has every sample once, too',
  (length, seed, epoch) => {
    const permutation = new Permutation(length, seed);
    const seen = new Uint8Array(length);
    let fixed = 0;
    for (let i = 0; i < length; i++) {
      const at = permutation.at(epoch, i);
      seen[at] = (seen[at] as number) + 1;
      if (at === i) fixed++;
    }
    expect(seen.findIndex((count) => count !== 1)).toBe(-1);
    expect(fixed).toBeLessThan(20); // of a random permutation about one stays in its place
  },
);

test('long epochs are mixed: neighbours go far apart, epochs and seeds differ', () => {
  const length = 1_000_000_007;
  const permutation = new Permutation(length, 1);
  const places = Array.from({ length: 2000 }, (_, i) => permutation.at(0, i));
  const mean = places.reduce((a, b) => a + b, 0) / places.length / length;
  expect(mean).toBeGreaterThan(0.46);
  expect(mean).toBeLessThan(0.54);
  const distance =
    places.slice(1).reduce((sum, at, i) => sum + Math.abs(at - (places[i] as number)), 0) / 1999 / length;
  expect(distance).toBeGreaterThan(0.3); // a third, for places that know nothing of each other
  expect(permutation.at(1, 0)).not.toBe(places[0]);
  expect(new Permutation(length, 2).at(0, 0)).not.toBe(places[0]);
});

test('small shuffles are fair', () => {
  const counts = new Map<string, number>();
  for (let epoch = 0; epoch < 6000; epoch++) {
    const order = [0, 1, 2].map((i) => new Permutation(3, 5).at(epoch, i)).join('');
    counts.set(order, (counts.get(order) ?? 0) + 1);
  }
  expect(counts.size).toBe(6);
  for (const count of counts.values()) expect(Math.abs(count - 1000)).toBeLessThan(150);
});

test('replicas share an epoch without a sample twice', () => {
  const shares = [0, 1, 2].map((rank) => [
    ...new DistributedSampler({ length: 10 }, { numReplicas: 3, rank, seed: 4 }),
  ]);
  expect(shares.map(({ length }) => length)).toEqual([4, 3, 3]);
  expect(shares.flat().sort((a, b) => a - b)).toEqual([0, 1, 2, 3, 4, 5, 6, 7, 8, 9]);
  expect([...new DistributedSampler({ length: 5 }, { numReplicas: 2, rank: 1, shuffle: false })]).toEqual([1, 3]);
});

test('weights, subsets, batches', () => {
  const weighted = new WeightedRandomSampler([1, 0, 3], 8000, { seed: 1 });
  const counts = [0, 0, 0];
  for (const index of weighted) counts[index] = (counts[index] as number) + 1;
  expect(counts[1]).toBe(0);
  expect(Math.abs((counts[2] as number) - 6000)).toBeLessThan(200);
  expect([...new SubsetRandomSampler([3, 5, 9])].sort()).toEqual([3, 5, 9]);
  expect([...new BatchSampler(new SequentialSampler({ length: 5 }), 2, false)]).toEqual([[0, 1], [2, 3], [4]]);
  expect([...new BatchSampler(new SequentialSampler({ length: 5 }), 2, true)]).toEqual([
    [0, 1],
    [2, 3],
  ]);
  expect(String(weighted)).toMatchInlineSnapshot(`"WeightedRandomSampler(8000 of 3, seed 1, weights c94ba109)"`);
});

test.each([
  [() => new RandomSampler({ length: 3 }, { numSamples: 4 }), /numSamples is 4, but there are 3 samples/],
  [() => new DistributedSampler({ length: 3 }, { numReplicas: 2, rank: 2 }), /rank 2 of 2 replicas/],
  [() => new RandomSampler({ length: 3 }, { sed: 4 } as never), /unknown option 'sed' \(did you mean 'seed'\?\)/],
  [() => new WeightedRandomSampler([0], 1), /add up to 0/],
  [() => new SequentialSampler({} as never), /length is undefined/],
])('refused: %#', (make, message) => {
  expect(make).toThrow(message);
});
