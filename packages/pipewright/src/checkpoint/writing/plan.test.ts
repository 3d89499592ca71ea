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

test('stages that no rank has are refused: a rank that is alone in the end would write its part in the place of the whole', () => {
  const rank = (stages: number[]): RankHoldings => ({ stages, numStages: 3, tensors: [] });
  expect(() => planWrites([rank([1])])).toThrow(
    /of the 3 stages of the model no rank of the group has 0, 2 \(ranks: 1\); all ranks save together, .* before they leave their group/,
  );
  expect(planWrites([rank([1]), rank([2, 0])]).writes).toEqual([[], []]);
});
