/**
 * @file A plan for V placement on a grid of unit slots: a building block repeated for every microbatch, then tightened at
 * both ends without holding more. Each rank has a stage on the way down the V and one on the way up.
 */

import { Code, type Layout } from '../../../model/packed.ts';
import { stageToRank } from '../../../model/placement.ts';
import type { Schedule } from '../../../model/schedule.ts';
import { ScheduleBuilder } from '../../../model/schedule-builder.ts';
import type { ScheduleShape } from '../definition.ts';

/** Kinds of cells in the order a microbatch passes through a rank; `W` is the weight work of either stage. */
export const Cell = { Empty: 0, DownF: 1, UpF: 2, UpI: 3, DownI: 4, W: 5 } as const;

/** Slots between the same work of two microbatches: 2 F, 2 I and 2 W. */
export const period = 6;

/** First slots of DownF, UpF, UpI and DownI on each rank. */
export type BuildingBlock = readonly (readonly [number, number, number, number])[];

/** How `pullForward` moves cells. */
export interface PullOptions {
  /** Chunks a rank may hold; default: what the fullest holds now. */
  readonly cap?: number;
  /** Which cells move; default `ends`, the warm-up and the cool-down (`cool-down` alone: the warm-up stays too). */
  readonly where?: 'ends' | 'cool-down' | 'everywhere';
}

/** Slots by rank; a kind's k-th cell in a row is microbatch k, its k-th W the weight work of the rank's k-th I. */
export class VGrid {
  readonly ranks: number;
  readonly microbatches: number;
  private rows: Uint8Array[];

  constructor(ranks: number, microbatches: number, rows: Uint8Array[]) {
    this.ranks = ranks;
    this.microbatches = microbatches;
    this.rows = rows;
  }

  /** A building block repeated, without weight work. */
  static repeat(block: BuildingBlock, microbatches: number): VGrid {
    const rows = block.map((starts) => {
      const row = new Uint8Array(Math.max(...starts) + period * (microbatches - 1) + 1);
      starts.forEach((start, i) => {
        for (let m = 0; m < microbatches; m++) row[start + period * m] = i + 1;
      });
      return row;
    });
    return new VGrid(block.length, microbatches, rows);
  }

  /** Puts weight work into the empty slots after the I it belongs to, the rest at the end. */
  addWeights(): void {
    this.rows = this.rows.map((row) => withWeights(row, 0));
  }

  /** Takes the weight work out again. */
  dropWeights(): void {
    for (const row of this.rows)
      for (let slot = 0; slot < row.length; slot++) if (row[slot] === Cell.W) row[slot] = Cell.Empty;
  }

  /** Most chunks a rank holds, from F until W; weight work not in the grid counts as done in empty slots. */
  get peak(): number {
    return Math.max(...this.rows.map(peakOf));
  }

  /** Moves every cell to the earliest slot its inputs and the order of its row allow; false where the order cannot go on. */
  squeeze(): boolean {
    const { ranks } = this;
    const done = new DoneSlots(ranks, this.microbatches);
    const orders = this.rows.map(withoutGaps);
    const squeezed: Uint8Array[] = orders.map((order) => new Uint8Array(order.length + 4 * ranks + 4));
    const cursor = new Int32Array(ranks);
    const last = new Int32Array(ranks).fill(-1);
    const advance = (rank: number): boolean => {
      const order = orders[rank]!;
      const from = cursor[rank]!;
      for (; cursor[rank]! < order.length; cursor[rank]!++) {
        const cell = order[cursor[rank]!]!;
        const input = done.inputOf(rank, cell);
        if (input === notDone) break;
        const slot = Math.max(last[rank]!, input) + 1;
        if (slot >= squeezed[rank]!.length) squeezed[rank] = grown(squeezed[rank]!, slot + 1);
        squeezed[rank]![slot] = cell;
        last[rank] = slot;
        done.add(rank, cell, slot);
      }
      return cursor[rank]! > from;
    };
    for (let progress = true; progress; ) {
      progress = false;
      for (let rank = 0; rank < ranks; rank++) progress = advance(rank) || progress;
      for (let rank = ranks - 1; rank >= 0; rank--) progress = advance(rank) || progress;
    }
    this.rows = squeezed.map((row, rank) => row.slice(0, last[rank]! + 1));
    return orders.every((order, rank) => cursor[rank] === order.length);
  }

  /** Moves cells into earlier empty slots as long as their inputs are there and no rank holds more than the cap. */
  pullForward({ cap = this.peak, where = 'ends' }: PullOptions): void {
    const { ranks, microbatches } = this;
    const done = new DoneSlots(ranks, microbatches);
    const held = this.rows.map((row) =>
      row.includes(Cell.W) ? new HeldChunks(row, cap) : new ImpliedWeights(row, cap),
    );
    const length = Math.max(...this.rows.map((row) => row.length));
    let forwards = 0;
    let phase: 'warm-up' | 'steady' | 'cool-down' = 'warm-up';
    for (let slot = 0; slot < length; slot++) {
      for (let rank = 0; rank < ranks; rank++) {
        const cell = this.rows[rank]![slot] ?? Cell.Empty;
        if (cell === Cell.Empty) continue;
        if (phase === 'warm-up' && rank === 0 && cell === Cell.DownI)
          phase = forwards === microbatches ? 'cool-down' : 'steady';
        if (rank === 0 && cell === Cell.DownF) forwards++;
        const moves = where === 'everywhere' || phase === 'cool-down' || (phase === 'warm-up' && where === 'ends');
        if (phase === 'steady' && forwards === microbatches) phase = 'cool-down';
        const to = moves ? held[rank]!.move(slot, done.earliest(rank, cell)) : slot;
        done.add(rank, cell, to);
      }
    }
  }

  /**
   * Rebuilds what each rank does before its first DownI: as many F as the cap holds, the two stages in turn once the up
   * stage's inputs come, then UpI, W and a forward in turn.
   */
  shapeWarmUp(cap: number): void {
    const { ranks, microbatches } = this;
    this.rows = this.rows.map((row, rank) => {
      const first = row.indexOf(Cell.DownI);
      const prefix = row.slice(0, first < 0 ? row.length : first);
      const left = new Int32Array(6);
      for (const cell of prefix) left[cell]!++;
      const order: number[] = [];
      const take = (cell: number, atMost: number = Number.MAX_SAFE_INTEGER): boolean => {
        if (left[cell] === 0 || atMost <= 0) return false;
        left[cell]!--;
        order.push(cell);
        return true;
      };
      let up = Math.min(rank + 1, cap >> 1, microbatches);
      let down = Math.min(cap - up, microbatches);
      for (let i = 0; i < 2 * (ranks - 1 - rank); i++) if (take(Cell.DownF, down)) down--;
      for (let i = 0; i <= rank; i++) {
        if (take(Cell.DownF, down)) down--;
        if (take(Cell.UpF, up)) up--;
      }
      while (left[Cell.DownF]! + left[Cell.UpF]! + left[Cell.UpI]! + left[Cell.W]! > 0) {
        take(Cell.UpI);
        take(Cell.W);
        if (!take(Cell.UpF)) take(Cell.DownF);
      }
      return Uint8Array.from([...order, ...row.subarray(prefix.length)]);
    });
  }

  /**
   * Rebuilds the end of each row: the last I of both stages flow through the V without a stop, every other slot, and the
   * weight work they leave fills the slots between and after them.
   */
  shapeCoolDown(cap: number): void {
    const { ranks, microbatches } = this;
    const turn = this.rows[0]!.lastIndexOf(Cell.UpF);
    const downs = Math.min((cap + 1) >> 1, microbatches);
    this.rows = this.rows.map((row, rank) => {
      const ups = Math.min(rank + 1, cap - ((cap + 1) >> 1), microbatches);
      const end = Math.max(row.length, turn + 2 * ranks + 1) + downs + ups;
      const next = grown(row, end);
      removeLast(next, Cell.DownI, downs);
      removeLast(next, Cell.UpI, ups);
      removeLast(next, Cell.W, Math.max(downs + ups, cap));
      for (let k = 0; k < downs; k++) putFrom(next, turn - rank + 2 * ranks - 2 * k, Cell.DownI);
      for (let k = 0; k < ups; k++) putFrom(next, turn + 1 + rank - 2 * k, Cell.UpI);
      return withWeights(next, next.lastIndexOf(Cell.W) + 1);
    });
  }

  /** The rows as a schedule. */
  toSchedule(shape: ScheduleShape): Schedule {
    const { ranks, microbatches } = this;
    const stages = 2 * ranks;
    const builder = new ScheduleBuilder({
      ...shape,
      microbatches,
      stageToRank: stageToRank({ ranks, stages, style: 'v' }),
      capacity: period * microbatches,
    });
    for (let rank = 0; rank < ranks; rank++) {
      for (const word of this.wordsOf(rank, builder.layout)) builder.row(rank).push(word);
    }
    return builder.finish();
  }

  /** The words of a row; a weight slot does the way up's oldest W if one is pending, else the way down's. */
  wordsOf(rank: number, layout: Layout): Int32Array {
    const down = rank;
    const up = 2 * this.ranks - 1 - rank;
    const row = this.rows[rank]!;
    const next = new Int32Array(6);
    const words = new Int32Array(row.length);
    let count = 0;
    let upWeights = 0;
    let downWeights = 0;
    for (let slot = 0; slot < row.length; slot++) {
      const cell = row[slot]!;
      if (cell === Cell.Empty) continue;
      const m = next[cell]!++;
      if (cell === Cell.W) {
        words[count++] =
          upWeights < next[Cell.UpI]! ? layout.pack(Code.W, up, upWeights++) : layout.pack(Code.W, down, downWeights++);
      } else {
        const code = cell === Cell.DownF || cell === Cell.UpF ? Code.F : Code.I;
        words[count++] = layout.pack(code, cell === Cell.DownF || cell === Cell.DownI ? down : up, m);
      }
    }
    return words.subarray(0, count);
  }
}

/** A row with weight work in the empty slots from `from` on, behind the I it belongs to; what is left over at the end. */
function withWeights(row: Uint8Array, from: number): Uint8Array {
  const filled = row.slice();
  let pending = 0;
  for (let slot = 0; slot < filled.length; slot++) {
    const cell = filled[slot]!;
    if (cell === Cell.UpI || cell === Cell.DownI) pending++;
    else if (cell === Cell.W) pending--;
    else if (cell === Cell.Empty && pending > 0 && slot >= from) {
      filled[slot] = Cell.W;
      pending--;
    }
  }
  const all = grown(filled, filled.length + pending);
  all.fill(Cell.W, filled.length);
  return all;
}

/** The cells of a row without its empty slots. */
function withoutGaps(row: Uint8Array): Uint8Array {
  const cells = new Uint8Array(row.length);
  let count = 0;
  for (let slot = 0; slot < row.length; slot++) if (row[slot] !== Cell.Empty) cells[count++] = row[slot]!;
  return cells.subarray(0, count);
}

/** Empties the last `count` slots of a kind. */
function removeLast(row: Uint8Array, cell: number, count: number): void {
  for (let slot = row.length - 1, left = count; slot >= 0 && left > 0; slot--) {
    if (row[slot] !== cell) continue;
    row[slot] = Cell.Empty;
    left--;
  }
}

/** Puts a cell into the first empty slot from `slot` on. */
function putFrom(row: Uint8Array, slot: number, cell: number): void {
  let at = Math.max(0, slot);
  while (at < row.length && row[at] !== Cell.Empty) at++;
  row[at] = cell;
}

function grown(row: Uint8Array, length: number): Uint8Array {
  const longer = new Uint8Array(Math.max(length, row.length));
  longer.set(row);
  return longer;
}

/** Numbers in blocks, so that a range is raised, and the last one that reaches a limit is found, without looking at each. */
class BlockedCounts {
  private readonly counts: Int32Array;
  /** What has been added to a whole block, and the highest count of a block without it. */
  private readonly added: Int32Array;
  private readonly highest: Int32Array;

  constructor(counts: Int32Array) {
    const blocks = (counts.length >> blockBits) + 1;
    this.counts = counts;
    this.added = new Int32Array(blocks);
    this.highest = new Int32Array(blocks);
    for (let block = 0; block < blocks; block++) this.measure(block);
  }

  /** Adds to the counts from `from` on, before `end`. */
  add(from: number, end: number, value: number): void {
    const first = from >> blockBits;
    const last = end >> blockBits;
    for (let block = first; block <= last; block++) {
      const start = Math.max(from, block << blockBits);
      const stop = Math.min(end, (block + 1) << blockBits);
      if (stop - start === blockSize) this.added[block]! += value;
      else if (stop > start) {
        for (let i = start; i < stop; i++) this.counts[i]! += value;
        this.measure(block);
      }
    }
  }

  /** The last place before `end` and not before `from` whose count is at least `limit`; `from - 1` if there is none. */
  lastAtLeast(limit: number, from: number, end: number): number {
    for (let i = end - 1; i >= from; i--) {
      const block = i >> blockBits;
      if (this.highest[block]! + this.added[block]! < limit) i = block << blockBits;
      else if (this.counts[i]! + this.added[block]! >= limit) return i;
    }
    return from - 1;
  }

  private measure(block: number): void {
    let most = Number.MIN_SAFE_INTEGER;
    const stop = Math.min(this.counts.length, (block + 1) << blockBits);
    for (let i = block << blockBits; i < stop; i++) if (this.counts[i]! > most) most = this.counts[i]!;
    this.highest[block] = Math.max(most, -(2 ** 30));
  }
}

const blockBits = 6;
const blockSize = 1 << blockBits;

/** A row with its weight work in it, and the chunks held after each slot. */
class HeldChunks {
  private readonly row: Uint8Array;
  private readonly cap: number;
  private readonly held: BlockedCounts;

  constructor(row: Uint8Array, cap: number) {
    this.row = row;
    this.cap = cap;
    const held = new Int32Array(row.length);
    let now = 0;
    for (let slot = 0; slot < row.length; slot++) {
      now += chunksOf(row[slot]!);
      held[slot] = now;
    }
    this.held = new BlockedCounts(held);
  }

  /** Moves a cell to the first empty slot from `from` on that keeps the cap, and says where it is then. */
  move(slot: number, from: number): number {
    const { row } = this;
    const cell = row[slot]!;
    const adds = chunksOf(cell);
    let to = adds > 0 ? this.held.lastAtLeast(this.cap, from, slot) + 1 : from;
    while (to < slot && row[to] !== Cell.Empty) to++;
    if (to >= slot) return slot;
    row[slot] = Cell.Empty;
    row[to] = cell;
    if (adds !== 0) this.held.add(to, slot, adds);
    return to;
  }
}

/** Chunks a cell adds to those held; W gives one back. */
function chunksOf(cell: number): number {
  return cell === Cell.DownF || cell === Cell.UpF ? 1 : cell === Cell.W ? -1 : 0;
}

/** A row without weight work, which is done in its empty slots: chunks held and W pending after each slot. */
class ImpliedWeights {
  private readonly row: Uint8Array;
  private readonly cap: number;
  private readonly held: Int32Array;
  private readonly pending: Int32Array;

  constructor(row: Uint8Array, cap: number) {
    this.row = row;
    this.cap = cap;
    this.held = new Int32Array(row.length);
    this.pending = new Int32Array(row.length);
    this.run(0, row.length, true);
  }

  /** Moves a cell to the first empty slot from `from` on that keeps the cap, and says where it is then. */
  move(slot: number, from: number): number {
    const { row } = this;
    const cell = row[slot]!;
    for (let to = from; to < slot; to++) {
      if (row[to] !== Cell.Empty) continue;
      row[slot] = Cell.Empty;
      row[to] = cell;
      if (this.run(to, slot, false)) {
        this.run(to, slot, true);
        return to;
      }
      row[to] = Cell.Empty;
      row[slot] = cell;
    }
    return slot;
  }

  /** Counts from a slot until nothing differs behind `until`; whether the cap is kept. `keep` writes the counts down. */
  private run(from: number, until: number, keep: boolean): boolean {
    const { row, cap, held, pending } = this;
    let now = from === 0 ? 0 : held[from - 1]!;
    let open = from === 0 ? 0 : pending[from - 1]!;
    for (let slot = from; slot < row.length; slot++) {
      const cell = row[slot]!;
      if (cell === Cell.DownF || cell === Cell.UpF) {
        if (++now > cap && !keep) return false;
      } else if (cell !== Cell.Empty) open++;
      else if (open > 0) {
        now--;
        open--;
      }
      if (slot >= until && held[slot] === now && pending[slot] === open) return true;
      if (keep) {
        held[slot] = now;
        pending[slot] = open;
      }
    }
    return true;
  }
}

/** Most chunks held at once in a row; weight work not in the row is done in its empty slots. */
function peakOf(row: Uint8Array): number {
  const implied = !row.includes(Cell.W);
  let held = 0;
  let pending = 0;
  let high = 0;
  for (let slot = 0; slot < row.length; slot++) {
    const cell = row[slot]!;
    if (cell === Cell.DownF || cell === Cell.UpF) {
      if (++held > high) high = held;
    } else if (cell === Cell.W) held--;
    else if (cell !== Cell.Empty) pending++;
    else if (implied && pending > 0) {
      held--;
      pending--;
    }
  }
  return high;
}

const notDone = -2;

/** Slots in which work was done, by rank, kind and microbatch. */
class DoneSlots {
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
    if ((cell === Cell.UpI || cell === Cell.DownI) && slot < this.merged[3 * rank + 2]!)
      this.merged.fill(0, 3 * rank, 3 * rank + 3);
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
