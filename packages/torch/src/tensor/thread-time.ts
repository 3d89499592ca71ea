/** @file How long a processor has worked for this thread. */
import { native } from '../addon/addon.ts';

/** Milliseconds that a processor has worked for this thread: it does not count while the thread waits, for a core least of all. @example threadTime() */
export function threadTime(): number {
  return native.threadTime();
}
