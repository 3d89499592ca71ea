/** @file Checkpoints that were changed: a flipped bit in any file is found and named, and no manifest or index does more than an error. */
import { cpSync, mkdtempSync, readdirSync, readFileSync, rmSync, statSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { optim, TorchError } from '@pipewright/torch';
import { afterAll, beforeAll, expect, test } from 'vitest';
import { SmallRun } from '../../../testing/checkpoint/small-run.ts';
import { PipelineError } from '../../base/errors.ts';
import { findCheckpoint } from '../format/folder.ts';
import { formatManifest, type Manifest, parseManifest } from '../format/manifest.ts';
import { loadWeights } from '../weights/weights.ts';
import { saveCheckpoint } from '../writing/save.ts';
import { loadCheckpoint } from './load.ts';
import { verifyCheckpoint } from './verify.ts';

const root = mkdtempSync(join(tmpdir(), 'pipewright-damage-'));
afterAll(() => rmSync(root, { recursive: true }));
const run = new SmallRun();
const folder = join(root, 'run');
let place = '';
beforeAll(() => {
  run.value = 5;
  place = saveCheckpoint(folder, { ...run.state, step: 5, files: { 'config.json': '{}' }, user: { a: [1, 2] } }).wait()
    .path;
});

/** A small generator of numbers, so that every run has the same damage. */
function numbersFrom(seed: number): (below: number) => number {
  let state = seed;
  return (below) => {
    state = (Math.imul(state, 1664525) + 1013904223) >>> 0;
    return Math.floor((state / 2 ** 32) * below);
  };
}

/** What a load does: nothing, or an error of ours. */
function attempt(body: () => unknown): PipelineError | TorchError | null {
  try {
    body();
    return null;
  } catch (error) {
    if (error instanceof PipelineError || error instanceof TorchError) return error;
    throw error;
  }
}

test('a flipped bit in any file is refused by the name of the file, and nothing was loaded', () => {
  const files = [...readdirSync(place).map((name) => join(place, name)), join(folder, 'latest')];
  expect(files.length).toBe(6);
  for (const path of files) {
    const sound = readFileSync(path);
    const bits = sound.length * 8;
    const step = Math.max(1, Math.floor(bits / 60));
    for (let bit = 0; bit < bits; bit += step) {
      const changed = Buffer.from(sound);
      changed[bit >> 3]! ^= 1 << (bit & 7);
      writeFileSync(path, changed);
      run.value = 7;
      const error = attempt(() => loadCheckpoint(folder, run.state));
      expect(error?.message, `${path}, bit ${bit}`).toContain(path);
      expect(run.value).toBe(7);
      if (path.startsWith(place) && !path.endsWith('manifest.json'))
        expect(verifyCheckpoint(place).map(({ file }) => join(place, file))).toEqual([path]);
    }
    writeFileSync(path, sound);
  }
  expect(loadCheckpoint(folder, run.state).step).toBe(5);
  expect(run.value).toBe(5);
});

test('state of another kind of optimizer is refused, and nothing was loaded', () => {
  run.value = 7;
  const parameters = run.state.stages.module.parameters();
  const optimizer = new optim.Adagrad(parameters, { lr: 0.25 });
  expect(() => loadCheckpoint(folder, { ...run.state, optimizer })).toThrow(
    /^loadCheckpoint: the checkpoint's state of optimizer 0 is not for this one: Adagrad.loadStateDict: .* which Adagrad does not remember/,
  );
  expect(run.value).toBe(7);
  expect(optimizer.paramGroups[0]?.lr).toBe(0.25);
});

test('files that are short, long or gone are named', () => {
  const copy = join(root, 'short');
  for (const name of readdirSync(place)) {
    cpSync(place, copy, { recursive: true });
    const path = join(copy, name);
    writeFileSync(path, readFileSync(path).subarray(0, statSync(path).size - 1));
    expect(attempt(() => loadCheckpoint(copy, run.state))?.message).toContain(path);
    cpSync(place, copy, { recursive: true });
    rmSync(path);
    expect(attempt(() => loadCheckpoint(copy, run.state))?.message).toContain(name === 'manifest.json' ? copy : path);
    rmSync(copy, { recursive: true });
  }
});

const odd = [
  null,
  -1,
  0,
  1.5,
  1e300,
  '',
  'x',
  '../../etc/passwd',
  [],
  {},
  [[]],
  true,
  2 ** 53,
  '__proto__',
  [-1],
  ['a'],
];

/** Replaces, removes or adds something somewhere. */
function spoil(value: unknown, pick: (below: number) => number): unknown {
  if (typeof value !== 'object' || value === null || pick(4) === 0) return odd[pick(odd.length)];
  if (Array.isArray(value)) {
    const copy: unknown[] = [...(value as unknown[])];
    if (copy.length === 0 || pick(5) === 0) return pick(2) === 0 ? [...copy, odd[pick(odd.length)]] : copy.slice(1);
    const at = pick(copy.length);
    copy[at] = spoil(copy[at], pick);
    return copy;
  }
  const record = { ...(value as Record<string, unknown>) };
  const keys = Object.keys(record);
  const key = keys[pick(keys.length)] ?? 'x';
  if (pick(6) === 0) delete record[key];
  else if (pick(8) === 0) record[`${key}x`] = record[key];
  else record[key] = spoil(record[key], pick);
  return record;
}

test('1,000 spoilt manifests and indexes give errors only', () => {
  const copy = join(root, 'fuzz');
  cpSync(place, copy, { recursive: true });
  const pick = numbersFrom(11);
  const { manifest } = findCheckpoint(place);
  const text = readFileSync(join(place, 'manifest.json'), 'utf8');
  const index = readFileSync(join(place, 'model.safetensors.index.json'), 'utf8');
  let refused = 0;
  for (let i = 0; i < 1000; i++) {
    if (i % 4 === 0) {
      // Bytes of the text.
      const bytes = Buffer.from(text);
      for (let n = 0; n <= pick(4); n++) bytes[pick(bytes.length)] = pick(256);
      writeFileSync(join(copy, 'manifest.json'), pick(10) === 0 ? bytes.subarray(0, pick(bytes.length)) : bytes);
    } else if (i % 4 < 3) {
      // Another content, with the right hash.
      let changed: unknown = manifest;
      for (let n = 0; n <= pick(3); n++) changed = spoil(changed, pick);
      writeFileSync(join(copy, 'manifest.json'), formatManifest(changed as Manifest));
    } else {
      const changed =
        pick(2) === 0 ? JSON.stringify(spoil(JSON.parse(index), pick)) : index.slice(0, pick(index.length));
      writeFileSync(join(copy, 'model.safetensors.index.json'), changed);
      if (attempt(() => loadWeights(copy, { stages: run.stages })) !== null) refused++;
      writeFileSync(join(copy, 'model.safetensors.index.json'), index);
      continue;
    }
    if (attempt(() => loadCheckpoint(copy, run.state)) !== null) refused++;
    attempt(() => verifyCheckpoint(copy));
  }
  // What was changed may be of no importance: a text of the user, a name that nobody asks for.
  expect(refused).toBeGreaterThan(800);
});

test('a manifest of another version says so', () => {
  const { manifest } = findCheckpoint(place);
  const other = formatManifest({ ...manifest, version: 99 });
  expect(() => parseManifest(other, 'm.json')).toThrow('its version is 99, this program reads 2');
});
