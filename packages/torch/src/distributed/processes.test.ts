/** @file Ranks as processes that fail: the others learn of it. */
import { describe, expect, test } from 'vitest';
import { runProcesses } from '../../testing/launch.ts';

interface Ended {
  readonly code: string;
  readonly peer: number;
  readonly message: string;
  readonly ms: number;
}

describe('a process that ends', () => {
  test('killed with -9: whoever waits for it gets an error at once', async () => {
    const [first, second, third] = await runProcesses(3, { scenario: 'fail', who: 2, how: 'kill', close: false });
    expect(third?.signal).toBe('SIGKILL');
    for (const end of [first, second]) {
      const error = end?.result as Ended;
      expect(error, end?.stderr).toBeDefined();
      expect(error.code).toBe('PEER_LOST');
      expect(error.peer).toBe(2);
      expect(error.message).toMatch(
        /^Channel.recv in group 'default': rank \d for rank 2 with tag 1: the connection to rank 2 is lost: [\w ]+ \[127\.0\.0\.1\]:\d+[\w: ]*; the first error of that rank is the cause$/,
      );
      expect(error.ms).toBeLessThan(30_000);
      expect(end?.code).toBe(0);
    }
  });

  test('in the middle of a collective', async () => {
    const [first, second] = await runProcesses(2, { scenario: 'fail', who: 1, how: 'collective', close: false });
    expect(second?.code).toBe(1);
    const error = first?.result as Ended;
    expect(error.code).toBe('PEER_LOST');
    expect(error.message).not.toMatch(/GLHF|\.cc/);
    expect(error.ms).toBeLessThan(30_000);
  });
});

test('a rank that never comes: the others say so', async () => {
  const [only] = await runProcesses(1, { scenario: 'self', init: { worldSize: 2, timeoutMs: 1500 } });
  expect(only?.code).toBe(1);
  expect(only?.stderr).toMatch(
    /not all of 2 ranks came to 127\.0\.0\.1:\d+ within 1500 ms; are all ranks running, with the same address\?/,
  );
});

describe('what a rank has sent arrives', () => {
  test.each(['abort', 'exit', 'throw', 'close'])('also when it then leaves: %s', async (how) => {
    for (const bytes of [64, 64 << 10]) {
      const [first, second] = await runProcesses(2, { scenario: 'leaves', how, count: 200, bytes });
      expect(second?.result, second?.stderr).toEqual({ right: true, count: 200, after: 'PEER_LOST' });
      expect(first?.code).toBe({ abort: 0, close: 0, exit: 3, throw: 1 }[how]);
    }
  });
});
