/** @file Ranks that are started again after a failure: on one machine, as threads, on several machines, and as often as is asked for. */
import { type ChildProcess, spawn } from 'node:child_process';
import { once } from 'node:events';
import { join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { freePort } from '@pipewright/torch/environment';
import { describe, expect, test } from 'vitest';
import {
  endWithTests,
  folder,
  isAlive,
  numbersOf,
  patient,
  rejection,
  script,
} from '../../testing/launching/processes.ts';
import { formatRestart, type LaunchError, launch, type Restart } from './index.ts';

const result = (count: number, most: number, machines = '1'): object => ({
  ...{ sum: 3, count, most: String(most), machines, hasId: true },
});

describe('one machine', () => {
  test('all ranks are started again, after an error and after kill -9, and it is told what happened', async () => {
    const told: Restart[] = [];
    const data = { scenario: 'flaky', who: 1, times: 2 };
    const onRestart = (restart: Restart): void => void told.push(restart);
    const ranks = launch({ ranks: 2, script, data, maxRestarts: 3, onRestart, ...patient });
    expect(await ranks.done).toEqual([result(2, 3), result(2, 3)]);
    expect(ranks.restarts()).toEqual(told);
    expect(told.map(({ count, of, rank, step, slot, action }) => [count, of, rank, step, slot, action])).toEqual([
      [1, 3, 1, 5, 7, '1F1'],
      [2, 3, 1, 5, 7, '1F1'],
    ]);
    expect(told[0]!.message).toBe('rank 1 failed: attempt 0 failed');
    expect(told[1]!.message).toMatch(/^rank 1 failed in step 5 at slot 7 \(1F1\): the signal SIGKILL ended it/);
    for (const { noticedAfterMs, endedAfterMs } of told) {
      expect(noticedAfterMs).toBeGreaterThanOrEqual(0);
      expect(endedAfterMs).toBeGreaterThan(0);
    }
    expect(formatRestart({ ...told[0]!, noticedAfterMs: 3.4, endedAfterMs: 1234 })).toBe(
      'restart 1 of 3: rank 1 failed: attempt 0 failed; noticed after 3 ms, all ranks had ended 1,234 ms later',
    );
    expect(told[0]!.report).toMatch(/^Then rank 0 failed: /m);
  });

  test('not more often than asked for', async () => {
    const data = { scenario: 'flaky', who: 0, times: 9 };
    const ranks = launch({ ranks: 2, script, data, maxRestarts: 1, ...patient });
    const error = await rejection<LaunchError>(ranks.done);
    expect([error.rank, error.exitCode, ranks.restarts().length]).toEqual([0, 137, 1]);
    expect(ranks.pids().filter(isAlive)).toEqual([]);
  });

  test('a rank that is replaced alone finds how often ranks were started again, and so do all after it', async () => {
    const start = { ranks: 2, script, maxRestarts: 5, graceMs: 300 };
    const alone = launch({ ...start, data: { scenario: 'replaced', who: 1, times: 3 } });
    expect(await alone.done).toEqual([
      { steps: 2, count: 0 },
      { steps: 2, count: 3 },
    ]);
    expect(alone.recoveries().at(-1)).toMatchObject({ count: 3, of: 5 });
    const both = launch({ ...start, data: { scenario: 'replaced', who: 1, times: 3, how: 'STATE_LOST' } });
    expect(await both.done).toEqual([
      { steps: 2, count: 2 },
      { steps: 2, count: 3 },
    ]);
    expect([both.restarts().map(({ count }) => count), both.recoveries().at(-1)?.count]).toEqual([[2], 3]);
  });

  test('not after a signal', async () => {
    const file = join(folder, 'signalled');
    const ranks = launch({ ranks: 1, script, data: { scenario: 'waits', file }, maxRestarts: 5, graceMs: 300 });
    await numbersOf(file, [0]);
    ranks.end('SIGINT');
    expect((await rejection<{ code: string }>(ranks.done)).code).toBe('TERMINATED');
    expect(ranks.restarts()).toEqual([]);
  });
});

describe('two machines', () => {
  const secret = 'a secret of many characters';

  test('start their ranks again together', async () => {
    const masterPort = await freePort();
    const place = { ranks: 1, nnodes: 2, masterAddr: '127.0.0.1', masterPort, secret, maxRestarts: 2 };
    const data = { scenario: 'flaky', who: 1, times: 2 };
    const machines = [0, 1].map((nodeRank) => launch({ ...place, nodeRank, script, data, ...patient }));
    expect(await Promise.all(machines.map(({ done }) => done))).toEqual([[result(2, 2, '2')], [result(2, 2, '2')]]);
    for (const machine of machines) expect(machine.restarts().map(({ rank }) => rank)).toEqual([1, 1]);
  });

  test('a rank of another machine that is replaced alone finds the count of machine 0', async () => {
    const masterPort = await freePort();
    const place = { ranks: 1, nnodes: 2, masterAddr: '127.0.0.1', masterPort, secret, maxRestarts: 5 };
    const data = { scenario: 'replaced', who: 1, times: 3, how: 'STATE_LOST' };
    const machines = [0, 1].map((nodeRank) => launch({ ...place, nodeRank, script, data, graceMs: 300 }));
    expect(await Promise.all(machines.map(({ done }) => done))).toEqual([
      [{ steps: 2, count: 2 }],
      [{ steps: 2, count: 3 }],
    ]);
  });

  test.each([1, 0])('machine %i, whose launcher is killed and started again, joins again', async (lost) => {
    const masterPort = await freePort();
    const file = join(folder, `back-${lost}`);
    const place = { ranks: 1, nnodes: 2, masterAddr: '127.0.0.1', masterPort, secret, maxRestarts: 2 };
    const start = (nodeRank: number, data: object): ChildProcess =>
      endWithTests(
        spawn(
          process.execPath,
          [
            fileURLToPath(new URL('../../testing/launching/node-launcher.mjs', import.meta.url)),
            JSON.stringify({ ...place, nodeRank, data, graceMs: 500 }),
          ],
          { stdio: 'ignore' },
        ),
      );
    // In the first attempt the last rank works for ever, and the other one waits for it.
    const data = { scenario: 'survives', file };
    const survivor = start(1 - lost, data);
    const victim = start(lost, data);
    await numbersOf(`${file}.first`, [0, 1]);
    victim.kill('SIGKILL');
    await once(victim, 'exit');
    const again = start(lost, data);
    const codes = await Promise.all([survivor, again].map(async (child) => (await once(child, 'exit'))[0] as number));
    expect(codes).toEqual([0, 0]);
    expect(await numbersOf(`${file}.sum`, [0, 1])).toEqual([3, 3]);
  });
});
