/** @file Ranks as threads: the same as processes, in one process. */
import { execFile } from 'node:child_process';
import { fileURLToPath } from 'node:url';
import { promisify } from 'node:util';
import { describe, expect, test } from 'vitest';
import { patient } from '../../../testing/launching/processes.ts';
import type { LaunchError, LaunchOptions } from '../index.ts';

/** How a launch went. */
interface Outcome {
  readonly lines: string[];
  readonly values?: unknown[];
  readonly error?: LaunchError;
  readonly report?: string;
}

/** Threads run compiled code and share the engine with whoever starts them, so that is a process of its own. */
async function outcomes(
  launches: readonly (Omit<LaunchOptions, 'script'> & { interrupt?: boolean })[],
): Promise<Outcome[]> {
  const program = fileURLToPath(new URL('../../../testing/launching/launch-threads.mjs', import.meta.url));
  const { stdout } = await promisify(execFile)(process.execPath, [program, JSON.stringify(launches)], {
    timeout: 300_000,
    killSignal: 'SIGKILL',
  });
  return stdout
    .trimEnd()
    .split('\n')
    .map((line) => JSON.parse(line) as Outcome);
}

test('ranks return their work, with their own arguments and output', async () => {
  const [sum, print, exit, tensor, odd, weak] = await outcomes([
    { ranks: 2, data: { scenario: 'sum' }, args: ['-n', '9'] },
    { ranks: 1, data: { scenario: 'print' } },
    { ranks: 2, data: { scenario: 'exitsWell' } },
    { ranks: 1, data: { scenario: 'returnsTensor' } },
    { ranks: 1, data: { scenario: 'returnsOdd' } },
    { ranks: 1, data: { scenario: 'returnsOdd', how: 'weak map' } },
  ]);
  expect(tensor!.report).toMatch(/^rank 0 failed: what main returned\.losses\[1\]\.get\("last"\) is a tensor/);
  expect(odd!.report).toMatch(/^rank 0 failed: what main returned\.best\[0\] is a function, which cannot be sent/);
  expect(weak!.report).toMatch(/^rank 0 failed: main returned what cannot be sent: .*could not be cloned/);
  expect(sum!.values).toEqual(
    [0, 1].map((rank) => ({ sum: 3, env: [`${rank}`, '2', `${rank}`, '2'], args: ['-n', '9'] })),
  );
  expect(sum!.lines.toSorted()).toEqual(['0 stdout: sum 3', '1 stdout: sum 3']);
  expect(print!.lines).toEqual([
    '0 stdout: one of 0, in two pieces',
    '0 stdout: next line',
    '0 stderr: error of 0',
    '0 stdout: größe without an end',
  ]);
  // JSON has null for what is undefined.
  expect(exit!.values).toEqual([null, null]);
});

describe('a rank that fails', () => {
  test('is the cause, and all are told with their places', async () => {
    const [thrown, exited, spinning] = await outcomes([
      { ranks: 3, data: { scenario: 'throws', who: 1 }, ...patient },
      { ranks: 2, data: { scenario: 'exits', who: 1 }, ...patient },
      { ranks: 2, data: { scenario: 'spins', who: 1 }, graceMs: 300 },
    ]);
    expect(thrown!.error).toMatchObject({ rank: 1, message: 'rank 1 failed: the numbers went wrong', exitCode: 1 });
    expect(thrown!.error!.failures[0]!.stack).toMatch(/launching\/scenarios\.ts:\d+/);
    expect(thrown!.error!.failures.slice(1).map(({ code }) => code)).toEqual([
      expect.stringMatching(/PEER_LOST|ABORTED/),
      expect.stringMatching(/PEER_LOST|ABORTED/),
    ]);
    expect(thrown!.report).toMatch(/At that moment: .*rank 1 failed in step 3 at slot 1 \(1F0\)/);
    expect(exited!.error).toMatchObject({ message: 'rank 1 failed: it exited with code 7', exitCode: 7 });
    const [again] = await outcomes([
      { ranks: 2, data: { scenario: 'flaky', who: 1, times: 1 }, maxRestarts: 1, ...patient },
    ]);
    const sum = { sum: 3, count: 1, most: '1', hasId: true };
    expect(again!.values).toEqual([sum, sum]);
    const [replaced] = await outcomes([
      { ranks: 2, data: { scenario: 'replaced', who: 1, times: 3, how: 'STATE_LOST' }, maxRestarts: 3, graceMs: 300 },
    ]);
    expect(replaced!.values).toEqual([
      { steps: 2, count: 2 },
      { steps: 2, count: 3 },
    ]);
    const [odd, early, code, chat] = await outcomes([
      { ranks: 2, data: { scenario: 'throwsOdd', who: 1, how: 'no message' }, ...patient },
      { ranks: 2, data: { scenario: 'leaves', who: 1, how: 'exit' }, ...patient },
      { ranks: 1, data: { scenario: 'exits256' } },
      { ranks: 1, data: { scenario: 'chats' } },
    ]);
    expect(odd!.error!.message).toBe('rank 1 failed: an error whose message cannot be read');
    expect(early!.error).toMatchObject({ rank: 1, code: 'LEFT_EARLY', exitCode: 1 });
    expect(code!.error).toMatchObject({ rank: 0, exitCode: 1 });
    expect(chat!.values).toEqual(['done']);
    expect(spinning!.report).toMatch(/^rank 1 failed: one of them failed[^]*Ended for that reason: rank 0$/);
  });
});

test('a wait that takes too long names all places; an interrupted run ends', async () => {
  const [late, interrupted] = await outcomes([
    { ranks: 2, data: { scenario: 'waits' }, timeoutMs: 500, graceMs: 100 },
    { ranks: 2, data: { scenario: 'waits' }, graceMs: 100, interrupt: true },
  ]);
  expect(late!.error!.code).toBe('TIMED_OUT');
  expect(late!.report).toContain('rank 0 waits at slot 17 (0RECV_B1) for rank 1; rank 1 works at slot 12 (2F1)');
  expect(interrupted!.error).toMatchObject({ code: 'TERMINATED', details: { signal: 'SIGINT' } });
});
