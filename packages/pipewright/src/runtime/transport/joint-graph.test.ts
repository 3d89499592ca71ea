/** @file Steps that threads record together: who waits for whom, and what happens where a recording fails on one of them. */
import { beforeAll, describe, expect, test } from 'vitest';
import { runRanks } from '../../../testing/launch.ts';

interface RankResult {
  readonly losses: number[][];
  readonly replays: number;
  readonly gradients: (number[] | null)[];
  readonly inFlight: number;
  readonly problem: string | null;
}

interface Case {
  readonly schedule: string;
  readonly ranks: number;
  readonly tied: boolean;
  readonly capture: boolean;
  readonly fault: string;
  /** The rank of the fault. */
  readonly rank: number;
}

const program = new URL('../../../testing/ranks/captured.mjs', import.meta.url);
const run = async (one: Case): Promise<RankResult[]> =>
  (await runRanks(program, [String(one.ranks), JSON.stringify(one)])) as RankResult[];

describe.each([
  ['1F1B', 2, true],
  ['DualPipeV', 2, false],
  ['InterleavedZeroBubble', 3, true],
] as const)('%s on %i threads, tied: %s', (schedule, ranks, tied) => {
  const sound = { schedule, ranks, tied, capture: true, fault: 'none', rank: 0 };
  let plain: readonly RankResult[] = [];
  beforeAll(async () => {
    plain = await run({ ...sound, capture: false });
  });

  test('the second step is recorded, it and the later ones are one call', async () => {
    const results = await run(sound);
    expect(results.map(({ problem }) => problem)).toEqual(results.map(() => null));
    expect(results.map(({ replays }) => replays)).toEqual([3, ...Array.from({ length: ranks - 1 }, () => 0)]);
    expectSame(results, plain);
  });

  test.each([
    ['prepare', ranks - 1, `rank ${ranks - 1}: no memory`],
    ['begin', 0, 'rank 0: no recording begins'],
    ['forward', 0, 'rank 0, slot '],
    ['forward', ranks - 1, `rank ${ranks - 1}, slot `],
    ['backward', 0, 'this hook waits for the GPU'],
    ['backward', ranks - 1, 'this hook waits for the GPU'],
    ['end', 0, 'rank 0: no recording ends'],
  ] as const)(
    'a recording that fails (%s, on rank %i) is given up by all, and nothing is left over',
    async (fault, rank, reason) => {
      const results = await run({ ...sound, fault, rank });
      const [first] = results;
      expect(first!.problem).toContain(reason);
      expect(results.map(({ problem }) => problem)).toEqual(results.map(() => first!.problem));
      expect(results.map(({ replays }) => replays)).toEqual(results.map(() => 0));
      expectSame(results, plain);
    },
  );
});

function expectSame(results: readonly RankResult[], plain: readonly RankResult[]): void {
  const exact = ({ losses, inFlight }: RankResult): unknown => ({ losses, inFlight });
  expect(results.map(exact)).toEqual(plain.map(exact));
  const numbers = (of: readonly RankResult[]): number[] =>
    of.flatMap(({ gradients }) => gradients.flatMap((gradient) => gradient ?? [Number.NaN]));
  const expected = numbers(plain);
  // A recorded gradient is added to those of earlier steps as a whole, and not one microbatch after another.
  const distances = numbers(results).map((value, i) =>
    Number.isNaN(expected[i]) ? 0 : Math.abs(value - expected[i]!),
  );
  expect(distances).toHaveLength(expected.length);
  expect(Math.max(...distances)).toBeLessThan(1e-12);
}
