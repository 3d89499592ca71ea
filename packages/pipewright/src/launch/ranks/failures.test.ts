/** @file Ranks as processes that fail, in every way: the cause is told first, all end, nothing is left. */
import { join } from 'node:path';
import { inspect } from 'node:util';
import { describe, expect, test } from 'vitest';
import { folder, isAlive, numbersOf, patient, rejection, script, until } from '../../../testing/launching/processes.ts';
import { LaunchError, launch } from '../index.ts';

describe('a rank that fails', () => {
  test('by an error: it is the cause, the others are consequences, and all are told with their places', async () => {
    const ranks = launch({ ranks: 3, script, data: { scenario: 'throws', who: 1 }, ...patient });
    const error = await rejection<LaunchError>(ranks.done);
    expect(error).toBeInstanceOf(LaunchError);
    expect([error.rank, error.message, error.exitCode]).toEqual([1, 'rank 1 failed: the numbers went wrong', 1]);
    expect(error.failures.map(({ rank }) => rank).toSorted()).toEqual([0, 1, 2]);
    expect(error.failures[0]).toMatchObject({ rank: 1, name: 'RangeError', ended: false });
    expect(error.failures[0]!.stack).toMatch(/launching\/scenarios\.ts:\d+/);
    expect(error.failures.slice(1).map(({ code }) => code)).toEqual(['PEER_LOST', 'PEER_LOST']);
    expect(error.places[1]).toMatchObject({ rank: 1, state: 'failed', step: 3, slot: 1, action: '1F0' });
    expect([error.stack, Object.keys(error)]).toEqual([`LaunchError: ${error.report()}`, []]); // as Node prints it
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
    const error = await rejection<LaunchError>(
      launch({ ranks: 2, script, data: { scenario, who: 1 }, ...patient }).done,
    );
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

  test.each([
    ['error', 'rank 0 failed: after printing', 1],
    ['exit', 'rank 0 failed: it exited with code 7', 7],
  ])('after it has printed a lot, by an %s: every line arrives', async (how, message, exitCode) => {
    const lines: string[] = [];
    const error = await rejection<LaunchError>(
      launch({
        ranks: 1,
        script,
        data: { scenario: 'prints', how },
        onLine: (line) => {
          lines.push(line);
          // A slow reader.
          if (lines.length % 500 === 0) Atomics.wait(new Int32Array(new SharedArrayBuffer(4)), 0, 0, 20);
        },
        ...patient,
      }).done,
    );
    expect([error.message, error.exitCode]).toEqual([message, exitCode]);
    expect(lines.filter((line) => line.startsWith('line '))).toHaveLength(2000);
    expect(lines).toContain('last words');
  });

  test.each([
    ['own cause', 'rank 1 failed: an odd error'],
    ['no message', 'rank 1 failed: an error whose message cannot be read'],
  ])('by an error that is hard to read (%s): it is the cause all the same', async (how, message) => {
    const error = await rejection<LaunchError>(
      launch({ ranks: 2, script, data: { scenario: 'throwsOdd', who: 1, how }, ...patient }).done,
    );
    expect([error.rank, error.message]).toEqual([1, message]);
  });

  test.each(['returns', 'exit'])('by ending too early (%s), with others waiting for it: it is named', async (how) => {
    const error = await rejection<LaunchError>(
      launch({ ranks: 2, script, data: { scenario: 'leaves', who: 1, how }, ...patient }).done,
    );
    expect([error.rank, error.code, error.exitCode]).toEqual([1, 'LEFT_EARLY', 1]);
    expect(error.message).toMatch(/^rank 1 failed: it ended with exit code 0, too early: rank 0 waited for it$/);
    expect(error.report()).toMatch(/^Then rank 0 failed: Channel\.recv/m);
  });

  test('by ending before the others have found it: nobody waits out the time limit', async () => {
    const error = await rejection<LaunchError>(
      launch({ ranks: 2, script, data: { scenario: 'leaves', who: 1, how: 'before' }, timeoutMs: 3_600_000 }).done,
    );
    expect([error.rank, error.code]).toEqual([1, 'LEFT_EARLY']);
    expect(error.message).toContain('too early: rank 0 waits for it in initProcessGroup');
    expect(error.report()).toMatch(/Ended for that reason: rank 0$/);
  });

  test('with exit code 256: it is no success', async () => {
    const error = await rejection<LaunchError>(launch({ ranks: 1, script, data: { scenario: 'exits256' } }).done);
    expect([error.rank, error.exitCode]).toEqual([0, 1]);
  });

  test('is printed in one line, not as an object', async () => {
    const error = await rejection<LaunchError>(launch({ ranks: 1, script, data: { scenario: 'exits256' } }).done);
    expect(inspect(error)).toMatch(/^\[?LaunchError: rank 0 failed: it exited with code 1\]?$/);
  });

  test('by launching its own script: refused, for its ranks would do the same', async () => {
    const error = await rejection<LaunchError>(launch({ ranks: 1, script, data: { scenario: 'launchesItself' } }).done);
    expect(error.message).toMatch(/this is a rank of .*scenarios.ts already.*launch only where isRank\(\) is false/);
  });

  test('by a result that cannot be sent', async () => {
    const error = await rejection<LaunchError>(launch({ ranks: 1, script, data: { scenario: 'returnsOdd' } }).done);
    expect(error.message).toMatch(
      /^rank 0 failed: what main returned\.best\[0\] is a function, which cannot be sent .*; give numbers, texts, arrays/,
    );
  });

  test('by a tensor in the result, which would arrive without its memory', async () => {
    const error = await rejection<LaunchError>(launch({ ranks: 1, script, data: { scenario: 'returnsTensor' } }).done);
    expect(error.message).toMatch(
      /^rank 0 failed: what main returned\.losses\[1\]\.get\("last"\) is a tensor, .* give numbers: tensor\.item\(\)/,
    );
  });
});
