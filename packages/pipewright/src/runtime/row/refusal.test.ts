/** @file A wrong input on one rank: all ranks learn of it, nothing is added to gradients, and the next steps run. */
import { describe, expect, test } from 'vitest';
import { runRanks } from '../../../testing/launch.ts';

interface RankResult {
  readonly codes: (string | null)[];
  readonly kept: [unknown, unknown][];
  readonly gradients: (number[] | null)[];
  readonly inFlight: number;
}

const script = new URL('../../../testing/ranks/refusing.mjs', import.meta.url);
const run = async (one: object): Promise<RankResult[]> =>
  (await runRanks(script, [JSON.stringify(one)])) as RankResult[];

describe.each([
  ['rows', 'threads', '1F1B', 3, false, 'BATCH_TOO_SMALL'],
  ['rows', 'processes', '1F1B', 2, true, 'BATCH_TOO_SMALL'],
  ['shape', 'threads', 'InterleavedZeroBubble', 2, true, 'STEP_FAILED'],
  ['target', 'threads', 'DualPipeV', 2, false, 'BAD_INPUT'],
  ['target', 'processes', 'GPipe', 3, false, 'BAD_INPUT'],
  ['option', 'threads', '1F1B', 2, true, 'UNKNOWN_OPTION'],
  ['outputs', 'threads', '1F1B', 2, false, 'UNKNOWN_OPTION'],
  ['everywhere', 'threads', 'Interleaved1F1B', 2, false, 'BATCH_TOO_SMALL'],
] as const)('%s on %s, %s on %i ranks, tied: %s', (...given) => {
  const [fault, mode, schedule, ranks, tied, code] = given;
  test('is refused on every rank, and two good steps give twice the gradients of one', async () => {
    const results = await run({ fault, mode, schedule, ranks, tied });
    const wrong = results.filter(({ codes }) => codes[1] === code);
    expect(wrong.length).toBe(1);
    for (const { codes, kept, inFlight } of results) {
      expect([codes[0], codes[2]]).toEqual([null, null]);
      expect(codes[1]).toBe(codes[3]);
      expect([code, 'STEP_REFUSED']).toContain(codes[1]);
      for (const [before, after] of kept) expect(after).toEqual(before);
      expect(inFlight).toBe(0);
    }
    for (const { kept, gradients } of results) {
      const [first] = kept[0] as [(number[] | null)[], unknown];
      gradients.forEach((values, i) =>
        values?.forEach((value, j) => expect(value).toBeCloseTo(2 * (first[i]![j] as number), 12)),
      );
    }
  });
});
