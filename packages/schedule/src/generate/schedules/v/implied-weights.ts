/** @file Moves the cells of a row without weight work, which is done in its empty slots, to earlier slots, in their order. */

import { firstFrom, isForward, type VRow } from './row.ts';

/** A row, and the chunks held and the W pending after each cell. */
export class ImpliedWeights {
  private readonly row: VRow;
  private readonly cap: number;
  private readonly held: Int32Array;
  private readonly pending: Int32Array;

  constructor(row: VRow, cap: number) {
    this.row = row;
    this.cap = cap;
    this.held = new Int32Array(row.size);
    this.pending = new Int32Array(row.size);
    const state = new State();
    for (let i = 0; i < row.size; i++) {
      state.add(row.slots[i]!, row.cells[i]!);
      this.write(i, state);
    }
  }

  /** Moves the next cell, at `index`, to the first empty slot from `from` on that keeps the cap, and says where it is then. */
  move(index: number, from: number): number {
    const { slots, cells } = this.row;
    const cell = cells[index]!;
    for (let at = firstFrom(slots, from, index); at <= index; at++) {
      const to = this.slotBefore(at, from, cell);
      if (to < slots[at]! && this.keepsCap(index, at, to)) {
        this.insert(index, at, to);
        return to;
      }
    }
    return slots[index]!;
  }

  /**
   * The first slot for a cell from `from` on between the cells before `at` and at `at`; the slot of `at` where there is none.
   * The other slots of a gap need not be tried: weight work done by the end of the gap is at most the same.
   */
  private slotBefore(at: number, from: number, cell: number): number {
    const end = this.row.slots[at]!;
    const start = Math.max(from, at === 0 ? 0 : this.row.slots[at - 1]! + 1);
    if (start >= end || !isForward(cell)) return Math.min(start, end);
    const state = this.stateAfter(at - 1);
    state.pass(start);
    const wait = Math.max(0, state.held + 1 - this.cap);
    return wait > state.pending ? end : Math.min(start + wait, end);
  }

  /** Whether the cap is kept with the cell at `index` in the slot `to` before the cell `at`. */
  private keepsCap(index: number, at: number, to: number): boolean {
    const { cap } = this;
    const { slots, cells } = this.row;
    const state = this.stateAfter(at - 1);
    state.add(to, cells[index]!);
    if (state.held > cap) return false;
    for (let i = at; i < index; i++) {
      state.add(slots[i]!, cells[i]!);
      if (state.held > cap && isForward(cells[i]!)) return false;
    }
    for (let i = index + 1; i < slots.length; i++) {
      const before = this.stateAfter(i - 1);
      before.pass(slots[i]!);
      state.pass(slots[i]!);
      if (state.held === before.held && state.pending === before.pending) return true;
      state.add(slots[i]!, cells[i]!);
      if (state.held > cap && isForward(cells[i]!)) return false;
    }
    return true;
  }

  /** Puts the cell at `index` into the slot `to` before the cell `at`, and counts anew as far as something differs. */
  private insert(index: number, at: number, to: number): void {
    const { slots, cells } = this.row;
    const cell = cells[index]!;
    const before = this.stateAfter(index);
    for (let i = index; i > at; i--) {
      slots[i] = slots[i - 1]!;
      cells[i] = cells[i - 1]!;
    }
    slots[at] = to;
    cells[at] = cell;
    const state = this.stateAfter(at - 1);
    for (let i = at; i < slots.length; i++) {
      if (i > index) {
        before.pass(slots[i]!);
        state.pass(slots[i]!);
        if (state.held === before.held && state.pending === before.pending) return;
        before.add(slots[i]!, cells[i]!);
      }
      state.add(slots[i]!, cells[i]!);
      this.write(i, state);
    }
  }

  private stateAfter(index: number): State {
    const state = new State();
    if (index >= 0) {
      state.slot = this.row.slots[index]! + 1;
      state.held = this.held[index]!;
      state.pending = this.pending[index]!;
    }
    return state;
  }

  private write(index: number, state: State): void {
    this.held[index] = state.held;
    this.pending[index] = state.pending;
  }
}

/** Chunks held and W pending before a slot. */
class State {
  slot = 0;
  held = 0;
  pending = 0;

  /** Does weight work in the empty slots before `slot`. */
  pass(slot: number): void {
    const done = Math.min(this.pending, slot - this.slot);
    this.held -= done;
    this.pending -= done;
    this.slot = slot;
  }

  /** Passes the slots before a cell, then does the cell. */
  add(slot: number, cell: number): void {
    this.pass(slot);
    if (isForward(cell)) this.held++;
    else this.pending++;
    this.slot = slot + 1;
  }
}
