/** @file Every schedule on every kind of ranks against plain training: losses, gradients, weights, evaluations. */
import { describe, expect, test } from 'vitest';
import { casesFor, differences, title } from '../../testing/conformance.mjs';
import { type TrainingResult, trainOnProcesses, trainOnThreads, trainPlainly } from '../../testing/launch.ts';

describe.each([2, 4])('%i ranks', (ranks) => {
  const cases = casesFor(ranks);
  test.each([
    ['threads', trainOnThreads],
    ['processes', trainOnProcesses],
  ] as const)('as %s equal plain training, under every schedule', async (_kind, run) => {
    const [results, oracles] = [await run(ranks, cases), await trainPlainly(cases)];
    cases.forEach((one, i) => {
      const parts = results.map((ofRank) => ofRank[i] as TrainingResult);
      expect(differences(one, parts, oracles[i] as TrainingResult), title(one)).toEqual([]);
    });
  });
});
