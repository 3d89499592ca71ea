/** @file Training runs of PyTorch's own pipeline (testdata/numerics.json): losses, gradients and weights must be the same. */
import { readFileSync } from 'node:fs';
import { buildSchedule } from '@pipewright/schedule';
import { expect, test } from 'vitest';
import { type TrainingCase, type TrainingResult, trainOnThreads } from '../../testing/launch.ts';

interface Run {
  readonly schedule: string;
  readonly ranks: number;
  readonly stagesPerRank: number;
  readonly microbatches: number;
  readonly scaleGrads: boolean;
  /** By step and microbatch. */
  readonly losses: number[][];
  /** After the first step: weight and bias of each block. */
  readonly grads: Record<string, [number[], number[]]>;
  /** After the last step. */
  readonly weights: Record<string, number[]>;
}

const golden = JSON.parse(readFileSync(new URL('../../../../testdata/numerics.json', import.meta.url), 'utf8')) as {
  readonly model: { batch: number; layers: number; lr: number };
  readonly runs: Run[];
};

function caseOf({ schedule, ranks, stagesPerRank, microbatches, scaleGrads }: Run): TrainingCase {
  const { stages, stageToRank } = buildSchedule(schedule, { ranks, stagesPerRank, microbatches });
  const rate = scaleGrads ? golden.model.lr : golden.model.lr / 200;
  const rows = golden.model.batch;
  return { schedule, model: 'mlp', ranks, stages, stageToRank, microbatches, rows, sameBatch: true, scaleGrads, rate };
}

function largest(a: readonly number[], b: readonly number[]): number {
  expect(a.length).toBe(b.length);
  return Math.max(...a.map((value, i) => Math.abs(value - (b[i] as number))));
}

/** The values of a block, whichever stage and layer it became. */
function ofBlock(all: Record<string, number[] | null>, block: number, what: string, stages: number): number[] {
  const perStage = golden.model.layers / stages;
  const name = `${Math.floor(block / perStage)}.layers.${block % perStage}.${what}`;
  expect(Object.keys(all)).toContain(name);
  return all[name]!;
}

test.each([...new Set(golden.runs.map((run) => run.ranks))])('runs on %i ranks', async (ranks) => {
  const runs = golden.runs.filter((run) => run.ranks === ranks);
  const cases = runs.map(caseOf);
  const results = await trainOnThreads(ranks, cases);
  runs.forEach((run, i) => {
    const where = `${run.schedule} x ${run.stagesPerRank}, ${run.microbatches} microbatches`;
    const parts = results.map((ofRank) => ofRank[i] as TrainingResult);
    const losses = parts.map((part) => part.losses.flat()).find((list) => list.length > 0) ?? [];
    expect(largest(losses, run.losses.flat()), `${where}: losses`).toBeLessThan(1e-12);
    const grads: Record<string, number[] | null> = Object.assign({}, ...parts.map((part) => part.grads));
    const weights: Record<string, number[] | null> = Object.assign({}, ...parts.map((part) => part.weights));
    const { stages } = cases[i] as TrainingCase;
    for (const [block, [weight, bias]] of Object.entries(run.grads)) {
      expect(largest(ofBlock(grads, Number(block), 'weight', stages), weight), where).toBeLessThan(1e-12);
      expect(largest(ofBlock(grads, Number(block), 'bias', stages), bias), where).toBeLessThan(1e-12);
    }
    for (const [block, weight] of Object.entries(run.weights))
      expect(largest(ofBlock(weights, Number(block), 'weight', stages), weight), where).toBeLessThan(1e-12);
  });
});
