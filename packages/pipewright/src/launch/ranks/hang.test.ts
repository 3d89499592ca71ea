/** @file Hangs: a stopped rank, a killed launcher, an interrupted run. All end, the culprit is named, nothing is left. */
import { spawn } from 'node:child_process';
import { once } from 'node:events';
import { existsSync, writeFileSync } from 'node:fs';
import { constants } from 'node:os';
import { dirname, join } from 'node:path';
import { expect, test } from 'vitest';
import {
  endWithTests,
  folder,
  isAlive,
  numbersOf,
  patient,
  rejection,
  script,
  until,
} from '../../../testing/launching/processes.ts';
import { type LaunchError, launch } from '../index.ts';

test('a rank that is stopped: the waits of the others end, it is named, and killed', async () => {
  const file = join(folder, 'stopped');
  const data = { scenario: 'waits', file, go: `${file}.go` };
  const ranks = launch({ ranks: 3, script, data, timeoutMs: 2500, ...patient });
  const pids = await numbersOf(file, [0, 1, 2]);
  expect(pids).toEqual(ranks.pids());
  process.kill(pids[2]!, 'SIGSTOP');
  await until(() => ranks.places()[2]!.state === 'stopped');
  const digest =
    'rank 0 waits at slot 17 (0RECV_B1) for rank 1; rank 1 waits at slot 17 (1RECV_B1) for rank 2; rank 2 is stopped at slot 12 (2F1). Look at rank 2 first';
  expect(ranks.digest()).toBe(digest);
  writeFileSync(data.go, '');
  const error = await rejection<LaunchError>(ranks.done);
  expect(error.code).toBe('STOPPED');
  expect(error.message).toBe('rank 2 failed at slot 12 (2F1): it is stopped, as by SIGSTOP, and nobody let it go on');
  expect(error.report()).toContain(`\nAt that moment: ${digest}\n`);
  expect(error.report()).toMatch(
    /^Then rank [01] failed: Channel\.recv in group 'default': rank \d waited \d+ ms for/m,
  );
  expect(error.failures.map(({ rank }) => rank).toSorted()).toEqual([0, 1, 2]);
  expect([error.rank, error.exitCode]).toEqual([2, 128 + constants.signals.SIGSTOP]);
  expect(pids.filter(isAlive)).toEqual([]);
});

test('a rank that is stopped and that nobody waits for: it is named, and killed after the time limit', async () => {
  const ranks = launch({ ranks: 2, script, data: { scenario: 'stopsAlone', who: 1 }, timeoutMs: 1500, ...patient });
  const error = await rejection<LaunchError>(ranks.done);
  expect([error.rank, error.code]).toEqual([1, 'STOPPED']);
  expect(error.message).toMatch(/^rank 1 failed at slot 3 \(1B0\): it is stopped/);
  expect(error.failures).toHaveLength(1);
  expect(ranks.pids().filter(isAlive)).toEqual([]);
});

test('a launcher that is killed: its ranks end, blocked, busy or stopped, and its files are gone', async () => {
  const file = join(folder, 'orphans');
  const launcher = endWithTests(
    spawn(
      process.execPath,
      [
        new URL('../../../testing/launching/launcher.mjs', import.meta.url).pathname,
        JSON.stringify({ scenario: 'waits', file }),
      ],
      { stdio: ['ignore', 'pipe', 'inherit'] },
    ),
  );
  const pids = await numbersOf(file, [0, 1, 2]);
  const [status] = (await once(launcher.stdout, 'data')) as [Buffer];
  const statusFile = String(status).trim();
  expect(existsSync(statusFile)).toBe(true);
  process.kill(pids[0]!, 'SIGSTOP');
  launcher.kill('SIGKILL');
  await once(launcher, 'exit');
  await until(() => pids.every((pid) => !isAlive(pid)) && !existsSync(dirname(statusFile)));
});

test('a run that is interrupted: the ranks get the signal, then the end', async () => {
  const file = join(folder, 'interrupted');
  const ranks = launch({ ranks: 2, script, data: { scenario: 'waits', file }, graceMs: 300 });
  const pids = await numbersOf(file, [0, 1]);
  process.kill(pids[0]!, 'SIGSTOP');
  ranks.end('SIGINT');
  const error = await rejection<{ code: string; message: string }>(ranks.done);
  expect([error.code, error.message]).toEqual(['TERMINATED', 'launch: the ranks were ended by SIGINT']);
  expect(pids.filter(isAlive)).toEqual([]);
});
