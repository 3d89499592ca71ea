/**
 * @file Moves receives that were put early in vain.
 *
 * When three or more ranks wait in a cycle, one send of it gets its receive early; which one turns out best is only seen
 * later: another send of the same cycle may get its receive early too, and then the first one may not have been needed.
 */

import { Code, isMessage, wordCode } from '../model/packed.ts';

/** The rows under construction. */
export interface RowsSoFar {
  /** Cells of each rank; only the first `length[rank]` are written. */
  readonly out: readonly Int32Array[];
  readonly length: Int32Array;
  /** What each rank is stopped at; 0: nothing. */
  readonly stop: Int32Array;
  /** The cell at the other end of a send or receive that has only one, and its rank. */
  partner(word: number): number;
  partnerRank(word: number): number;
  /** Whether a cell is the compute that needs the data of a receive. */
  isUse(word: number, receive: number): boolean;
}

/** A receive that stands early because of a cycle. */
interface EarlyReceive {
  readonly rank: number;
  readonly word: number;
  /** Position among all of them. */
  readonly number: number;
  slot: number;
}

const mostVisits = 10_000;

/** Remembers early receives and moves them later as far as no cycle closes. */
export class ReceiveSettler {
  private readonly rows: RowsSoFar;
  private readonly early: EarlyReceive[] = [];
  private readonly doubtful: Set<EarlyReceive> = new Set();
  /** Per rank the doubtful receives with nothing but receives behind them, and how long the row was then. */
  private readonly open: (EarlyReceive[] | undefined)[];
  private readonly openLength: Int32Array;
  /** Per rank the early receive of the last cycle it was in, and what it stood at then. */
  private readonly cycleOf: Int32Array;
  private readonly stoodAt: Int32Array;

  constructor(rows: RowsSoFar) {
    this.rows = rows;
    this.cycleOf = new Int32Array(rows.stop.length);
    this.stoodAt = new Int32Array(rows.stop.length);
    this.open = Array.from({ length: rows.stop.length }, () => undefined);
    this.openLength = new Int32Array(rows.stop.length);
  }

  /** Notes a cycle; the last cell of `receiver` is the receive that was put early to break it. */
  noteCycle(cycle: Int32Array, receiver: number): void {
    const { cycleOf, stoodAt } = this;
    const { stop, length, out } = this.rows;
    for (let i = 0; i < cycle.length; i++) {
      const rank = cycle[i]!;
      this.noteForced(rank); // two cycles through one stop: the first break may have been in vain
      cycleOf[rank] = this.early.length;
      stoodAt[rank] = stop[rank]!;
    }
    const slot = length[receiver]! - 1;
    this.early.push({ rank: receiver, word: out[receiver]![slot]!, number: this.early.length, slot });
  }

  /** Notes that the send a rank stands at gets its receive early. */
  noteForced(rank: number): void {
    const word = this.rows.stop[rank]!;
    if (word !== 0 && this.stoodAt[rank] === word) this.doubtful.add(this.early[this.cycleOf[rank]!]!);
  }

  /** Moves the doubtful receives; call it when no rank is in the middle of anything. */
  settle(): void {
    this.takeUpOpen();
    if (this.doubtful.size === 0) return;
    const found = [...this.doubtful].sort((a, b) => a.number - b.number);
    this.doubtful.clear();
    const open = new Set<EarlyReceive>();
    // One that moves may let another one move, so they are gone through until nothing moves.
    for (let moved = true; moved; ) {
      moved = false;
      for (const receive of found) {
        receive.slot = this.find(receive.rank, receive.word, receive.slot);
        const from = receive.slot;
        if (this.moveLater(receive)) open.add(receive);
        if (receive.slot !== from) moved = true;
      }
    }
    for (const receive of open) (this.open[receive.rank] ??= []).push(receive);
    for (const receive of open) this.openLength[receive.rank] = this.rows.length[receive.rank]!;
  }

  /** Looks again at the receives with something other than receives behind them by now. */
  private takeUpOpen(): void {
    const { open, openLength } = this;
    for (let rank = 0; rank < openLength.length; rank++) {
      const waiting = open[rank];
      if (waiting === undefined) continue;
      const row = this.rows.out[rank]!;
      const length = this.rows.length[rank]!;
      while (openLength[rank]! < length && isReceive(row[openLength[rank]!]!)) openLength[rank]!++;
      if (openLength[rank] === length) continue;
      open[rank] = undefined;
      for (const receive of waiting) this.doubtful.add(receive);
    }
  }

  /** Moves a receive as far as possible; whether the cells after it are not there yet. */
  private moveLater(receive: EarlyReceive): boolean {
    const row = this.rows.out[receive.rank]!;
    const length = this.rows.length[receive.rank]!;
    for (;;) {
      let end = receive.slot + 1;
      while (end < length && isReceive(row[end]!)) end++;
      if (end >= length) return true;
      if (this.rows.isUse(row[end]!, receive.word) || this.leadsTo(receive, end)) return false;
      row.copyWithin(receive.slot, receive.slot + 1, end + 1);
      row[end] = receive.word;
      receive.slot = end;
    }
  }

  /** Whether a message of the cells up to `end` happens only after this one, for other reasons than its place in the row. */
  private leadsTo(receive: EarlyReceive, end: number): boolean {
    const { out, length } = this.rows;
    const { rank, slot, word: own } = receive;
    if (!out[rank]!.subarray(slot + 1, end + 1).some(isMessage)) return false;
    const sender = this.rows.partnerRank(own);
    const visited = new Set<number>();
    const open: [rank: number, slot: number][] = [
      [sender, this.find(sender, this.rows.partner(own), length[sender]!) + 1],
    ];
    // Nearest first: what closes a cycle is usually a few messages away.
    for (let next = 0; next < open.length; next++) {
      const [r, from] = open[next]!;
      let s = from;
      while (s < length[r]! && !isMessage(out[r]![s]!)) s++;
      if (s >= length[r]!) continue;
      if (r === rank && s > slot) {
        if (s <= end) return true;
        continue;
      }
      const word = out[r]![s]!;
      if (visited.has(word)) continue;
      if (visited.size > mostVisits) return true;
      visited.add(word);
      open.push([r, s + 1]);
      const partner = this.rows.partner(word);
      const partnerRank = this.rows.partnerRank(word);
      visited.add(partner);
      const there = this.find(partnerRank, partner, length[partnerRank]!);
      if (partnerRank === rank && there > slot && there <= end) return true;
      open.push([partnerRank, there + 1]);
    }
    return false;
  }

  /** Where a cell stands, looked for around a slot. */
  private find(rank: number, word: number, near: number): number {
    const row = this.rows.out[rank]!;
    const length = this.rows.length[rank]!;
    let up = near;
    let down = near - 1;
    while (up < length || down >= 0) {
      if (up < length && row[up++] === word) return up - 1;
      if (down >= 0 && row[down--] === word) return down + 1;
    }
    return -1;
  }
}

function isReceive(word: number): boolean {
  return wordCode(word) === Code.RecvF || wordCode(word) === Code.RecvB;
}
