/** @file What waiting for others took, and how much of it was work. */
import { threadTime } from '@pipewright/torch/internal';

/** A wait in milliseconds; `busy` is what a processor worked in it: ranks that are threads add up what they wait for. */
export interface Waited {
  readonly time: number;
  readonly busy: number;
}

/** Begins to measure a wait; the result ends it. @example const end = beginWait(); work.wait(); const { time } = end(); */
export function beginWait(): () => Waited {
  const [time, busy] = [performance.now(), threadTime()];
  return () => ({ time: performance.now() - time, busy: threadTime() - busy });
}

/** Two waits as one. */
export function addWaits(one: Waited | undefined, other: Waited): Waited {
  return one === undefined ? other : { time: one.time + other.time, busy: one.busy + other.busy };
}
