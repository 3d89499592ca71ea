/** @file A stage that changes what it received in place, on thread ranks and on processes: one answer, that of the model. */
import { expect, test } from 'vitest';
import { casesOnProcesses, casesOnThreads } from '../../testing/launch.ts';

const cases = ['same', 'view', 'copy'].flatMap((share) =>
  (share === 'view' ? [false] : [false, true]).map((transposed) => ({ share, transposed })),
);
const program = new URL('../../testing/ranks/in-place.mjs', import.meta.url);

const kinds: Record<string, () => Promise<unknown>> = {
  threads: () => casesOnThreads(program, 3, cases),
  processes: () => casesOnProcesses(program, 3, cases),
};

test.each(Object.keys(kinds))(
  'a received input changed in place leaves a skip connection alone, on three %s',
  async (kind) => {
    const ranks = (await kinds[kind]?.()) as { result: number[] | null; given: number[] }[][];
    cases.forEach((one, i) => {
      // x + 1 is 2: the middle stage makes 200 of it, the last one adds the 2 that the first one gave it.
      expect(
        ranks.map((ofRank) => ofRank[i]?.result),
        JSON.stringify(one),
      ).toEqual([null, null, Array(8).fill(202)]);
      for (const ofRank of ranks) expect(ofRank[i]?.given).toEqual(Array(8).fill(1));
    });
  },
);
