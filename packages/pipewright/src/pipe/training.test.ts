/** @file Exported models, cut into stages, train under every schedule on thread ranks as the unsplit graph does alone. */
import { buildSchedule, scheduleDefinitions } from '@pipewright/schedule';
import { describe, expect, test } from 'vitest';
import { runRanks } from '../../testing/launch.ts';

interface Case {
  readonly schedule: string;
  readonly model: string;
  readonly stages: number;
  readonly stageToRank: readonly number[];
  readonly microbatches: number;
  readonly multiUse?: 'replicate' | 'transmit';
}

interface Result {
  readonly losses: readonly number[];
  /** By stage and the parameter's first name. */
  readonly grads: Readonly<Record<string, readonly number[]>>;
  readonly weights: Readonly<Record<string, readonly number[]>>;
  /** Tensors alive after each step. */
  readonly live?: readonly number[];
}

const ranksFile = new URL('../../testing/ranks/graph.mjs', import.meta.url);
const schedules = scheduleDefinitions.filter((definition) => definition.hasBackward);

function casesFor(ranks: number): Case[] {
  return schedules.flatMap(({ name }, i) => {
    const microbatches = 2 * ranks;
    const { stages, stageToRank } = buildSchedule(name, { ranks, microbatches });
    const multiUse = i % 2 === 0 ? 'replicate' : 'transmit';
    const both = ['gpt2_dyn', 'llama_dyn'];
    const models = [...(ranks === 2 ? both : [both[i % 2] as string]), ...(stages === 4 ? ['split_mlp'] : [])];
    return models.map((model): Case => ({ schedule: name, model, stages, stageToRank, microbatches, multiUse }));
  });
}

/** Runs all cases on thread ranks in a process of their own: `results[rank][case]`. */
async function onThreads(ranks: number, cases: readonly Case[]): Promise<Result[][]> {
  return (await runRanks(ranksFile, [String(ranks), JSON.stringify(cases)])) as Result[][];
}

function difference(a: readonly number[], b: readonly number[] | undefined): number {
  if (a.length !== b?.length) return Number.POSITIVE_INFINITY;
  return a.reduce((most, value, i) => Math.max(most, Math.abs(value - (b[i] as number))), 0);
}

describe.each([2, 4])('%i thread ranks', (ranks) => {
  const cases = casesFor(ranks);

  test('equal plain training of the unsplit graph, under every schedule', async () => {
    const { plain } = (await import(ranksFile.href)) as { plain(one: Case): Result };
    const oracles = new Map<string, Result>();
    for (const one of cases) if (!oracles.has(one.model)) oracles.set(one.model, plain(one));
    const results = await onThreads(ranks, cases);
    cases.forEach((one, i) => {
      const where = `${one.schedule} ${one.model} in ${one.stages} stages, ${one.multiUse}`;
      const oracle = oracles.get(one.model) as Result;
      const parts = results.map((ofRank) => ofRank[i] as Result);
      expect(
        difference(
          parts.flatMap((part) => part.losses),
          oracle.losses,
        ),
        `${where}: losses`,
      ).toBeLessThan(1e-12);
      for (const what of ['grads', 'weights'] as const) {
        const all = Object.entries(Object.assign({}, ...parts.map((part) => part[what])) as Result['grads']);
        const names = new Set(all.map(([key]) => key.replace(/^\d+ /, '')));
        expect([...names].sort(), `${where}: ${what}`).toEqual(Object.keys(oracle[what]).sort());
        for (const [key, values] of all)
          expect(
            difference(values, oracle[what][key.replace(/^\d+ /, '')]),
            `${where}: ${what} of ${key}`,
          ).toBeLessThan(1e-12);
      }
      for (const { live = [] } of parts) expect(live[1], `${where}: tensors left by a step`).toBe(live[0]);
    });
  }, 180_000);
});
