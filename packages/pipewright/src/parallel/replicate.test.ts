/** @file Replicas beside the pipeline: whatever the schedule and the layout, training equals that of one process on the whole batch. */
import { describe, expect, test } from 'vitest';
import { casesOnProcesses, casesOnThreads } from '../../testing/launch.ts';
import { problemsOf, schedules } from '../../testing/sharding.mjs';
import type { Case, Result } from '../../testing/sharding.ts';

const program = new URL('../../testing/ranks/parallel/replica.mjs', import.meta.url);

function runThreads(count: number, cases: readonly Case[]): Promise<Result[][]> {
  return casesOnThreads(program, count, cases);
}

async function expectPlainTraining(cases: readonly Case[], results: readonly (readonly Result[])[]): Promise<void> {
  const plain = cases.map((one) => ({ ...one, plain: true }));
  const [wanted] = (await runThreads(1, plain)) as [Result[]];
  const problems = cases.flatMap((one, i) =>
    problemsOf(
      one,
      results.map((ofRank) => ofRank[i]!),
      wanted[i]!,
    ),
  );
  expect(problems).toEqual([]);
}

const named = schedules.filter(([schedule]) => schedule !== 'random');

const cases: Case[] = named.flatMap(([schedule, stages]) =>
  [1, 2].map((accumulate) => ({
    schedule,
    pp: 2,
    dp: 2,
    stages,
    microbatches: 4,
    rows: [8, 13],
    accumulate,
    ...(accumulate === 2 && { clip: 0.05, evaluate: true, checkpoint: schedule === '1F1B' }),
    ...(schedule === 'GPipe' && { divisor: accumulate === 1 }),
    bucketCapMb: 1e-4,
  })),
);

describe('replicas of a pipeline equal plain training', () => {
  test('on threads, every schedule, one and two accumulated steps', async () => {
    await expectPlainTraining(cases, await runThreads(4, cases));
  });

  test('on processes, some schedules', async () => {
    const some = cases.filter(({ schedule }) => ['1F1B', 'ZBVZeroBubble', 'DualPipeV'].includes(schedule));
    await expectPlainTraining(some, await casesOnProcesses(program, 4, some));
  });

  test('two ranks that only hold replicas, and a mesh that prints itself', async () => {
    const one: Case = { schedule: 'GPipe', pp: 1, dp: 2, stages: 1, microbatches: 2, rows: [4, 6], accumulate: 1 };
    const results = await runThreads(2, [one]);
    await expectPlainTraining([one], results);
    expect(results[1]?.[0]?.mesh).toBe('DeviceMesh(cpu, pp=1, dp=2; rank 1 at 0, 1)');
  });

  test('bitwise the same from run to run, and on all replicas', async () => {
    const [first, again] = [await runThreads(4, cases.slice(2, 4)), await runThreads(4, cases.slice(2, 4))];
    expect(again).toEqual(first);
    expect(first[1]?.map(({ weights }) => weights)).toEqual(first[0]?.map(({ weights }) => weights));
  });
});
