/** @file Moves the cells of a row that has its weight work in it to earlier slots, in their order. */

import { Cell, firstFrom, isForward, type VRow } from './row.ts';

/** A row, and the chunks held after each cell that was moved or left where it is. */
export class HeldChunks {
  private readonly row: VRow;
  private readonly cap: number;
  private readonly held: Int32Array;

  constructor(row: VRow, cap: number) {
    this.row = row;
    this.cap = cap;
    this.held = new Int32Array(row.size);
  }

  /** Moves the next cell, at `index`, to the first empty slot from `from` on that keeps the cap, and says where it is then. */
  move(index: number, from: number): number {
    const { held } = this;
    const { slots, cells } = this.row;
    const slot = slots[index]!;
    const cell = cells[index]!;
    const adds = isForward(cell) ? 1 : cell === Cell.W ? -1 : 0;
    let to = adds > 0 ? this.keepingCap(index, from) : from;
    let at = index;
    if (to < slot) {
      at = firstFrom(slots, to, index);
      for (; at < index && slots[at] === to; at++) to++;
    }
    if (to > slot) to = slot;
    for (let i = index; i > at; i--) {
      slots[i] = slots[i - 1]!;
      cells[i] = cells[i - 1]!;
      held[i] = held[i - 1]! + adds;
    }
    slots[at] = to;
    cells[at] = cell;
    held[at] = (at === 0 ? 0 : held[at - 1]!) + adds;
    return to;
  }

  /** The first slot from `from` on from which one more chunk can be held until the cell at `index`. */
  private keepingCap(index: number, from: number): number {
    const { slots } = this.row;
    let end = slots[index]!;
    for (let i = index - 1; i >= 0 && end > from; i--) {
      if (this.held[i]! >= this.cap) return end;
      end = slots[i]!;
    }
    return from;
  }
}
