/** @file The row of a rank in a V plan: its cells in the order of their slots. Empty slots take no room. */

/** Kinds of cells in the order a microbatch passes through a rank; `W` is the weight work of either stage. */
export const Cell = { DownF: 1, UpF: 2, UpI: 3, DownI: 4, W: 5 } as const;

/** Slots between the same work of two microbatches: 2 F, 2 I and 2 W. */
export const period = 6;

/** Cells and their slots, which rise from one to the next. */
export class VRow {
  readonly slots: Int32Array;
  readonly cells: Uint8Array;

  constructor(slots: Int32Array, cells: Uint8Array) {
    this.slots = slots;
    this.cells = cells;
  }

  /** Each kind of cell from its first slot on, once in a period. */
  static repeat(starts: readonly number[], microbatches: number): VRow {
    const row = VRow.ofSize(starts.length * microbatches);
    const done = new Int32Array(starts.length);
    for (let i = 0; i < row.size; i++) {
      let first = -1;
      let slot = Number.POSITIVE_INFINITY;
      for (let kind = 0; kind < starts.length; kind++) {
        const at = starts[kind]! + period * done[kind]!;
        if (done[kind] === microbatches || at >= slot) continue;
        first = kind;
        slot = at;
      }
      done[first]!++;
      row.slots[i] = slot;
      row.cells[i] = first + 1;
    }
    return row;
  }

  private static ofSize(size: number): VRow {
    return new VRow(new Int32Array(size), new Uint8Array(size));
  }

  get size(): number {
    return this.cells.length;
  }

  /** Weight work put into the empty slots from `from` on, behind the I it belongs to; what is left over at the end. */
  withWeights(from = 0): VRow {
    let size = this.size;
    for (const cell of this.cells) if (isGradient(cell)) size++;
    const filled = VRow.ofSize(size);
    let count = 0;
    let pending = 0;
    let slot = from;
    const fill = (end: number): void => {
      for (; pending > 0 && slot < end; pending--) {
        filled.slots[count] = slot++;
        filled.cells[count++] = Cell.W;
      }
    };
    for (let i = 0; i < this.size; i++) {
      const cell = this.cells[i]!;
      fill(this.slots[i]!);
      if (isGradient(cell)) pending++;
      else if (cell === Cell.W) pending--;
      filled.slots[count] = this.slots[i]!;
      filled.cells[count++] = cell;
      slot = Math.max(from, this.slots[i]! + 1);
    }
    fill(Number.POSITIVE_INFINITY);
    return filled.first(count);
  }

  /** The row without its weight work. */
  withoutWeights(): VRow {
    const kept = VRow.ofSize(this.size);
    let count = 0;
    for (let i = 0; i < this.size; i++) {
      if (this.cells[i] === Cell.W) continue;
      kept.slots[count] = this.slots[i]!;
      kept.cells[count++] = this.cells[i]!;
    }
    return kept.first(count);
  }

  /** The row without its last cells of some kinds: `counts` says how many of which. */
  withoutLast(counts: ReadonlyMap<number, number>): VRow {
    const left = new Map(counts);
    const kept = VRow.ofSize(this.size);
    let at = this.size;
    for (let i = this.size - 1; i >= 0; i--) {
      const more = left.get(this.cells[i]!) ?? 0;
      if (more > 0) left.set(this.cells[i]!, more - 1);
      else {
        kept.slots[--at] = this.slots[i]!;
        kept.cells[at] = this.cells[i]!;
      }
    }
    return new VRow(kept.slots.subarray(at), kept.cells.subarray(at));
  }

  /** The row with one more cell, in the first empty slot from `from` on. */
  withCell(from: number, cell: number): VRow {
    let slot = Math.max(0, from);
    let at = firstFrom(this.slots, slot, this.size);
    for (; at < this.size && this.slots[at] === slot; at++) slot++;
    const row = VRow.ofSize(this.size + 1);
    row.slots.set(this.slots.subarray(0, at));
    row.cells.set(this.cells.subarray(0, at));
    row.slots[at] = slot;
    row.cells[at] = cell;
    row.slots.set(this.slots.subarray(at), at + 1);
    row.cells.set(this.cells.subarray(at), at + 1);
    return row;
  }

  /** The first cells of the row. */
  first(count: number): VRow {
    return new VRow(this.slots.subarray(0, count), this.cells.subarray(0, count));
  }

  /** The slot of the last cell of a kind; -1 where there is none. */
  lastSlotOf(cell: number): number {
    return this.slots[this.cells.lastIndexOf(cell)] ?? -1;
  }

  /** Most chunks held at once, from F until W; weight work not in the row is done in its empty slots. */
  get peak(): number {
    const implied = !this.cells.includes(Cell.W);
    let held = 0;
    let pending = 0;
    let high = 0;
    let slot = 0;
    for (let i = 0; i < this.size; i++) {
      const cell = this.cells[i]!;
      if (implied) {
        const done = Math.min(pending, this.slots[i]! - slot);
        held -= done;
        pending -= done;
      }
      if (isForward(cell)) {
        if (++held > high) high = held;
      } else if (cell === Cell.W) held--;
      else pending++;
      slot = this.slots[i]! + 1;
    }
    return high;
  }
}

/** The first of `count` rising slots that is not before `slot`. */
export function firstFrom(slots: Int32Array, slot: number, count: number): number {
  let low = 0;
  let high = count;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (slots[middle]! < slot) low = middle + 1;
    else high = middle;
  }
  return low;
}

/** Whether a cell is an F of either stage. */
export function isForward(cell: number): boolean {
  return cell === Cell.DownF || cell === Cell.UpF;
}

/** Whether a cell is an I of either stage. */
export function isGradient(cell: number): boolean {
  return cell === Cell.UpI || cell === Cell.DownI;
}
