/** @file What tests of launching share: the script, folders, and whether processes are still there. */
import type { ChildProcess } from 'node:child_process';
import { existsSync, mkdtempSync, readFileSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterAll } from 'vitest';

/** What the ranks run. */
export const script: URL = new URL('./scenarios.ts', import.meta.url);

/** For ranks that shall come to an end of their own after another one's failure, however busy the machine is. */
export const patient: { readonly graceMs: number } = { graceMs: 60_000 };

/** A folder for files of ranks; gone after the tests of a file. */
export const folder: string = mkdtempSync(join(tmpdir(), 'pipewright-launch-'));
const started = new Set<ChildProcess>();
afterAll(() => {
  for (const child of started) child.kill('SIGKILL');
  rmSync(folder, { recursive: true, force: true });
});

/** Ends a process with the tests of a file, if it has not ended before. */
export function endWithTests<Child extends ChildProcess>(child: Child): Child {
  started.add(child);
  return child;
}

/** How long a condition may take to come true: less than a test may. */
const LIMIT_MS = 300_000;

/** Comes back when `condition` holds. */
export async function until(condition: () => boolean): Promise<void> {
  const began = performance.now();
  while (!condition()) {
    if (performance.now() - began > LIMIT_MS) throw new Error(`not within ${LIMIT_MS} ms: ${condition}`);
    await new Promise((resolve) => setTimeout(resolve, 20));
  }
}

/** The numbers that ranks have written to `name.0`, `name.1` and so on, once all are there. */
export async function numbersOf(name: string, ranks: readonly number[]): Promise<number[]> {
  const read = (): number[] =>
    ranks.map((rank) => (existsSync(`${name}.${rank}`) ? Number(readFileSync(`${name}.${rank}`, 'utf8')) : 0));
  await until(() => read().every((number) => number > 0));
  return read();
}

/** Whether a process is there and not a zombie. */
export function isAlive(pid: number): boolean {
  try {
    return !/^[ZX]/.test(readFileSync(`/proc/${pid}/stat`, 'utf8').replace(/^.*\) /s, ''));
  } catch {
    return false;
  }
}

/** The error of a promise that must fail. */
export async function rejection<T>(promise: Promise<unknown>): Promise<T> {
  try {
    await promise;
  } catch (error) {
    return error as T;
  }
  throw new Error('expected a rejection');
}
