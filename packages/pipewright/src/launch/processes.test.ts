/** @file Ranks as processes: results, output, failures of every kind, and nothing left behind. */
import { join } from 'node:path';
import { describe, expect, test } from 'vitest';
import { folder, isAlive, numbersOf, rejection, script, until } from '../../test/processes.ts';
import { LaunchError, launch } from './index.ts';

describe('ranks that do their work', () => {
  test('return it; each knows its place; arguments are theirs', async () => {
    const lines: string[] = [];
    const ranks = launch({
      ranks: 3,
      script,
      data: { scenario: 'sum' },
      args: ['--lr', '0.1'],
      env: { RANK: '9' },
      onLine: (line, { rank, stream }) => lines.push(`${rank} ${stream} ${line}`),
    });
    expect(await ranks.done).toEqual(
      [0, 1, 2].map((rank) => ({ sum: 6, env: [`${rank}`, '3', `${rank}`, '3'], args: ['--lr', '0.1'] })),
    );
    expect(lines.toSorted()).toEqual(['0 stdout sum 6', '1 stdout sum 6', '2 stdout sum 6']);
    expect(ranks.pids().map(isAlive)).toEqual([false, false, false]);
  });

  test('print whole lines on both streams, the last one without end too', async () => {
    const lines: string[][] = [[], []];
    await launch({
      ranks: 2,
      script,
      data: { scenario: 'print' },
      onLine: (line, { rank, stream }) => lines[rank]!.push(`${stream}: ${line}`),
    }).done;
    for (const [rank, printed] of lines.entries()) {
      expect(printed.filter((line) => line.startsWith('stdout'))).toEqual([
        `stdout: one of ${rank}, in two pieces`,
        'stdout: next line',
        'stdout: größe without an end',
      ]);
      expect(printed).toContain(`stderr: error of ${rank}`);
    }
  });

  test('may end by process.exit(0); their last messages arrive', async () => {
    expect(await launch({ ranks: 2, script, data: { scenario: 'exitsWell' } }).done).toEqual([undefined, undefined]);
  });
});

describe('a rank that fails', () => {
  test('by an error: it is the cause, the others are consequences, and all are told with their places', async () => {
    const ranks = launch({ ranks: 3, script, data: { scenario: 'throws', who: 1 } });
    const error = await rejection<LaunchError>(ranks.done);
    expect(error).toBeInstanceOf(LaunchError);
    expect([error.rank, error.message, error.exitCode]).toEqual([1, 'rank 1 failed: the numbers went wrong', 1]);
    expect(error.failures.map(({ rank }) => rank).toSorted()).toEqual([0, 1, 2]);
    expect(error.failures[0]).toMatchObject({ rank: 1, name: 'RangeError', ended: false });
    expect(error.failures[0]!.stack).toMatch(/test\/ranks\.ts:\d+/);
    expect(error.failures.slice(1).map(({ code }) => code)).toEqual(['PEER_LOST', 'PEER_LOST']);
    expect(error.places[1]).toMatchObject({ rank: 1, state: 'failed', step: 3, slot: 1, action: '1F0' });
    const [first, stack] = error.report().split('\n');
    expect(first).toBe('rank 1 failed: the numbers went wrong');
    expect(stack).toBe('    RangeError: the numbers went wrong');
    expect(error.report()).toMatch(/^At that moment: .*rank 1 failed in step 3 at slot 1 \(1F0\)/m);
    expect(error.report()).toMatch(/^Then rank [02] failed: Channel\.recv in group/m);
    expect(ranks.pids().filter(isAlive)).toEqual([]);
  });

  test.each([
    ['by its exit code', 'exits', 'rank 1 failed: it exited with code 7', 7],
    ['by kill -9', 'killed', 'rank 1 failed: the signal SIGKILL ended it: by hand, or for lack of memory', 137],
  ])('%s: that is the cause and the exit code', async (_, scenario, message, exitCode) => {
    const error = await rejection<LaunchError>(launch({ ranks: 2, script, data: { scenario, who: 1 } }).done);
    expect([error.rank, error.message, error.exitCode]).toEqual([1, message, exitCode]);
    expect(error.failures[1]).toMatchObject({ rank: 0, code: 'PEER_LOST' });
    expect(error.report()).toContain(
      'rank 0 waits at slot 17 (0RECV_B1) for rank 1; rank 1 failed. Look at rank 1 first',
    );
  });

  test('by a promise nobody awaits, while the others do nothing', async () => {
    const error = await rejection<LaunchError>(
      launch({ ranks: 2, script, data: { scenario: 'rejects', who: 1 }, graceMs: 100 }).done,
    );
    expect(error.message).toBe('rank 1 failed: nobody was listening');
    expect(error.report()).toMatch(/Ended for that reason: rank 0$/);
    expect(error.failures[1]).toMatchObject({ rank: 0, ended: true, exitCode: 143 });
  });

  test('ends those that never look up, and what they have started', async () => {
    const file = join(folder, 'spins');
    const ranks = launch({ ranks: 2, script, data: { scenario: 'spins', who: 1, file }, graceMs: 500 });
    const children = await numbersOf(file, [0]);
    const error = await rejection<LaunchError>(ranks.done);
    expect(error.message).toBe('rank 1 failed: one of them failed');
    await until(() => [...ranks.pids(), ...children].every((pid) => !isAlive(pid)));
  });

  test('by a result that cannot be sent', async () => {
    const error = await rejection<LaunchError>(launch({ ranks: 1, script, data: { scenario: 'returnsOdd' } }).done);
    expect(error.message).toMatch(/^rank 0 failed: main returned what cannot be sent to the launcher/);
  });
});
