/** @file A test file that blocks its process is ended and shown with what it started; the others count as always. */
import { spawnSync } from 'node:child_process';
import { mkdirSync, mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { expect, test } from 'vitest';

test('a test file that blocks is ended, with what it started', () => {
  const root = fileURLToPath(new URL('..', import.meta.url));
  mkdirSync(join(root, '.pipewright'), { recursive: true });
  const folder = mkdtempSync(join(root, '.pipewright/hang-'));
  const file = (name: string, body: string): void =>
    writeFileSync(
      join(folder, `${name}.test.mjs`),
      `import { spawnSync } from 'node:child_process';\nimport { test } from 'vitest';\ntest('one', () => { ${body} });\n`,
    );
  file('fine', '');
  file('blocked', "spawnSync('sleep', ['543']);");
  writeFileSync(join(folder, 'vitest.config.mjs'), 'export default {};\n');
  const { status, stdout, stderr } = spawnSync(
    process.execPath,
    [
      // One file at a time: a process of another file that is as old would be ended too.
      ...[
        join(root, 'node_modules/vitest/vitest.mjs'),
        'run',
        '--root',
        folder,
        '--pool=forks',
        '--no-file-parallelism',
      ],
      ...['--reporter=default', `--reporter=${join(root, 'scripts/vitest-hang.mjs')}`],
    ],
    { encoding: 'utf8', env: { ...process.env, PIPEWRIGHT_TEST_FILE_MINUTES: '0.2' } },
  );
  rmSync(folder, { recursive: true });
  expect(status).toBe(1);
  expect(stderr).toMatch(/hangs since 0\.2 minutes: .*blocked\.test\.mjs/);
  expect(stderr).toMatch(/\n {2}\d+ \(of \d+\) S \w+ sleep 543/);
  expect(stdout).toMatch(/fine\.test\.mjs/);
});
