/** @file Ranks that are processes over Gloo: what they save, others load; one of them killed while it saves; files of shards. */
import { cpSync, mkdtempSync, readdirSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterAll, beforeAll, expect, test } from 'vitest';
import {
  compare,
  type Layout,
  load,
  nameOf,
  type RankResult,
  save,
  saveUntilKilled,
} from '../../testing/checkpoint/layouts.ts';
import { convertCheckpoint } from './convert.ts';
import { findCheckpoint, listCheckpoints } from './format/folder.ts';
import { verifyCheckpoint } from './reading/verify.ts';

const folder = mkdtempSync(join(tmpdir(), 'pipewright-processes-'));
afterAll(() => rmSync(folder, { recursive: true }));

const stages: Layout = { pp: 2, dp: 1, schedule: 'ZBVZeroBubble' };
const shards: Layout = { pp: 1, dp: 2, schedule: '1F1B', sharded: true };
const saved: RankResult[][] = [];

beforeAll(async () => {
  for (const layout of [stages, shards]) saved.push(await save(layout, folder, 'processes'));
});

test('processes load what processes and threads have saved, at other layouts', async () => {
  for (const to of [stages, shards]) {
    const loaded = await load(to, [stages, shards], folder, { ranks: 'processes' });
    [stages, shards].forEach((from, i) => {
      const problems = compare(saved[i] ?? [], loaded[i] ?? [], nameOf(from) === nameOf(to));
      expect(problems, `${nameOf(from)} loaded at ${nameOf(to)}`).toEqual([]);
    });
  }
  const [onThreads] = await load(shards, [stages], folder);
  expect(compare(saved[0] ?? [], onThreads ?? [], false)).toEqual([]);
});

test('a flipped bit in any file of any rank is refused by the name of the file', () => {
  for (const layout of [stages, shards]) {
    const { path } = findCheckpoint(join(folder, nameOf(layout)));
    const names = readdirSync(path).sort();
    expect(names).toEqual(
      layout === stages
        ? [
            'manifest.json',
            ...['model-00001-of-00002.safetensors', 'model-00002-of-00002.safetensors', 'model.safetensors.index.json'],
            ...['optimizer-00001-of-00002.safetensors', 'optimizer-00002-of-00002.safetensors'],
          ]
        : [
            'manifest.json',
            'model-00001-of-00001.safetensors', // buffers, all of the first rank
            ...[1, 2].map((i) => `model-parts-0000${i}-of-00002.safetensors`),
            ...[1, 2].map((i) => `optimizer-0000${i}-of-00002.safetensors`),
          ],
    );
    for (const name of names) {
      const copy = join(folder, 'flipped');
      cpSync(path, copy, { recursive: true });
      const file = join(copy, name);
      const sound = readFileSync(file);
      for (let at = 0; at < 10; at++) {
        const changed = Buffer.from(sound);
        changed[Math.floor(((sound.length - 1) * at) / 9)]! ^= 1 << (at % 8);
        writeFileSync(file, changed);
        const where = `${name}, byte ${at} of 9`;
        // The index is written anew by a conversion, which does not read it.
        if (name !== 'model.safetensors.index.json')
          expect(() => convertCheckpoint(copy, join(folder, 'converted')), where).toThrow(file);
        if (name !== 'manifest.json') expect(verifyCheckpoint(copy).map((each) => each.file)).toEqual([name]);
      }
      rmSync(copy, { recursive: true });
    }
    expect(verifyCheckpoint(path)).toEqual([]);
  }
});

test('an index over the files of all stages, and after a conversion of shards', () => {
  const indexOf = (path: string): Record<string, string> =>
    (
      JSON.parse(readFileSync(join(path, 'model.safetensors.index.json'), 'utf8')) as {
        weight_map: Record<string, string>;
      }
    ).weight_map;
  const { path, manifest } = findCheckpoint(join(folder, nameOf(stages)));
  const weights = Object.entries(manifest.tensors).filter(([, { kind }]) => kind !== 'optimizer');
  const index = indexOf(path);
  expect(index).toEqual(Object.fromEntries(weights.map(([name, { pieces }]) => [name, pieces[0]?.file])));
  expect(new Set(Object.values(index)).size).toBe(2);
  const whole = convertCheckpoint(join(folder, nameOf(shards)), join(folder, 'whole'), { files: 2 });
  expect(Object.keys(indexOf(whole)).sort()).toEqual(Object.keys(index).sort());
  expect(verifyCheckpoint(whole)).toEqual([]);
});

test('a process killed while it saves: the job goes on from the old checkpoint or the new one, with the same numbers', async () => {
  for (const [rank, dieAt, step] of [
    [0, 6, 2],
    [1, 4, 2],
    [0, 1000, 3],
  ] as const) {
    const place = join(folder, `killed-${rank}-${dieAt}`);
    const ends = await saveUntilKilled(stages, join(place, nameOf(stages)), { rank, dieAt });
    expect(ends[rank]).toBe(dieAt === 1000 ? 'saved' : 'SIGKILL');
    const { manifest } = findCheckpoint(join(place, nameOf(stages)));
    expect(manifest.step).toBe(step);
    expect(verifyCheckpoint(join(place, nameOf(stages)))).toEqual([]);
    expect(listCheckpoints(join(place, nameOf(stages)))).toContain(`step-0000000${step}`);
    const [again] = await load(stages, [stages], place, { ranks: 'processes', more: 6 - step });
    expect(again?.map(({ after }) => after)).toEqual(saved[0]?.map(({ after }) => after));
    expect(again?.map(({ end }) => end)).toEqual(saved[0]?.map(({ end }) => end));
  }
});
