/**
 * @file How fast messages are between ranks, measured: a message goes there and back, small and large. Between two messages a rank
 * computes, as it does in a pipeline, so that the one that waits has gone to sleep and has to be woken.
 */
import { type distributed, ones, scope } from '@pipewright/torch';
import { checkArgument } from '../base/checks.ts';

/** One link, in seconds and bytes per second. */
export interface MeasuredLink {
  readonly latency: number;
  readonly bandwidth: number;
}

const TAG = 0x70_6c_61;
const large = 1 << 22;
const rounds = 20;
/** Milliseconds of computing before a rank sends: longer than a waiter polls. */
const computing = 1;

/**
 * Latency and bandwidth between ranks 0 and 1 of a group; all ranks call it, and all are told. A group of one has no link.
 *
 * @example const link = measureLink(distributed.getDefaultGroup())
 */
export function measureLink(group: distributed.ProcessGroup): MeasuredLink | null {
  checkArgument('measureLink', typeof group?.channel === 'function', ['the group', group], 'a process group');
  if (group.size < 2) return null;
  const found = group.rank < 2 ? scope(() => exchange(group)) : null;
  return group.broadcastObject<MeasuredLink>(found === null ? null : { ...found }, 0);
}

function exchange(group: distributed.ProcessGroup): MeasuredLink {
  const channel = group.channel(1 - group.rank);
  const timeOf = (bytes: number): number => {
    const message = ones([bytes], { dtype: 'uint8' });
    const times: number[] = [];
    const sendLater = (): void => {
      const begin = performance.now();
      while (performance.now() - begin < computing);
      channel.send(TAG, message);
    };
    for (let round = 0; round <= rounds; round++) {
      const start = performance.now();
      scope(() => {
        if (group.rank === 0) sendLater();
        const back = channel.recv(TAG);
        if (group.rank === 1) sendLater();
        back.dispose();
      });
      if (round > 0) times.push(Math.max(0, (performance.now() - start) / 2 - computing) / 1000);
    }
    return times.sort((a, b) => a - b)[rounds >> 2]!; // other work on the machine only adds
  };
  const latency = timeOf(64);
  const whole = timeOf(large);
  // Where tensors change hands without a copy, size does not matter: such a link has no limit that could be measured.
  const bandwidth = whole > 1.2 * latency ? large / (whole - latency) : 1e15;
  return { latency, bandwidth };
}
