/** @file What decides over lanes, with lanes on the CPU: the first steps, known ones, changes of all kinds. */
import { describe, expect, test } from 'vitest';
import { casesFor, differences, title } from '../../../testing/conformance.mjs';
import { type TrainingResult, trainOnThreads, trainPlainly } from '../../../testing/launch.ts';
import { laneOrder } from './lane-order.ts';

const variations = [
  { model: 'mlp', evaluate: true, varyRows: true },
  { model: 'mlp', accumulate: 2, messageShapes: 'announced' },
  { model: 'skip', varyRows: true },
  { model: 'tied', accumulate: 2, clip: 0.05 },
  { model: 'frozen', varyRows: true },
  { model: 'tree', evaluate: true },
  { model: 'named', ready: true, evaluate: true },
  { model: 'mlp', ready: true, varyRows: true, alone: true },
] as const;

test.each([2, 4])('%i ranks over lanes equal plain training, under every schedule', async (ranks) => {
  const cases = casesFor(ranks, variations).map((one) => ({ ...one, lanes: 'host' as const }));
  const [results, oracles] = [await trainOnThreads(ranks, cases), await trainPlainly(cases)];
  cases.forEach((one, i) => {
    const parts = results.map((ofRank) => ofRank[i] as TrainingResult);
    expect(differences(one, parts, oracles[i] as TrainingResult), title(one)).toEqual([]);
  });
});

describe('laneOrder', () => {
  test('one lane where both ends agree', () => {
    expect([...laneOrder([5, 3, 9], [5, 3, 9]).values()]).toEqual([0, 0, 0]);
  });

  test('in every lane both ends have the same order, whatever theirs is', () => {
    let seed = 1;
    const random = (): number => (seed = (seed * 48271) % 2147483647);
    for (let round = 0; round < 200; round++) {
      const sent = Array.from({ length: 1 + (random() % 12) }, (_, i) => i * 3);
      const received = sent
        .map((tag) => [random(), tag] as const)
        .sort(([a], [b]) => a - b)
        .map(([, tag]) => tag);
      const lanes = laneOrder(sent, received);
      expect([...lanes.keys()].sort((a, b) => a - b)).toEqual(sent);
      for (const lane of new Set(lanes.values())) {
        const inLane = (tags: readonly number[]): number[] => tags.filter((tag) => lanes.get(tag) === lane);
        expect(inLane(sent)).toEqual(inLane(received));
      }
    }
  });
});
