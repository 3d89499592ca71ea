/** @file Errors of the addon in our words, without what gloo adds. */
import { expect, test } from 'vitest';
import { TorchError, type TorchErrorCode } from '../../base/errors.ts';
import { DistributedError, explain } from './errors.ts';

const details = { operation: 'Channel.recv', group: 'default', rank: 0, peer: 1, tag: 7 };

function messageOf(code: TorchErrorCode, text: string): string {
  const error = explain(new TorchError(code, text), details);
  expect(error).toBeInstanceOf(DistributedError);
  return (error as DistributedError).message;
}

test('what gloo says is told without the path where it was built, guesses and wishes', () => {
  const noise = 'Check the logs of the remote worker before reporting an error. GLHF! \u{1F3D6}\u{FE0F}';
  const closed = `the connection to rank 1 is lost: [/build/third_party/gloo/gloo/transport/tcp/pair.cc:561] Connection closed by peer [127.0.0.1]:41354. This is typically caused by a remote worker crashing. ${noise}`;
  expect(messageOf('PEER_LOST', closed)).toBe(
    "Channel.recv in group 'default': rank 0 for rank 1 with tag 7: the connection to rank 1 is lost: Connection closed by peer [127.0.0.1]:41354; the first error of that rank is the cause",
  );
  const reset = `[/build/gloo/transport/tcp/pair.cc:545] Read error [::1]:3983: Connection reset by peer. This is typically caused by a remote worker hanging or bugs in the application. ${noise} (waited 12 ms)`;
  expect(messageOf('PEER_LOST', reset)).toBe(
    "Channel.recv in group 'default': rank 0 waited 12 ms for rank 1 with tag 7: Read error [::1]:3983: Connection reset by peer; the first error of that rank is the cause",
  );
  const enforce = '[enforce fail at /build/gloo/transport/tcp/pair.cc:12] n > 0. 0 vs 0';
  expect(messageOf('LIBTORCH', enforce)).toMatch(/: n > 0\. 0 vs 0$/);
});

test('a printed error does not show the noise as its cause; other causes stay', () => {
  const noisy = explain(new TorchError('PEER_LOST', '[/build/pair.cc:1] Connection closed by peer. GLHF! x'), details);
  expect((noisy as Error).cause).toBeUndefined();
  const plain = new TorchError('TIMED_OUT', 'no message came... (waited 5 ms)');
  expect(explain(plain, details)).toMatchObject({
    cause: plain,
    waitedMs: 5,
    message: expect.stringMatching(/tag 7: no message came\.\.\.; see what that rank is doing/) as string,
  });
});
