/** @file Profiles: what is in them, and what happens where the work fails. */
import { existsSync, mkdtempSync, readdirSync, readFileSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { gunzipSync } from 'node:zlib';
import { afterAll, expect, test } from 'vitest';
import { nn, ones, profile, randn, scope } from '../index.ts';

interface TraceEvent {
  readonly ph: string;
  readonly name: string;
  readonly dur?: number;
  readonly args?: { readonly 'Input Dims'?: unknown };
}

const folder = mkdtempSync(join(tmpdir(), 'profile-'));
afterAll(() => rmSync(folder, { recursive: true }));

function eventsOf(text: string): TraceEvent[] {
  return (JSON.parse(text) as { traceEvents: TraceEvent[] }).traceEvents.filter(({ ph }) => ph === 'X');
}

test('the operators of a forward and of its backward, with their times', () => {
  const path = join(folder, 'step.json');
  const layer = new nn.Linear(64, 32);
  const x = randn([16, 64]);
  const value = profile(path, () => {
    const loss = layer.forward(x).relu().sum();
    loss.backward();
    return loss.item();
  });
  expect(value).toBeGreaterThan(0);
  const events = eventsOf(readFileSync(path, 'utf8'));
  const names = new Set(events.map(({ name }) => name));
  for (const name of ['aten::relu', 'aten::sum', 'aten::threshold_backward']) expect(names).toContain(name);
  expect(events.every(({ dur }) => dur === undefined || dur >= 0)).toBe(true);
  expect(events.some(({ args }) => args?.['Input Dims'] !== undefined)).toBe(false);
});

test('compressed, with shapes', () => {
  const path = join(folder, 'shapes.json.gz');
  profile(path, () => scope(() => void ones([3, 5]).mm(ones([5, 2]))), { recordShapes: true });
  const mm = eventsOf(gunzipSync(readFileSync(path)).toString()).find(({ name }) => name === 'aten::mm');
  expect(mm?.args?.['Input Dims']).toEqual([
    [3, 5],
    [5, 2],
  ]);
});

test('work that fails writes nothing, and the next profile works', () => {
  const path = join(folder, 'failed.json');
  const fails = (): void => {
    throw new Error('no luck');
  };
  expect(() => profile(path, fails)).toThrow('no luck');
  expect(() => profile(path, async () => Promise.resolve(1))).toThrow('the function is asynchronous');
  expect(() => profile(path, () => profile(join(folder, 'inner.json'), () => 1))).toThrow('takes a profile already');
  expect(existsSync(path)).toBe(false);
  expect(profile(path, () => ones([2]).sum().item())).toBe(2);
  expect(eventsOf(readFileSync(path, 'utf8')).some(({ name }) => name === 'aten::sum')).toBe(true);
});

test('what cannot be written is found before the work is done', () => {
  let ran = false;
  expect(() => profile(join(folder, 'no', 'such', 'step.json'), () => (ran = true))).toThrow(/there is no folder/);
  expect(ran).toBe(false);
  // @ts-expect-error a number is no path
  expect(() => profile(3, () => 1)).toThrow('profile: the first argument');
  expect(readdirSync(folder).filter((name) => name.includes('tmp'))).toEqual([]);
});
