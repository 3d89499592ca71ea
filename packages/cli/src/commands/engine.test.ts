/** @file `doctor` and `setup` as a user runs them: what was compiled, in a process of its own. */
import { spawnSync } from 'node:child_process';
import { mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { afterAll, expect, test } from 'vitest';

const bin = fileURLToPath(new URL('../../bin/pipewright.js', import.meta.url));
const home = mkdtempSync(join(tmpdir(), 'cli-'));
afterAll(() => rmSync(home, { recursive: true }));

/** On a machine with nothing but Node. */
function run(...args: string[]): { status: number | null; stdout: string; stderr: string } {
  const env = { PATH: home, HOME: home, PIPEWRIGHT_HOME: join(home, 'state'), NO_COLOR: '1' };
  return spawnSync(process.execPath, [bin, ...args], { env, encoding: 'utf8' });
}

test('doctor ends with 1 where something is missing, and prints the commands', () => {
  const { status, stdout } = run('doctor');
  expect(status).toBe(1);
  expect(stdout).toMatch(/^ok +Node /);
  expect(stdout).toMatch(/missing +libtorch +not found[^]*bring it with: npx pipewright setup/);
});

test('doctor --json is the same for programs', () => {
  const { stdout } = run('doctor', '--json');
  const report = JSON.parse(stdout) as { ok: boolean; findings: { part: string; health: string }[] };
  expect(report.ok).toBe(false);
  expect(report.findings.find(({ part }) => part === 'CMake')?.health).toBe('missing');
});

test('setup says in one message what stops it', () => {
  const { status, stderr } = run('setup');
  expect(status).toBe(1);
  expect(stderr).toMatch(/^AddonError: .*Python 3 is needed to fetch libtorch.*bring it with: .*python3-pip$/m);
});

test('a misspelt option is refused', () => {
  expect(run('doctor', '--jsn').stderr).toContain("unknown option '--jsn'");
});
