import { spawnSync } from 'node:child_process';
import { fileURLToPath } from 'node:url';
import { expect, test } from 'vitest';

test('the first example runs and says what it did', () => {
  const file = fileURLToPath(new URL('../../examples/dist/00-first-schedule/schedule.js', import.meta.url));
  const { status, stdout, stderr } = spawnSync(process.execPath, [file], { encoding: 'utf8', timeout: 300_000 });
  expect({ status, stderr }).toEqual({ status: 0, stderr: '' });
  const lines = stdout.split('\n');
  expect(lines[0]).toBe('1F1B: 4 ranks, 4 stages, 8 microbatches');
  expect(lines.filter((line) => line.includes('makespan') && line.includes('idle'))).toMatchInlineSnapshot(`
    [
      "GPipe makespan 33.6, idle 28.6%, peak memory 8",
      "1F1B  makespan 34.6, idle 30.6%, peak memory 4",
      "ZBV   makespan 26.8, idle 10.4%, peak memory 4",
    ]
  `);
  expect(stdout).toContain('forward-first: rank 1 slot 0 (1B0)');
  expect(stdout).toContain('rank 1 runs: 1RECV_F0 1F0 1SEND_F0');
});
