/** @file Who writes what: replicas share the work, but buffers, which differ between them, are those of one. */
import { expect, test } from 'vitest';
import { type HeldTensor, planWrites, type RankHoldings } from './plan.ts';

function held(key: string, kind: HeldTensor['kind'], elements: number): HeldTensor {
  const part = { shape: [elements], offset: null, local: [elements] };
  return { ...{ key, kind, part, dtype: 'float64', itemSize: 8, stage: 0, tie: null }, aliases: [] };
}

test('parameters are divided among replicas, all buffers are those of the first one', () => {
  const tensors = [
    held('weight', 'parameter', 6),
    held('bias', 'parameter', 5),
    held('runningMean', 'buffer', 4),
    held('runningVar', 'buffer', 3),
    held('count', 'buffer', 1),
  ];
  const replica: RankHoldings = { stages: [0], numStages: 1, tensors };
  const { writes } = planWrites([replica, replica]);
  expect(writes.map((list) => list.map(({ key }) => key))).toEqual([
    ['weight', 'runningMean', 'runningVar', 'count'],
    ['bias'],
  ]);
});
