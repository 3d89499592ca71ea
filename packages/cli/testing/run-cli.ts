/** @file Runs the program as a user does, in a folder of its own. For tests. */
import { spawnSync } from 'node:child_process';
import { mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { afterAll } from 'vitest';

export const bin: string = fileURLToPath(new URL('../bin/pipewright.js', import.meta.url));

/** The folder in which commands run; gone after the tests of a file. */
export const folder: string = mkdtempSync(join(tmpdir(), 'pipewright-cli-'));
afterAll(() => rmSync(folder, { recursive: true, force: true }));

/** An environment that says nothing about colours and widths. */
export const environment: NodeJS.ProcessEnv = { ...process.env };
for (const name of ['NO_COLOR', 'FORCE_COLOR', 'COLUMNS', 'PIPEWRIGHT_DEBUG']) delete environment[name];

/** What a run gave. */
export interface Result {
  readonly code: number | null;
  readonly out: string;
  readonly err: string;
}

/** Runs the program with arguments. */
export function run(args: readonly string[], input = '', env: NodeJS.ProcessEnv = environment): Result {
  const options = { cwd: folder, input, env, encoding: 'utf8', timeout: 300_000, killSignal: 'SIGKILL' } as const;
  const { status, stdout, stderr } = spawnSync(process.execPath, [bin, ...args], options);
  return { code: status, out: stdout, err: stderr };
}

/** Runs a command line as one types it; no quoting. */
export function cli(line: string, input = ''): Result {
  return run(line.split(' '), input);
}

/** Runs the program on a machine that has nothing but Node. */
export function runBare(...args: string[]): Result {
  return run(args, '', { PATH: folder, HOME: folder, PIPEWRIGHT_HOME: join(folder, 'state'), NO_COLOR: '1' });
}
