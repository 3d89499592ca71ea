/** @file When the work of a V plan is done, and so when what waits for it can be. */

import { Cell, isGradient } from './row.ts';

/** The slot of work that is not done yet. */
export const notDone = -2;

/** Slots in which work was done, by rank, kind and microbatch. */
export class DoneSlots {
  private readonly ranks: number;
  private readonly microbatches: number;
  private readonly slots: Int32Array;
  private readonly counts: Int32Array;
  /** Per rank how far `gradient` has gone: I of the way up and of the way down before it, and the slot of the last. */
  private readonly merged: Int32Array;

  constructor(ranks: number, microbatches: number) {
    this.merged = new Int32Array(ranks * 3);
    this.ranks = ranks;
    this.microbatches = microbatches;
    this.slots = new Int32Array(ranks * 6 * 2 * microbatches);
    this.counts = new Int32Array(ranks * 6);
  }

  add(rank: number, cell: number, slot: number): void {
    const at = rank * 6 + cell;
    this.slots[at * 2 * this.microbatches + this.counts[at]!++] = slot;
    if (isGradient(cell) && slot < this.merged[3 * rank + 2]!) this.merged.fill(0, 3 * rank, 3 * rank + 3);
  }

  /** Slot of the latest input of a rank's next cell of a kind (any before, for W); -1: it has none; `notDone`: one is still missing. */
  inputOf(rank: number, cell: number): number {
    const m = this.counts[rank * 6 + cell]!;
    if (cell === Cell.W)
      return m < this.counts[rank * 6 + Cell.UpI]! + this.counts[rank * 6 + Cell.DownI]! ? -1 : notDone;
    const before = cell === Cell.DownF ? -1 : this.at(rank, cell - 1, m);
    const neighbour = cell === Cell.DownF || cell === Cell.UpI ? rank - 1 : rank + 1;
    if (before === notDone || neighbour < 0 || neighbour >= this.ranks) return before;
    const other = this.at(neighbour, cell, m);
    return other === notDone ? notDone : Math.max(before, other);
  }

  /** First slot in which a rank's next cell of a kind could be, its row left aside. */
  earliest(rank: number, cell: number): number {
    const m = this.counts[rank * 6 + cell]!;
    const same = m === 0 ? -1 : this.at(rank, cell, m - 1);
    return Math.max(same, cell === Cell.W ? this.gradient(rank, m) : this.inputOf(rank, cell)) + 1;
  }

  /** Slot of a rank's k-th I of either stage, in the order of slots. */
  private gradient(rank: number, k: number): number {
    const { merged } = this;
    if (merged[3 * rank]! + merged[3 * rank + 1]! > k + 1) merged.fill(0, 3 * rank, 3 * rank + 3);
    let up = merged[3 * rank]!;
    let down = merged[3 * rank + 1]!;
    let slot = merged[3 * rank + 2]!;
    while (up + down <= k) {
      const a = this.at(rank, Cell.UpI, up);
      const b = this.at(rank, Cell.DownI, down);
      if (b === notDone || (a !== notDone && a < b)) {
        slot = a;
        up++;
      } else {
        slot = b;
        down++;
      }
      if (slot === notDone) return notDone;
    }
    merged.set([up, down, slot], 3 * rank);
    return slot;
  }

  private at(rank: number, cell: number, m: number): number {
    const row = rank * 6 + cell;
    return m < this.counts[row]! ? this.slots[row * 2 * this.microbatches + m]! : notDone;
  }
}
