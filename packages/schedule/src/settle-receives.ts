/**
 * @file Moves receives that were put early in vain.
 *
 * When three or more ranks wait in a circle, one send of it gets its receive early; which one turns out best is only seen
 * later: another send of the same circle may need its receive early anyway, and then the first one was not needed.
 */

import { Code } from './packed.ts';

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

/** A receive that may stand too early. */
interface Suspect {
  readonly rank: number;
  slot: number;
  /** Cells each rank had when it was put: what has to do with it is near. */
  readonly before: Int32Array;
  readonly circle: Circle;
}

/** Ranks that waited for each other, each for the next one, and what each of them stood at; the sender comes first. */
export interface Circle {
  readonly ranks: Int32Array;
  readonly words: Int32Array;
}

const mostVisits = 10_000;
/** Cells may have moved forward by a few places since a suspect was put. */
const slack = 16;

/** Keeps the suspects and moves them later as far as no circle closes. */
export class ReceiveSettler {
  private suspects: Suspect[] = [];
  private readonly rows: RowsSoFar;

  constructor(rows: RowsSoFar) {
    this.rows = rows;
  }

  /** Notes that the last cell of the second rank of a circle is a receive put early for the first rank's send. */
  suspect(circle: Circle): void {
    const rank = circle.ranks[1]!;
    this.suspects.push({ rank, slot: this.rows.length[rank]! - 1, before: this.rows.length.slice(), circle });
  }

  /** Moves the suspects whose circle is over; call it when no rank is in the middle of anything. */
  settle(): void {
    if (this.suspects.length === 0) return;
    const over = this.suspects.filter((suspect) => this.isOver(suspect));
    if (over.length === 0) return;
    const doubtful = over.filter((suspect) => !this.isNeeded(suspect));
    // One that moves may let another one move, so they are gone through until nothing moves.
    for (let moved = doubtful.length > 0; moved; ) {
      moved = false;
      for (const suspect of doubtful) if (this.moveLater(suspect)) moved = true;
    }
    this.suspects = this.suspects.filter((suspect) => !over.includes(suspect));
  }

  /** Whether no rank of the circle stands where it stood. */
  private isOver({ circle: { ranks, words } }: Suspect): boolean {
    for (let i = 0; i < ranks.length; i++) if (this.rows.stop[ranks[i]!] === words[i]) return false;
    return true;
  }

  /** Whether the circle would close again without the early receive: everybody else got what it waited for only afterwards. */
  private isNeeded({ circle: { ranks, words }, before }: Suspect): boolean {
    for (let i = 0; i < ranks.length; i++) {
      if (i === 1) continue;
      const rank = ranks[i]!;
      const wanted = this.rows.partner(words[(i === 0 ? ranks.length : i) - 1]!);
      if (!this.isAfter(rank, words[i]!, wanted, before[rank]! - slack)) return false;
    }
    return true;
  }

  /** Whether a row has one cell before another, looked for from a slot on. */
  private isAfter(rank: number, first: number, second: number, from: number): boolean {
    const row = this.rows.out[rank]!;
    for (let slot = Math.max(0, from); slot < this.rows.length[rank]!; slot++) {
      if (row[slot] === first) return true;
      if (row[slot] === second) return false;
    }
    return false;
  }

  /** Moves one suspect as far as possible; whether it moved. */
  private moveLater(suspect: Suspect): boolean {
    const { rank } = suspect;
    const row = this.rows.out[rank]!;
    const length = this.rows.length[rank]!;
    const from = suspect.slot;
    for (;;) {
      let end = suspect.slot + 1;
      while (end < length && isReceive(row[end]!)) end++;
      if (end >= length || this.rows.isUse(row[end]!, row[suspect.slot]!) || this.leadsTo(suspect, end))
        return suspect.slot !== from;
      const word = row[suspect.slot]!;
      row.copyWithin(suspect.slot, suspect.slot + 1, end + 1);
      row[end] = word;
      for (const other of this.suspects)
        if (other !== suspect && other.rank === rank && other.slot > suspect.slot && other.slot <= end) other.slot--;
      suspect.slot = end;
    }
  }

  /** Whether some message of the cells up to `end` happens only after the suspect's, for other reasons than its place in the row. */
  private leadsTo(suspect: Suspect, end: number): boolean {
    const { out, length } = this.rows;
    const { rank, slot, before } = suspect;
    const messages = out[rank]!.subarray(slot + 1, end + 1);
    if (!messages.some(isMessage)) return false;
    const receive = out[rank]![slot]!;
    const sender = this.rows.partnerRank(receive);
    const visited = new Set<number>();
    const open: [rank: number, slot: number][] = [[sender, this.find(sender, this.rows.partner(receive), before) + 1]];
    // Nearest first: what closes a circle is usually a few messages away.
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
      const there = this.find(partnerRank, partner, before);
      if (partnerRank === rank && there > slot && there <= end) return true;
      open.push([partnerRank, there + 1]);
    }
    return false;
  }

  /** Where a cell stands, looked for around the place where its rank was. */
  private find(rank: number, word: number, before: Int32Array): number {
    const row = this.rows.out[rank]!;
    const length = this.rows.length[rank]!;
    let up = before[rank]!;
    let down = up - 1;
    while (up < length || down >= 0) {
      if (up < length && row[up++] === word) return up - 1;
      if (down >= 0 && row[down--] === word) return down + 1;
    }
    return -1;
  }
}

function isReceive(word: number): boolean {
  return (word & 15) === Code.RecvF || (word & 15) === Code.RecvB;
}

function isMessage(word: number): boolean {
  return (word & 15) >= Code.SendF && (word & 15) <= Code.RecvB;
}
