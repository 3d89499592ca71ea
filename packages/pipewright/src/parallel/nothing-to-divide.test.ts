/** @file Stages beside divided ones that have nothing to divide: their losses count for all replicas, and they cannot be left out. */
import { expect, test } from 'vitest';
import { casesOnThreads } from '../../testing/launch.ts';

interface Case {
  readonly wrap: 'replicate' | 'optimizer' | 'gradients' | 'parameters';
  readonly last: 'frozen' | 'empty';
  readonly schedule: string;
  readonly stages: number;
  readonly leftOut?: boolean;
}
interface Result {
  readonly grads: readonly (readonly [stage: number, grads: readonly (readonly number[])[]])[];
  readonly replica: number;
  readonly error?: string;
}

const program = new URL('../../testing/ranks/parallel/nothing-to-divide.mjs', import.meta.url);
const { plain } = (await import(program.href)) as { plain(one: Case): number[][] };
const wraps = ['replicate', 'optimizer', 'gradients', 'parameters'] as const;
const cases = wraps.flatMap((wrap) =>
  (['frozen', 'empty'] as const).flatMap((last): Case[] => [
    { wrap, last, schedule: '1F1B', stages: 2 }, // it is alone on its rank
    { wrap, last, schedule: 'LoopedBFS', stages: 4 }, // beside a stage that is divided
  ]),
);

/** The gradients of all stages, of shards the first rank's before the second's. */
function gathered(ranks: readonly Result[], { wrap, stages }: Case): number[][] {
  return Array.from({ length: stages }, (_, stage) => {
    const held = ranks.flatMap(({ grads, replica }) =>
      grads.flatMap(([index, own]) => (index === stage ? [{ replica, own }] : [])),
    );
    const [first, second] = [0, 1].map((replica) => held.find((each) => each.replica === replica)!.own);
    return first!.map((numbers, i) => (wrap === 'replicate' ? [...numbers] : [...numbers, ...second![i]!]));
  }).flat();
}

test('gradients are those of plain training', async () => {
  const ranks = await casesOnThreads<Result>(program, 4, cases);
  cases.forEach((one, i) => {
    const results = ranks.map((rank) => rank[i]!);
    expect(
      results.map(({ error }) => error ?? ''),
      JSON.stringify(one),
    ).toEqual(['', '', '', '']);
    const [got, want] = [gathered(results, one), plain(one)];
    expect(
      got.map((each) => each.length),
      JSON.stringify(one),
    ).toEqual(want.map((each) => each.length));
    const off = got.flatMap((each, p) => each.map((value, j) => Math.abs(value - want[p]![j]!)));
    expect(Math.max(...off), JSON.stringify(one)).toBeLessThan(1e-12);
  });
});

test('one that is left out is refused on all ranks of its pipeline', async () => {
  const left = wraps.map((wrap): Case => ({ wrap, last: 'empty', schedule: '1F1B', stages: 2, leftOut: true }));
  for (const results of await casesOnThreads<Result>(program, 4, left))
    for (const { error } of results)
      expect(error).toMatch(/^NO_AGREEMENT .*stage 1 is neither replicated nor sharded, stage 0 is/);
});
