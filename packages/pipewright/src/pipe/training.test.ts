/** @file Exported models, split into stages, train under every schedule on thread ranks as the unsplit graph does alone. */
import { describe, expect, test } from 'vitest';
import { casesOnThreads } from '../../testing/launch.ts';
import { type Case, type Found, plain } from '../../testing/ranks/graph.mjs';
import { casesFor, problemsOf } from '../../testing/split-graphs.mjs';

const ranksFile = new URL('../../testing/ranks/graph.mjs', import.meta.url);

describe.each([2, 4])('%i thread ranks', (ranks) => {
  const cases = casesFor(ranks);

  test('equal plain training of the unsplit graph, under every schedule', async () => {
    const oracles = new Map<string, Found>();
    for (const one of cases) if (!oracles.has(one.model)) oracles.set(one.model, plain(one));
    const results = await casesOnThreads<Found>(ranksFile, ranks, cases);
    const problems = cases.flatMap((one: Case, i) =>
      problemsOf(
        one,
        results.map((ofRank) => ofRank[i]!),
        oracles.get(one.model)!,
      ),
    );
    expect(cases.length).toBeGreaterThan(10);
    expect(problems).toEqual([]);
  }, 180_000);
});
