/** @file Ranks that make different calls: each of them ends with an error, none with numbers of another call. */
import { describe, expect, test } from 'vitest';
import { casesOnProcesses, casesOnThreads } from '../../../testing/launch.ts';
import { COPY_TAG } from '../../base/tags.ts';
import { callKind, callTag } from './call.ts';

interface Result {
  readonly code: string | null;
  readonly message: string;
  readonly outputs: number[][] | null;
}

const program = new URL('../../../testing/ranks/calls.mjs', import.meta.url);
const step = { method: 'step' } as const;
const evaluation = { method: 'eval' } as const;
const everywhere = { method: 'step', everywhere: true } as const;

describe.each([
  ['an evaluation', 'a step', evaluation, step],
  ['a step', 'an evaluation', step, evaluation],
  ['a step', "a step, returnOutputs: 'everywhere'", step, everywhere],
  ["a step, returnOutputs: 'everywhere'", 'a step', everywhere, step],
] as const)('%s on the first rank, %s elsewhere', (here, there, first, others) => {
  const calls = [
    [step, first, everywhere],
    [step, others, everywhere],
  ];
  const expectErrors = (ranks: readonly Result[][]): void => {
    for (const [before, , after] of ranks) {
      expect(before!.code).toBeNull();
      expect(after!.code).not.toBeNull(); // who waited for nobody in the call before learns of it now
    }
    const found = ranks.flat().filter(({ code }) => code === 'NO_AGREEMENT');
    expect(found.length).toBeGreaterThan(0);
    for (const { message } of found) expect(message).toContain('the ranks make different calls: rank');
    expect(found.some(({ message }) => message.includes(here) && message.includes(there))).toBe(true);
  };

  test.each([2, 3])('on %i threads', async (count) => {
    const ranks = await casesOnThreads<Result[]>(program, count, [{ calls }]);
    expectErrors(ranks.map(([results]) => results!));
  });

  test('on processes', async () => {
    const ranks = await casesOnProcesses<Result[]>(program, 2, [{ calls }]);
    expectErrors(ranks.map(([results]) => results!));
  });

  test('over lanes', async () => {
    const ranks = await casesOnThreads<Result[]>(program, 2, [{ calls, lanes: true }]);
    for (const [results] of ranks) expect(results!.map(({ code }) => code)).toEqual([null, 'NO_AGREEMENT', 'BROKEN']);
  });
});

test.each([0, 1])(
  'a misspelt option beside outputs for all is refused on all ranks, and the next step runs: rank %i',
  async (wrong) => {
    const rightly = [everywhere, everywhere, everywhere];
    const wrongly = [everywhere, { ...everywhere, misspelt: true }, everywhere];
    const calls = wrong === 0 ? [wrongly, rightly] : [rightly, wrongly];
    const ranks = (await casesOnThreads<Result[]>(program, 2, [{ calls }])).map(([results]) => results!);
    ranks.forEach((results, rank) => {
      expect(results.map(({ code }) => code)).toEqual([null, rank === wrong ? 'UNKNOWN_OPTION' : 'STEP_REFUSED', null]);
      expect(results[2]!.outputs).toEqual(ranks[0]![2]!.outputs);
      expect(results[2]!.outputs).not.toBeNull();
      expect(results[2]!.outputs).not.toEqual(results[0]!.outputs);
    });
  },
);

test('calls differ in their tags, which stay between those of one step and those of copies', () => {
  const kinds = [
    callKind(false, {}, true),
    callKind(true, {}, true),
    callKind(true, { sync: false }, true),
    callKind(true, { returnOutputs: 'everywhere', sync: false }, true),
  ];
  expect([...kinds, callKind(true, { sync: false }, false)]).toEqual([0, 1, 5, 7, 1]);
  const tags = new Set([0, 1, 2, 1022, 1023].flatMap((number) => kinds.map((kind) => callTag({ number, kind }))));
  expect(tags.size).toBe(20);
  for (const tag of tags) expect(tag === 0 || (tag >= 2 ** 32 && tag + 2 ** 32 <= COPY_TAG)).toBe(true);
  expect(callTag({ number: 1024, kind: 1 })).toBe(callTag({ number: 0, kind: 1 }));
});
