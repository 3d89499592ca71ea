/** @file What one layout saves, another loads: bitwise, and three more steps give the same. PIPEWRIGHT_ALL_LAYOUTS=1 takes all pairs. */
import { mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterAll, expect, test } from 'vitest';
import { compare, type Layout, load, nameOf, type RankResult, save } from '../../testing/checkpoint/layouts.ts';

const folder = mkdtempSync(join(tmpdir(), 'pipewright-checkpoint-'));
afterAll(() => rmSync(folder, { recursive: true }));

const everything = process.env['PIPEWRIGHT_ALL_LAYOUTS'] === '1';
const all: Layout[] = [1, 2, 4].flatMap((pp) =>
  ['1F1B', 'Interleaved1F1B', 'ZBVZeroBubble'].flatMap((schedule) => [
    { pp, dp: 1, schedule },
    { pp, dp: 2, schedule },
    { pp, dp: 2, schedule, sharded: true },
  ]),
);
const some: Layout[] = [
  { pp: 1, dp: 1, schedule: '1F1B' },
  { pp: 2, dp: 2, schedule: 'ZBVZeroBubble', sharded: true },
  { pp: 4, dp: 1, schedule: 'Interleaved1F1B' },
];
const saved = everything ? all : some;
const loading = everything ? all : [{ pp: 1, dp: 2, schedule: '1F1B' }, ...some.slice(0, 2)];

test('parameters, optimizer, generators, loader and counters are the same at another layout, and so is what follows', async () => {
  const results: RankResult[][] = [];
  for (const layout of saved) results.push(await save(layout, folder));
  let pairs = 0;
  for (const layout of loading) {
    const loaded = await load(layout, saved, folder);
    saved.forEach((from, i) => {
      const problems = compare(results[i] ?? [], loaded[i] ?? [], nameOf(from) === nameOf(layout));
      pairs++;
      expect(problems, `${nameOf(from)} loaded at ${nameOf(layout)}`).toEqual([]);
    });
  }
  expect(pairs).toBe(saved.length * loading.length);
}, 3_600_000);

test('a factored state (Adafactor) is the same at another layout; with shards, where each would have factors of its own, the optimizer is refused', async () => {
  const optimizer = 'Adafactor' as const;
  const from: Layout = { pp: 2, dp: 1, schedule: 'ZBVZeroBubble', optimizer };
  const to: Layout = { pp: 1, dp: 2, schedule: '1F1B', optimizer };
  const before = await save(from, folder);
  expect(before[0]?.values['blocks.0.linear.weight/row_var']?.length).toBe(6);
  const [after] = await load(to, [from], folder);
  expect(compare(before, after ?? [], false)).toEqual([]);
  const refusal =
    /Adafactor: a parameter is this rank's part of a sharded one, .* and Adafactor computes with whole matrices/;
  await expect(save({ ...to, sharded: true }, folder)).rejects.toThrow(refusal);
  await expect(load({ ...to, sharded: true }, [from], folder)).rejects.toThrow(refusal);
}, 600_000);
