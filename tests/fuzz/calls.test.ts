/** @file A sample of the random calls of public functions; all 30,000: `node tests/fuzz/calls.mjs`. */
import { spawnSync } from 'node:child_process';
import { fileURLToPath } from 'node:url';
import { expect, test } from 'vitest';

test('3,000 random calls of public functions end in a result or in an error with a code', () => {
  const program = fileURLToPath(new URL('calls.mjs', import.meta.url));
  const run = spawnSync(process.execPath, [program, '--calls', '3000', '--seed', '12'], {
    encoding: 'utf8',
    timeout: 500_000,
  });
  const [last = '', ...problems] = run.stdout.trimEnd().split('\n').reverse();
  expect(problems, `repeat one with --from NUMBER --calls 1 --seed 12\n${run.stderr}`).toEqual([]);
  expect(last).toMatch(/^3000 calls, seed 12: .*, 0 different problems$/);
  const { returned, refused } = JSON.parse(/\{.*\}/.exec(last)?.[0] ?? '{}') as Record<string, number>;
  expect(returned).toBeGreaterThan(300); // the functions were called, and not all calls were wrong
  expect(refused).toBeGreaterThan(1500);
});
