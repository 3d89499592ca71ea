/** @file The ranks of a replay that can go on, and what the others wait for. */

import { Why, type WhyCode } from './deadlock.ts';

/** Ranks that can go on, and the reason of each that cannot. */
export class WaitingRanks {
  /** Ranks that can go on; at first all of them, rank 0 on top. */
  readonly ready: number[];
  /** By rank: why it waits, and the key of the message that it waits for; -1: none. */
  readonly why: Uint8Array;
  readonly key: Int32Array;
  /** By rank: the message whose arrival wakes it; -1: none. */
  private readonly wokenBy: Int32Array;

  constructor(ranks: number) {
    this.ready = Array.from({ length: ranks }, (_, i) => ranks - 1 - i);
    this.why = new Uint8Array(ranks);
    this.key = new Int32Array(ranks).fill(-1);
    this.wokenBy = new Int32Array(ranks).fill(-1);
  }

  /** Notes what a rank waits for (`key` of the message, or -1); always false. */
  block(rank: number, why: WhyCode, key: number): false {
    this.why[rank] = why;
    this.key[rank] = key;
    if (why === Why.Arrival) this.wokenBy[rank] = key;
    return false;
  }

  /** A message has arrived: its rank goes on, if it waits for that one. */
  wake(rank: number, key: number): void {
    if (this.wokenBy[rank] !== key) return;
    this.wokenBy[rank] = -1;
    this.ready.push(rank);
  }
}
