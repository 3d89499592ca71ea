/** @file Every schedule on every kind of ranks against plain training: losses, gradients, weights, evaluations. */
import { buildSchedule, scheduleDefinitions } from '@pipewright/schedule';
import { describe, expect, test } from 'vitest';
import {
  type TrainingCase,
  type TrainingResult,
  trainOnProcesses,
  trainOnThreads,
  trainPlainly,
} from '../../testing/launch.ts';

const schedules = scheduleDefinitions.filter((definition) => definition.hasBackward);

function caseOf(name: string, ranks: number, more: Partial<TrainingCase> & { model: string }): TrainingCase {
  const microbatches = more.microbatches ?? 2 * ranks;
  const { stages, stageToRank } = buildSchedule(name, { ranks, microbatches });
  return { schedule: name, ranks, stages, stageToRank, microbatches, rows: 3 * microbatches, ...more };
}

/** All schedules with the plain model; the other models and variations dealt over them. */
function casesFor(ranks: number): TrainingCase[] {
  const variations: (Partial<TrainingCase> & { model: string })[] = [
    { model: 'mlp', evaluate: true },
    { model: 'mlp', accumulate: 2 },
    { model: 'mlp', rows: 3 * 2 * ranks + 1 },
    { model: 'skip' },
    { model: 'tied', accumulate: 2, clip: 0.05 },
    { model: 'frozen' },
    { model: 'tree', evaluate: true },
    { model: 'checkpoint' },
    { model: 'dropout' },
    { model: 'named', rows: 2 * 2 * ranks + 3, evaluate: true },
    { model: 'named', ready: true, evaluate: true },
  ];
  return schedules.flatMap(({ name }) => variations.map((variation) => caseOf(name, ranks, variation)));
}

const title = (one: TrainingCase): string =>
  `${String(one.schedule)} ${one.model}${one.accumulate === undefined ? '' : ' accumulated'}${one.rows % one.microbatches === 0 ? '' : ' uneven'}${one.ready === true ? ' ready' : ''}`;

/** The largest difference between numbers, relative to 1. */
function difference(a: readonly number[], b: readonly number[]): number {
  if (a.length !== b.length) return Number.POSITIVE_INFINITY;
  return a.reduce((most, value, i) => Math.max(most, Math.abs(value - (b[i] as number))), 0);
}

function compare(one: TrainingCase, parts: readonly TrainingResult[], oracle: TrainingResult): void {
  const where = title(one);
  const withLosses = parts.filter((part) => part.losses.length > 0 && (part.losses[0] as number[]).length > 0);
  expect(withLosses.length, `${where}: ranks with losses`).toBe(1);
  const [last] = withLosses as [TrainingResult];
  expect(difference(last.losses.flat(), oracle.losses.flat()), `${where}: losses`).toBeLessThan(1e-12);
  expect(difference((last.parts ?? []).flat(), oracle.evals.flat()), `${where}: outputs of microbatches`).toBeLessThan(
    1e-12,
  );
  for (const what of ['grads', 'weights'] as const) {
    const all: Record<string, number[] | null> = Object.assign({}, ...parts.map((part) => part[what]));
    expect(Object.keys(all).sort(), `${where}: names`).toEqual(Object.keys(oracle[what]).sort());
    for (const [name, value] of Object.entries(oracle[what])) {
      const mine = all[name] as number[] | null;
      if (value === null || mine === null) expect(mine, `${where}: ${what} of ${name}`).toBe(value);
      else expect(difference(mine, value), `${where}: ${what} of ${name}`).toBeLessThan(1e-12);
    }
  }
  for (const part of parts) {
    expect(difference(part.norms, oracle.norms), `${where}: norms of the gradients`).toBeLessThan(1e-12);
    expect(difference(part.evals.flat(), oracle.evals.flat()), `${where}: evaluations`).toBeLessThan(1e-12);
    expect(part.inFlight, `${where}: microbatches still held`).toBe(0);
    expect(part.leaked, `${where}: tensors left`).toBe(0);
  }
}

describe.each([2, 4])('%i ranks', (ranks) => {
  const cases = casesFor(ranks);
  test.each([
    ['threads', trainOnThreads],
    ['processes', trainOnProcesses],
  ] as const)('as %s equal plain training, under every schedule', async (_kind, run) => {
    const [results, oracles] = [await run(ranks, cases), await trainPlainly(cases)];
    cases.forEach((one, i) => {
      compare(
        one,
        results.map((ofRank) => ofRank[i] as TrainingResult),
        oracles[i] as TrainingResult,
      );
    });
  });
});
