/**
 * @file A plan for V placement on a grid of unit slots: a building block repeated for every microbatch, then tightened at
 * both ends without holding more. Each rank has a stage on the way down the V and one on the way up.
 */

import { Code, type Layout } from '../../../model/packed.ts';
import { stageToRank } from '../../../model/placement.ts';
import type { Schedule } from '../../../model/schedule.ts';
import { ScheduleBuilder } from '../../../model/schedule-builder.ts';
import type { ScheduleShape } from '../definition.ts';
import { DoneSlots, notDone } from './done-slots.ts';
import { HeldChunks } from './held-chunks.ts';
import { ImpliedWeights } from './implied-weights.ts';
import { Cell, isForward, period, VRow } from './row.ts';

/** First slots of DownF, UpF, UpI and DownI on each rank. */
export type BuildingBlock = readonly (readonly [number, number, number, number])[];

/** How `pullForward` moves cells. */
export interface PullOptions {
  /** Chunks a rank may hold; default: what the fullest holds now. */
  readonly cap?: number;
  /** Which cells move; default `ends`, the warm-up and the cool-down (`cool-down` alone: the warm-up stays too). */
  readonly where?: 'ends' | 'cool-down' | 'everywhere';
}

/** Rows by rank; a kind's k-th cell in a row is microbatch k, its k-th W the weight work of the rank's k-th I. */
export class VGrid {
  readonly ranks: number;
  readonly microbatches: number;
  private rows: VRow[];

  constructor(ranks: number, microbatches: number, rows: VRow[]) {
    this.ranks = ranks;
    this.microbatches = microbatches;
    this.rows = rows;
  }

  /** A building block repeated, without weight work. */
  static repeat(block: BuildingBlock, microbatches: number): VGrid {
    return new VGrid(
      block.length,
      microbatches,
      block.map((starts) => VRow.repeat(starts, microbatches)),
    );
  }

  /** Puts weight work into the empty slots after the I it belongs to, the rest at the end. */
  addWeights(): void {
    this.rows = this.rows.map((row) => row.withWeights());
  }

  /** Takes the weight work out again. */
  dropWeights(): void {
    this.rows = this.rows.map((row) => row.withoutWeights());
  }

  /** Most chunks a rank holds, from F until W; weight work not in the grid counts as done in empty slots. */
  get peak(): number {
    return this.rows.reduce((most, row) => Math.max(most, row.peak), 0);
  }

  /** Moves every cell to the earliest slot its inputs and the order of its row allow; false where the order cannot go on. */
  squeeze(): boolean {
    const { ranks, rows } = this;
    const done = new DoneSlots(ranks, this.microbatches);
    const cursor = new Int32Array(ranks);
    const advance = (rank: number): boolean => {
      const { cells, slots } = rows[rank]!;
      const from = cursor[rank]!;
      let at = from;
      let last = at === 0 ? -1 : slots[at - 1]!;
      for (; at < cells.length; at++) {
        const cell = cells[at]!;
        const input = done.inputOf(rank, cell);
        if (input === notDone) break;
        last = Math.max(last, input) + 1;
        slots[at] = last;
        done.add(rank, cell, last);
      }
      cursor[rank] = at;
      return at > from;
    };
    for (let progress = true; progress; ) {
      progress = false;
      for (let rank = 0; rank < ranks; rank++) progress = advance(rank) || progress;
      for (let rank = ranks - 1; rank >= 0; rank--) progress = advance(rank) || progress;
    }
    this.rows = rows.map((row, rank) => row.first(cursor[rank]!));
    return rows.every((row, rank) => cursor[rank] === row.size);
  }

  /** Moves cells into earlier empty slots as long as their inputs are there and no rank holds more than the cap. */
  pullForward({ cap = this.peak, where = 'ends' }: PullOptions): void {
    const { ranks, microbatches } = this;
    const done = new DoneSlots(ranks, microbatches);
    const held = this.rows.map((row) =>
      row.cells.includes(Cell.W) ? new HeldChunks(row, cap) : new ImpliedWeights(row, cap),
    );
    const next = new Int32Array(ranks);
    let forwards = 0;
    let phase: 'warm-up' | 'steady' | 'cool-down' = 'warm-up';
    for (const rank of this.ranksBySlot()) {
      const index = next[rank]!++;
      const cell = this.rows[rank]!.cells[index]!;
      if (phase === 'warm-up' && rank === 0 && cell === Cell.DownI)
        phase = forwards === microbatches ? 'cool-down' : 'steady';
      if (rank === 0 && cell === Cell.DownF) forwards++;
      const moves = where === 'everywhere' || phase === 'cool-down' || (phase === 'warm-up' && where === 'ends');
      if (phase === 'steady' && forwards === microbatches) phase = 'cool-down';
      const from = moves ? done.earliest(rank, cell) : this.rows[rank]!.slots[index]!;
      done.add(rank, cell, held[rank]!.move(index, from));
    }
  }

  /** The rank of each cell, by slot and then by rank. */
  private ranksBySlot(): Int32Array {
    const starts = new Int32Array(this.rows.reduce((most, { slots }) => Math.max(most, (slots.at(-1) ?? -1) + 2), 1));
    for (const { slots } of this.rows) for (const slot of slots) starts[slot + 1]!++;
    for (let slot = 1; slot < starts.length; slot++) starts[slot]! += starts[slot - 1]!;
    const sorted = new Int32Array(starts[starts.length - 1]!);
    this.rows.forEach(({ slots }, rank) => {
      for (const slot of slots) sorted[starts[slot]!++] = rank;
    });
    return sorted;
  }

  /**
   * Rebuilds what each rank does before its first DownI: as many F as the cap holds, the two stages in turn once the up
   * stage's inputs come, then UpI, W and a forward in turn.
   */
  shapeWarmUp(cap: number): void {
    const { ranks, microbatches } = this;
    this.rows = this.rows.map((row, rank) => {
      const found = row.cells.indexOf(Cell.DownI);
      const first = found < 0 ? row.size : found;
      const left = new Int32Array(6);
      for (let i = 0; i < first; i++) left[row.cells[i]!]!++;
      const cells = row.cells.slice();
      let count = 0;
      const take = (cell: number, atMost: number = Number.MAX_SAFE_INTEGER): boolean => {
        if (left[cell] === 0 || atMost <= 0) return false;
        left[cell]!--;
        cells[count++] = cell;
        return true;
      };
      let up = Math.min(rank + 1, cap >> 1, microbatches);
      let down = Math.min(cap - up, microbatches);
      for (let i = 0; i < 2 * (ranks - 1 - rank); i++) if (take(Cell.DownF, down)) down--;
      for (let i = 0; i <= rank; i++) {
        if (take(Cell.DownF, down)) down--;
        if (take(Cell.UpF, up)) up--;
      }
      while (count < first) {
        take(Cell.UpI);
        take(Cell.W);
        if (!take(Cell.UpF)) take(Cell.DownF);
      }
      const empty = found < 0 ? 0 : row.slots[first]! - first;
      return new VRow(
        row.slots.map((slot, i) => (i < first ? i : slot - empty)),
        cells,
      );
    });
  }

  /**
   * Rebuilds the end of each row: the last I of both stages flow through the V without a stop, every other slot, and the
   * weight work they leave fills the slots between and after them.
   */
  shapeCoolDown(cap: number): void {
    const { ranks, microbatches } = this;
    const turn = this.rows[0]!.lastSlotOf(Cell.UpF);
    const downs = Math.min((cap + 1) >> 1, microbatches);
    this.rows = this.rows.map((row, rank) => {
      const ups = Math.min(rank + 1, cap - ((cap + 1) >> 1), microbatches);
      let next = row.withoutLast(
        new Map([
          [Cell.DownI, downs],
          [Cell.UpI, ups],
          [Cell.W, Math.max(downs + ups, cap)],
        ]),
      );
      for (let k = 0; k < downs; k++) next = next.withCell(turn - rank + 2 * ranks - 2 * k, Cell.DownI);
      for (let k = 0; k < ups; k++) next = next.withCell(turn + 1 + rank - 2 * k, Cell.UpI);
      return next.withWeights(next.lastSlotOf(Cell.W) + 1);
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
    const next = new Int32Array(6);
    let upWeights = 0;
    let downWeights = 0;
    const { cells } = this.rows[rank]!;
    const words = new Int32Array(cells.length);
    for (let i = 0; i < cells.length; i++) {
      const cell = cells[i]!;
      const m = next[cell]!++;
      if (cell === Cell.W) {
        words[i] =
          upWeights < next[Cell.UpI]! ? layout.pack(Code.W, up, upWeights++) : layout.pack(Code.W, down, downWeights++);
      } else {
        const code = isForward(cell) ? Code.F : Code.I;
        words[i] = layout.pack(code, cell === Cell.DownF || cell === Cell.DownI ? down : up, m);
      }
    }
    return words;
  }
}
