/** @file A buffer that a stage changes and gives to the next one: each microbatch gets what it was in its own forward. */
import { expect, test } from 'vitest';
import { casesOnProcesses, casesOnThreads } from '../../../testing/launch.ts';
import { type Case, type Found, plain, run } from '../../../testing/ranks/buffers.mjs';

const program = new URL('../../../testing/ranks/buffers.mjs', import.meta.url);
const kinds = ['buffer', 'the buffer itself', 'a view of it', 'running statistics', 'a field'] as const;

function casesOf(schedules: readonly Case['schedule'][]): Case[] {
  return schedules.flatMap((schedule) => [
    ...kinds.map((kind): Case => ({ kind, schedule, isPipe: false })),
    ...kinds.slice(0, 3).map((kind): Case => ({ kind, schedule, isPipe: true })),
  ]);
}

function expectSame(ranks: readonly Found[], one: Case): void {
  const want = plain(one);
  const got = { grads: ranks.flatMap(({ grads }) => grads), outputs: ranks.flatMap(({ outputs }) => outputs) };
  const text = JSON.stringify(one);
  for (const what of ['grads', 'outputs'] as const) {
    expect(
      got[what].map((each) => each.length),
      text,
    ).toEqual(want[what].map((each) => each.length));
    want[what].forEach((values, i) =>
      values.forEach((value, j) => expect(Math.abs(got[what][i]![j]! - value), `${what}, ${text}`).toBeLessThan(1e-12)),
    );
  }
}

test.each(casesOf(['LoopedBFS', 'Interleaved1F1B']))('one rank, $schedule: $kind, of a pipe: $isPipe', (one) => {
  expectSame([run(undefined, one)], one);
});

test.each(Object.entries({ threads: casesOnThreads, processes: casesOnProcesses }))('two %s', async (_name, start) => {
  const cases = casesOf(['GPipe', '1F1B']);
  const ranks = await start<Found>(program, 2, cases);
  cases.forEach((one, i) =>
    expectSame(
      ranks.map((ofRank) => ofRank[i]!),
      one,
    ),
  );
});
