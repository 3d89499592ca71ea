/** @file Shards beside the pipeline: whatever is divided and however, training equals that of one process on the whole batch. */
import { describe, expect, test } from 'vitest';
import { casesOnProcesses, casesOnThreads } from '../../testing/launch.ts';
import { caseOf, problemsOf, schedules, ways } from '../../testing/sharding.mjs';
import type { Case, Result } from '../../testing/sharding.ts';

const program = new URL('../../testing/ranks/parallel/replica.mjs', import.meta.url);

function runThreads(count: number, cases: readonly Case[]): Promise<Result[][]> {
  return casesOnThreads(program, count, cases);
}

async function compare(cases: readonly Case[], results: readonly (readonly Result[])[]): Promise<string[]> {
  const [wanted] = await runThreads(
    1,
    cases.map((one) => ({ ...one, plain: true })),
  );
  return cases.flatMap((one, i) =>
    problemsOf(
      one,
      results.map((ofRank) => ofRank[i] as Result),
      wanted?.[i] as Result,
    ),
  );
}

const shards = ways.filter(({ wrap, replicas = 1 }) => wrap !== 'replicate' && replicas === 1);
const cases = [
  ...schedules.flatMap((schedule) =>
    shards.flatMap((way) => [1, 2].map((accumulate) => caseOf(schedule, way, accumulate))),
  ),
  caseOf(['LoopedBFS', 4], { wrap: 'replicate' }, 1), // gradients of earlier steps stay
];

describe('shards of a pipeline equal plain training', () => {
  test('on threads: every schedule, three levels, one and two accumulated steps', async () => {
    expect(await compare(cases, await runThreads(4, cases))).toEqual([]);
  });

  test('shards within, replicas across, on eight threads', async () => {
    const hybrid = schedules.map((schedule, i) => caseOf(schedule, { wrap: 'parameters', replicas: 2 }, 1 + (i % 2)));
    const others = (['optimizer', 'gradients'] as const).map((wrap) => caseOf(['1F1B', 2], { wrap, replicas: 2 }, 1));
    const all = [...hybrid, ...others];
    expect(await compare(all, await runThreads(8, all))).toEqual([]);
  });

  test('where only the first stage is given anything, and replicas have unequal rows in uneven microbatches', async () => {
    const plain = { divisor: false, evaluate: false, rows: [6, 9] };
    const some = ways
      .filter(({ replicas = 1 }) => replicas === 1)
      .flatMap((way) => schedules.map((schedule) => ({ ...caseOf(schedule, way, 1), ...plain, alone: true })));
    expect(await compare(some, await runThreads(4, some))).toEqual([]);
  });

  test('over lanes, which remember the messages of a step: a tie is summed only in the last one of accumulated steps', async () => {
    const some = ways.flatMap((way) =>
      (way.replicas ?? 1) > 1
        ? []
        : schedules.slice(0, 4).map((schedule) => ({ ...caseOf(schedule, way, 2), lanes: 'host' as const })),
    );
    expect(await compare(some, await runThreads(4, some))).toEqual([]);
  });

  test('on processes', async () => {
    const some = cases.filter((_, i) => i % 7 === 0);
    expect(await compare(some, await casesOnProcesses(program, 4, some))).toEqual([]);
  });
});
