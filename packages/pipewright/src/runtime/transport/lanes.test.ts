/** @file What decides over lanes, with lanes on the CPU: the first steps, known ones, changes of all kinds. */
import { describe, expect, test } from 'vitest';
import { casesFor, differences, title } from '../../../testing/conformance.mjs';
import { type TrainingResult, trainOnThreads, trainPlainly } from '../../../testing/launch.ts';
import { graphObstacle, queueWarning } from './lane-limits.ts';
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

// A GPU with fewer queues than lanes does what waits in one of them in the order of the row. Where every message has one sender and
// one receiver that is proven to come to its end, whatever shares a queue.
test.each([
  [2, 'host'],
  [4, 'host'],
  [4, 'one stream'],
] as const)('%i ranks over lanes (%s) equal plain training, under every schedule', async (ranks, lanes) => {
  const chosen = lanes === 'host' ? variations : variations.filter(({ model }) => model !== 'skip');
  const cases = casesFor(ranks, chosen).map((one) => ({ ...one, lanes }));
  const [results, oracles] = [await trainOnThreads(ranks, cases), await trainPlainly(cases)];
  cases.forEach((one, i) => {
    const parts = results.map((ofRank) => ofRank[i] as TrainingResult);
    expect(differences(one, parts, oracles[i] as TrainingResult), title(one)).toEqual([]);
  });
});

test('steps with more lanes than a graph can do side by side are not captured', () => {
  expect(graphObstacle(6)).toBe('');
  expect(graphObstacle(7)).toContain('7 lanes');
});

test('a rank is told where its GPU has fewer queues than it has lanes', () => {
  expect(queueWarning(4, {})).toBeNull();
  expect(queueWarning(8, {})).toContain('8 lanes, and the GPU has 8 queues');
  expect(queueWarning(11, {})).toContain('CUDA_DEVICE_MAX_CONNECTIONS=32');
  expect(queueWarning(11, { CUDA_DEVICE_MAX_CONNECTIONS: '32' })).toBeNull();
  expect(queueWarning(11, { CUDA_DEVICE_MAX_CONNECTIONS: '1' })).toBeNull();
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
