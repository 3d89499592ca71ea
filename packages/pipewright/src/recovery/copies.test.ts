/** @file Which state all ranks go on with after a loss, and who gives it to whom. */
import { expect, test } from 'vitest';
import { planRecovery } from './copies.ts';

const rank = (
  own: readonly number[],
  kept: readonly (readonly [rank: number, step: number, shared?: boolean])[] = [],
  replicaKey: string | null = null,
): Parameters<typeof planRecovery>[0][number] => ({
  own,
  kept: kept.map(([of, step, shared = true]) => ({ rank: of, step, shared })),
  replicaKey,
  begun: Math.max(0, ...own),
});

test('nobody has anything: a first start', () =>
  expect(planRecovery([rank([]), rank([])])).toEqual({ step: undefined, sources: [], begun: 0, missing: [] }));

test('the newest step that everybody has, or of which somebody keeps a copy', () => {
  const ranks = [rank([3, 4], [[2, 3]]), rank([3], [[0, 3]]), rank([])];
  expect(planRecovery(ranks)).toEqual({
    step: 3,
    sources: [{ rank: 2, own: 0, shared: 0, isReplica: false }],
    begun: 4,
    missing: [],
  });
});

test('a replica gives what it has alike; before the first step it need not be alike', () => {
  const ranks = [rank([5], [], 'dp'), rank([], [], 'dp'), rank([5], [[1, 5, false]])];
  expect(planRecovery(ranks).sources).toEqual([{ rank: 1, own: 2, shared: 0, isReplica: true }]);
  const first = [rank([0], [], 'dp'), rank([], [], 'dp'), rank([0], [[1, 0, false]])];
  expect(planRecovery(first)).toMatchObject({ step: undefined, missing: [1] });
});

test('a rank of which no copy is left is named', () =>
  expect(planRecovery([rank([2], [[2, 2]]), rank([]), rank([])])).toMatchObject({ step: undefined, missing: [1] }));
