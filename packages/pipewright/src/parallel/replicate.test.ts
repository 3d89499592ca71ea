/** @file Replicas beside the pipeline: whatever the schedule and the layout, training equals that of one process on the whole batch. */
import { describe, expect, test } from 'vitest';
import { casesOnProcesses, casesOnThreads } from '../../testing/launch.ts';

interface Case {
  readonly schedule: string;
  readonly pp: number;
  readonly dp: number;
  readonly stages: number;
  readonly microbatches: number;
  readonly rows: readonly number[];
  readonly accumulate: number;
  readonly clip?: number;
  readonly order?: object;
  readonly checkpoint?: boolean;
  readonly bucketCapMb?: number;
  readonly evaluate?: boolean;
  readonly divisor?: boolean;
  /** Without a pipeline and without replicas. */
  readonly plain?: boolean;
}

interface Result {
  readonly grads: Record<string, number[] | null>;
  readonly weights: Record<string, number[] | null>;
  readonly norms: number[];
  readonly reductions: [number, number][];
  readonly mesh: string;
}

const program = new URL('../../testing/ranks/parallel/replica.mjs', import.meta.url);

function runThreads(count: number, cases: readonly Case[]): Promise<Result[][]> {
  return casesOnThreads(program, count, cases);
}

async function plainly(cases: readonly Case[]): Promise<Result[]> {
  const [results] = await runThreads(
    1,
    cases.map((one) => ({ ...one, plain: true })),
  );
  return results as Result[];
}

/** Differences are rounding of sums in another order. */
function expectClose(got: Record<string, number[] | null>, want: Record<string, number[] | null>, where: string): void {
  for (const [name, values] of Object.entries(got)) {
    const wanted = want[name];
    if (values === null || wanted === null || wanted === undefined) {
      expect(values, `${where}: ${name}`).toBe(wanted ?? null);
      continue;
    }
    values.forEach((value, i) =>
      expect(Math.abs(value - (wanted[i] as number)), `${where}: ${name}[${i}]`).toBeLessThanOrEqual(1e-12),
    );
  }
}

async function compare(cases: readonly Case[], results: readonly (readonly Result[])[]): Promise<void> {
  const wanted = await plainly(cases);
  cases.forEach((one, i) => {
    const want = wanted[i] as Result;
    const seen = new Set<string>();
    results.forEach((ofRank, rank) => {
      const got = ofRank[i] as Result;
      const where = `${one.schedule}, case ${i}, rank ${rank}`;
      expectClose(got.grads, want.grads, `${where}, gradients`);
      expectClose(got.weights, want.weights, `${where}, weights`);
      got.norms.forEach((norm, at) => expect(norm, where).toBeCloseTo(want.norms[at] as number, 11));
      for (const [, count] of got.reductions) expect(count, `${where}: one reduction a step`).toBe(3);
      expect(got.reductions.length, where).toBe(one.stages / one.pp);
      for (const name of Object.keys(got.weights)) seen.add(name);
    });
    expect(seen.size).toBe(Object.keys(want.weights).length);
  });
}

const schedules = [
  ['GPipe', 2],
  ['1F1B', 2],
  ['ZB1P', 2],
  ['Interleaved1F1B', 4],
  ['LoopedBFS', 4],
  ['InterleavedZeroBubble', 4],
  ['ZBVZeroBubble', 4],
  ['DualPipeV', 4],
] as const;

const cases: Case[] = schedules.flatMap(([schedule, stages]) =>
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
    await compare(cases, await runThreads(4, cases));
  });

  test('on processes', async () => {
    const some = cases.filter(({ schedule }) => ['1F1B', 'ZBVZeroBubble', 'DualPipeV'].includes(schedule));
    await compare(some, await casesOnProcesses(program, 4, some));
  });

  test('two ranks that only hold replicas, and a mesh that prints itself', async () => {
    const one: Case = { schedule: 'GPipe', pp: 1, dp: 2, stages: 1, microbatches: 2, rows: [4, 6], accumulate: 1 };
    const results = await runThreads(2, [one]);
    await compare([one], results);
    expect(results[1]?.[0]?.mesh).toBe('DeviceMesh(cpu, pp=1, dp=2; rank 1 at 0, 1)');
  });

  test('bitwise the same from run to run, and on all replicas', async () => {
    const [first, again] = [await runThreads(4, cases.slice(2, 4)), await runThreads(4, cases.slice(2, 4))];
    expect(again).toEqual(first);
    expect(first[1]?.map(({ weights }) => weights)).toEqual(first[0]?.map(({ weights }) => weights));
  });
});
