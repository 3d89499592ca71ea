/** @file The lock between processes: one at a time, the dead do not hold it, and the living are waited for. */
import { type ChildProcess, spawn } from 'node:child_process';
import { existsSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { hostname, tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterEach, beforeEach, expect, test } from 'vitest';
import { acquireLock, type Holder, isAlive, LockError, processStart } from './lock.ts';

let dir: string;
let path: string;
beforeEach(() => {
  dir = mkdtempSync(join(tmpdir(), 'lock-'));
  path = join(dir, 'a.lock');
});
afterEach(() => rmSync(dir, { recursive: true }));

const what = 'testing';

function holder(values: Partial<Holder>): string {
  const me = { id: 'x', pid: process.pid, started: processStart(process.pid), host: hostname(), what };
  return JSON.stringify({ ...me, ...values });
}

test('is taken, given back and taken again', async () => {
  const first = await acquireLock(path, { what });
  expect(existsSync(path)).toBe(true);
  first.release();
  first.release();
  expect(existsSync(path)).toBe(false);
  (await acquireLock(path, { what })).release();
});

test('waits for a living holder and says for whom', async () => {
  const heard: string[] = [];
  const first = await acquireLock(path, { what: 'compiling' });
  const second = acquireLock(path, { what, onWait: (message) => heard.push(message) });
  setTimeout(() => first.release(), 150);
  (await second).release();
  expect(heard).toEqual([`waiting for process ${process.pid} on ${hostname()} (compiling)`]);
});

test('gives up after the time limit, with the way out', async () => {
  const first = await acquireLock(path, { what: 'compiling' });
  const error = await acquireLock(path, { what, waitMs: 10 }).catch((caught: unknown) => caught);
  expect(error).toBeInstanceOf(LockError);
  expect((error as LockError).message).toContain('(compiling) still holds');
  expect((error as LockError).message).toContain('delete the file');
  first.release();
});

test.each([
  ['whose process is gone', { pid: 2 ** 22 + 1 }],
  ['whose process id now belongs to another process', { started: '1' }],
])('is taken over from a holder %s', async (_, values) => {
  writeFileSync(path, holder(values));
  const lock = await acquireLock(path, { what, waitMs: 1000 });
  expect((JSON.parse(readFileSync(path, 'utf8')) as Holder).pid).toBe(process.pid);
  lock.release();
});

test('is taken over when nobody wrote it', async () => {
  writeFileSync(path, 'not ours');
  (await acquireLock(path, { what, waitMs: 1000 })).release();
});

test('a holder on another machine is believed', async () => {
  writeFileSync(path, holder({ host: 'elsewhere', pid: 2 ** 22 + 1 }));
  await expect(acquireLock(path, { what, waitMs: 10 })).rejects.toThrow('on elsewhere (testing) still holds');
});

test('a release does not remove the lock of somebody else', async () => {
  const lock = await acquireLock(path, { what });
  writeFileSync(path, holder({ id: 'other' }));
  lock.release();
  expect(existsSync(path)).toBe(true);
});

test('isAlive knows this process and not a made-up one', () => {
  expect(isAlive(process.pid, processStart(process.pid))).toBe(true);
  expect(isAlive(process.pid, '1')).toBe(processStart(process.pid) === '');
  expect(isAlive(2 ** 22 + 1, '1')).toBe(false);
});

/** Takes the lock again and again; whoever finds another one inside reports it. */
const CONTENDER = `
const { acquireLock } = await import(process.argv[1]);
const { openSync, unlinkSync, writeFileSync, readFileSync, appendFileSync } = await import('node:fs');
const [, , path, inside, log] = process.argv;
const { setTimeout: sleep } = await import('node:timers/promises');
for (let i = 0; i < 12; i++) {
  const lock = await acquireLock(path, { what: 'contending' });
  writeFileSync(inside, String(process.pid));
  await sleep(Math.random() * 6);
  if (readFileSync(inside, 'utf8') !== String(process.pid)) appendFileSync(log, 'two at once\\n');
  lock.release();
}
appendFileSync(log, 'finished\\n');`;

test('processes that are killed at random moments never let two in at once, nor block the others', async () => {
  const module = new URL('../../../../../scripts/generated/lock.mjs', import.meta.url).href;
  const [inside, log] = [join(dir, 'inside'), join(dir, 'log')];
  writeFileSync(log, '');
  const start = (): ChildProcess =>
    spawn(process.execPath, ['--input-type=module', '-e', CONTENDER, module, path, inside, log], { stdio: 'inherit' });
  const ended = (child: ChildProcess): Promise<void> => new Promise((resolve) => child.once('exit', () => resolve()));
  const doomed = Array.from({ length: 4 }, start);
  const survivors = Array.from({ length: 3 }, start);
  for (const child of doomed) setTimeout(() => child.kill('SIGKILL'), 100 + Math.random() * 400);
  await Promise.all([...doomed, ...survivors].map(ended));
  const lines = readFileSync(log, 'utf8').trim().split('\n');
  expect(lines).not.toContain('two at once');
  expect(lines.length).toBeGreaterThanOrEqual(survivors.length);
});
