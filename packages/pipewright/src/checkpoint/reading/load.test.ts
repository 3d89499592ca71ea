/** @file Loading: what is put back, and that an error leaves the tensors of a run as they were. */
import { mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { Generator, optim, Tensor, tensor } from '@pipewright/torch';
import { afterAll, beforeEach, expect, test } from 'vitest';
import { SmallRun } from '../../../testing/checkpoint/small-run.ts';
import { Dataset } from '../../data/dataset.ts';
import { DataLoader } from '../../data/loader.ts';
import { saveCheckpoint } from '../writing/save.ts';
import type { LoadOptions } from './load.ts';
import { loadCheckpoint } from './load.ts';

const root = mkdtempSync(join(tmpdir(), 'pipewright-load-'));
afterAll(() => rmSync(root, { recursive: true }));
let folder = '';
beforeEach(() => {
  folder = mkdtempSync(join(root, 'case-'));
});

/** The rates of an optimizer's groups, and whether they are tensors. */
const ratesOf = (optimizer: optim.AdamW): unknown[] =>
  optimizer.paramGroups.map(({ lr }) => (lr instanceof Tensor ? { tensor: lr.item().toFixed(3) } : lr));

test('a rate that is a tensor, of a group of several parameters, comes back', () => {
  const { stages } = new SmallRun();
  const make = (lr: number | Tensor): optim.AdamW => new optim.AdamW(stages.module.parameters(), { lr });
  saveCheckpoint(folder, { stages, optimizer: make(tensor(0.03)), step: 1 }).wait();
  const [held, plain] = [make(tensor(0.5)), make(0.5)];
  const [before] = held.paramGroups.map(({ lr }) => lr);
  loadCheckpoint(folder, { stages, optimizer: held });
  expect(ratesOf(held)).toEqual([{ tensor: '0.030' }]);
  expect(held.paramGroups[0]?.lr).toBe(before);
  loadCheckpoint(folder, { stages, optimizer: plain });
  expect(plain.paramGroups[0]?.lr).toBeCloseTo(0.03);
});

test('parameters that were saved with different rates, as tensors, cannot be one group', () => {
  const { stages } = new SmallRun();
  const parameters = stages.module.parameters();
  const optimizer = new optim.AdamW(parameters.map((each, i) => ({ params: [each], lr: tensor(0.1 * (i + 1)) })));
  saveCheckpoint(folder, { stages, optimizer, step: 1 }).wait();
  expect(() => loadCheckpoint(folder, { stages, optimizer: new optim.AdamW(parameters, { lr: 1 }) })).toThrow(
    /a group of optimizer 0 has parameters that were saved with different options, '0.bias' among them/,
  );
});

test('an error about a small state comes before any tensor changes', () => {
  const run = new SmallRun();
  const loaderOf = (seed: number): DataLoader => new DataLoader(new Numbers(), { shuffle: true, seed });
  const user = { stateDict: () => ({ kind: 'none' }), loadStateDict: () => undefined };
  run.value = 1;
  saveCheckpoint(folder, { ...run.state, loader: loaderOf(1), generators: { user }, step: 1 }).wait();
  const picky = {
    ...user,
    loadStateDict: () => {
      throw new Error('not mine');
    },
  };
  const cases: [Partial<LoadOptions>, RegExp][] = [
    [{ scheduler: new optim.StepLR(run.optimizer, 2) }, /'scheduler' was not saved; leave it out, or save it too/],
    [{ loader: loaderOf(2) }, /the state is of the order 'RandomSampler\(10 of 10, seed 1\)', this loader has/],
    [{ generators: { user: new Generator() } }, /what was saved as 'generators.user' is no generator/],
    [{ generators: { user: picky } }, /not mine/],
  ];
  for (const [options, message] of cases) {
    run.value = 7;
    const rate = (run.optimizer.paramGroups[0]!.lr = 0.7);
    const moments = (): unknown => Object.values(run.optimizer.stateDict().state).map((each) => String(each['expAvg']));
    const before = moments();
    const loader = loaderOf(1);
    loader.nextBatch();
    expect(() => loadCheckpoint(folder, { ...run.state, loader, ...options })).toThrow(message);
    expect([run.value, run.optimizer.paramGroups[0]?.lr, moments()]).toEqual([7, rate, before]);
    if (!('generators' in options && options.generators?.['user'] === picky))
      expect(loader.stateDict().position).toBe(1);
  }
  const loader = loaderOf(1);
  loader.nextBatch();
  loadCheckpoint(folder, { ...run.state, loader, generators: { user } });
  expect([run.value, loader.stateDict().position]).toEqual([1, 0]);
});

class Numbers extends Dataset<number> {
  readonly length = 10;
  getItem(index: number): number {
    return index;
  }
}
