import { expect, test } from 'vitest';
import { runBare } from '../../../testing/run-cli.ts';

test('doctor ends with 1 where something is missing, and prints the commands', () => {
  const { code, out } = runBare('doctor');
  expect(code).toBe(1);
  expect(out).toMatch(/^ok +Node /);
  expect(out).toMatch(/missing +libtorch +not found[^]*npx pipewright setup/);
});

test('doctor --json is the same for programs', () => {
  const report = JSON.parse(runBare('doctor', '--json').out) as {
    ok: boolean;
    findings: { part: string; health: string }[];
  };
  expect(report.ok).toBe(false);
  expect(report.findings.find(({ part }) => part === 'CMake')?.health).toBe('missing');
});

test('a misspelt option is refused', () => {
  expect(runBare('doctor', '--jsn')).toMatchObject({ code: 2, err: expect.stringContaining("unknown option '--jsn'") });
});
