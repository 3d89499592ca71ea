/** @file Sixty spoilt files of tests/fuzz/pt2.mjs, which makes as many as one likes. */
import { spawnSync } from 'node:child_process';
import { fileURLToPath } from 'node:url';
import { expect, it } from 'vitest';

it('spoilt files are loaded or refused, and nothing else happens', () => {
  const script = fileURLToPath(new URL('../../../../tests/fuzz/pt2.mjs', import.meta.url));
  const { status, stdout, stderr } = spawnSync(process.execPath, [script, '--count', '60', '--seed', '7'], {
    encoding: 'utf8',
  });
  expect({ status, stderr, failures: stdout.split('\n').filter((line) => line.startsWith('FAILED')) }).toEqual({
    status: 0,
    stderr: '',
    failures: [],
  });
  expect(stdout).toMatch(/ 0 failures\n$/);
}, 120_000);
