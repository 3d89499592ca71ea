/**
 * @file Adds sends and receives, each receive at its latest safe point.
 *
 * A send stands right after the action that makes its data. A receive stands right before the action that needs its data,
 * unless that would let ranks wait for each other for ever; then it stands right before the action its rank would be
 * stuck at, and no later: moved past that action the circle would close again.
 *
 * How: the rows are executed with rendezvous channels (a send and its receive wait for each other). When ranks wait in a
 * circle, one of its sends is given its receive on the spot, which breaks the circle. What comes out is the order in
 * which things happened, so it is free of deadlock with rendezvous channels and hence with buffered ones. Each cell is
 * handled a bounded number of times. Only orders of waiting enter, no times: actions that take part in no communication
 * (UNSHARD, RESHARD, REDUCE_GRAD) do not move receives.
 *
 * A receive from several stages (skip connections) only posts: its rank goes on, and the action that needs the data waits.
 */

import { ScheduleError } from './errors.ts';
import { Code } from './packed.ts';
import type { Schedule } from './schedule.ts';
import { Peer, StageGraph } from './stage-graph.ts';

/** What a rank is stopped at. */
const Stop = { Not: 0, Send: 1, Receive: 2, Data: 3 } as const;

const forward = 0;
const backward = 1;

/** The rows of a compute order (bubbles dropped) with sends and receives. */
export function placeCommunication(schedule: Schedule): Int32Array[] {
  return new Placer(schedule).run();
}

class Placer {
  private readonly schedule: Schedule;
  private readonly rows: readonly Int32Array[];
  private readonly stageShift: number;
  private readonly fieldMask: number;
  private readonly graph: StageGraph;
  private readonly rankOf: Int32Array;
  /** By direction: the only stage a stage sends to (receives from), or Peer.None, Peer.Several. */
  private readonly sendPeer: readonly [Int32Array, Int32Array];
  private readonly recvPeer: readonly [Int32Array, Int32Array];
  private readonly width: number;
  /** Per (stage, microbatch): bits 1 and 2 received, bits 4 and 8 sent, by direction. */
  private readonly marks: Uint8Array;
  private readonly cursor: Int32Array;
  /** Leaf of the current entry whose sends come next; -1 before the entry is done. */
  private readonly sending: Int32Array;
  private readonly stop: Uint8Array;
  /** The send or receive word a rank is stopped at (for Data: the receive word). */
  private readonly stopWord: Int32Array;
  private readonly out: Int32Array[];
  private readonly length: Int32Array;
  private readonly ready: number[] = [];
  /** The rank that runs; it goes on by itself. */
  private current = -1;

  constructor(schedule: Schedule) {
    const { rows, layout, ranks, stages } = schedule;
    this.schedule = schedule;
    this.rows = rows;
    this.stageShift = layout.stageShift;
    this.fieldMask = layout.microbatchMask;
    this.graph = new StageGraph(schedule);
    this.rankOf = this.graph.rankOf;
    const inputs = this.graph.peers('inputs');
    const outputs = this.graph.peers('outputs');
    this.sendPeer = [outputs, inputs];
    this.recvPeer = [inputs, outputs];
    this.width = schedule.microbatches + 1;
    this.marks = new Uint8Array(stages * this.width);
    this.cursor = new Int32Array(ranks);
    this.sending = new Int32Array(ranks).fill(-1);
    this.stop = new Uint8Array(ranks);
    this.stopWord = new Int32Array(ranks);
    this.length = new Int32Array(ranks);
    this.out = rows.map((row) => new Int32Array(this.roomFor(row)));
  }

  run(): Int32Array[] {
    const { ready } = this;
    for (let rank = this.rows.length - 1; rank >= 0; rank--) ready.push(rank);
    do {
      for (let rank = ready.pop(); rank !== undefined; rank = ready.pop()) this.runRank(rank);
    } while (this.breakCircles());
    return this.out;
  }

  /** Cells a row will have. */
  private roomFor(row: Int32Array): number {
    const { composites } = this.schedule;
    const [sends, receives] = [this.sendPeer, this.recvPeer];
    let room = 0;
    for (let slot = 0; slot < row.length; slot++) {
      const word = row[slot]!;
      if (word === 0) continue;
      room++;
      const code = word & 15;
      if (code === Code.Composite) {
        for (const leaf of composites.leavesOf(word)) room += this.messagesOf(leaf);
      } else if (code <= Code.B && code !== Code.W) {
        const direction = code === Code.F ? forward : backward;
        const stage = word >>> this.stageShift;
        if (sends[direction]![stage] !== Peer.None) room++;
        if (receives[direction]![stage] !== Peer.None) room++;
      }
    }
    return room;
  }

  private messagesOf(leaf: number): number {
    const direction = directionOf(leaf & 15);
    if (direction < 0) return 0;
    const stage = leaf >>> this.stageShift;
    return (this.sendPeer[direction]![stage] === Peer.None ? 0 : 1) + (this.recvPeer[direction]![stage] === Peer.None ? 0 : 1);
  }

  /** Goes on with a rank until it has to wait. */
  private runRank(rank: number): void {
    const row = this.rows[rank]!;
    const out = this.out[rank]!;
    this.stop[rank] = Stop.Not;
    this.current = rank;
    for (;;) {
      const slot = this.cursor[rank]!;
      if (slot >= row.length) return;
      const word = row[slot]!;
      const code = word & 15;
      if (code === Code.Composite) {
        if (!this.runComposite(rank, word)) return;
      } else if (code === Code.F || code === Code.I || code === Code.B) {
        const direction = code === Code.F ? forward : backward;
        const stage = word >>> this.stageShift;
        if (this.sending[rank]! < 0) {
          if (this.recvPeer[direction]![stage] !== Peer.None && !this.receive(rank, word, direction)) return;
          out[this.length[rank]!++] = word;
          this.sending[rank] = 0;
        }
        if (this.sendPeer[direction]![stage] !== Peer.None && !this.send(rank, word, direction)) return;
        this.sending[rank] = -1;
      } else if (code !== Code.Bubble) {
        out[this.length[rank]!++] = word;
      }
      this.cursor[rank] = slot + 1;
    }
  }

  private runComposite(rank: number, word: number): boolean {
    const leaves = this.schedule.composites.leavesOf(word);
    if (this.sending[rank]! < 0) {
      for (const leaf of leaves) {
        const direction = directionOf(leaf & 15);
        if (direction >= 0 && this.recvPeer[direction]![leaf >>> this.stageShift] !== Peer.None && !this.receive(rank, leaf, direction)) return false;
      }
      this.out[rank]![this.length[rank]!++] = word;
      this.sending[rank] = 0;
    }
    for (let part = this.sending[rank]!; part < leaves.length; part++) {
      this.sending[rank] = part;
      const leaf = leaves[part]!;
      const direction = directionOf(leaf & 15);
      if (direction >= 0 && this.sendPeer[direction]![leaf >>> this.stageShift] !== Peer.None && !this.send(rank, leaf, direction)) return false;
    }
    this.sending[rank] = -1;
    return true;
  }

  /** Whether the data of an entry is there; posts its receive, or stops at it. */
  private receive(rank: number, word: number, direction: number): boolean {
    const { marks, stageShift } = this;
    const stage = word >>> stageShift;
    const field = (word >>> 4) & this.fieldMask;
    const key = stage * this.width + field;
    const received = direction === forward ? 1 : 2;
    const recvWord = (word & ~15) | (direction === forward ? Code.RecvF : Code.RecvB);
    const peer = this.recvPeer[direction]![stage]!;
    if (peer !== Peer.Several) {
      if ((marks[key]! & received) !== 0) return true;
      this.stop[rank] = Stop.Receive;
      this.stopWord[rank] = recvWord;
      const sender = this.rankOf[peer]!;
      if (this.stop[sender] === Stop.Send && this.stopWord[sender] === this.sendWordOf(peer, field, direction) && this.transfer(sender)) {
        this.stop[rank] = Stop.Not;
        this.stop[sender] = Stop.Not;
        this.ready.push(sender);
        return true;
      }
      this.breakPair(rank, sender);
      return false;
    }
    if ((marks[key]! & received) === 0) {
      marks[key]! |= received;
      this.out[rank]![this.length[rank]!++] = recvWord;
    }
    let complete = true;
    for (const source of this.peersOf(stage, direction, 'recv')) {
      if ((marks[source * this.width + field]! & (received << 2)) !== 0) continue;
      const sender = this.rankOf[source]!;
      if (this.stop[sender] === Stop.Send && this.stopWord[sender] === this.sendWordOf(source, field, direction) && this.transfer(sender)) {
        this.stop[sender] = Stop.Not;
        this.ready.push(sender);
      } else complete = false;
    }
    if (complete) return true;
    this.stop[rank] = Stop.Data;
    this.stopWord[rank] = recvWord;
    return false;
  }

  /** Sends the result of an entry, or stops at it. */
  private send(rank: number, word: number, direction: number): boolean {
    const key = (word >>> this.stageShift) * this.width + ((word >>> 4) & this.fieldMask);
    if ((this.marks[key]! & (direction === forward ? 4 : 8)) !== 0) return true; // its receiver took it meanwhile
    this.stop[rank] = Stop.Send;
    this.stopWord[rank] = (word & ~15) | (direction === forward ? Code.SendF : Code.SendB);
    if (this.transfer(rank)) {
      this.stop[rank] = Stop.Not;
      return true;
    }
    const peer = this.sendPeer[direction]![word >>> this.stageShift]!;
    if (peer !== Peer.Several) this.breakPair(rank, this.rankOf[peer]!);
    return false;
  }

  /** Performs the send a rank is stopped at if all its receivers are there; they may go on. */
  private transfer(rank: number): boolean {
    const word = this.stopWord[rank]!;
    const direction = (word & 15) === Code.SendF ? forward : backward;
    const stage = word >>> this.stageShift;
    const peer = this.sendPeer[direction]![stage]!;
    if (peer !== Peer.Several) {
      if (!this.isThere(peer, word, direction)) return false;
      this.take(peer, word, direction);
    } else {
      const peers = this.peersOf(stage, direction, 'send');
      if (!peers.every((target) => this.isThere(target, word, direction))) return false;
      for (const target of peers) this.take(target, word, direction);
    }
    this.sent(rank, word, direction);
    return true;
  }

  private sent(rank: number, word: number, direction: number): void {
    this.marks[(word >>> this.stageShift) * this.width + ((word >>> 4) & this.fieldMask)]! |= direction === forward ? 4 : 8;
    this.out[rank]![this.length[rank]!++] = word;
  }

  /** Whether a receiving stage has posted for this send or is stopped at its receive. */
  private isThere(target: number, sendWord: number, direction: number): boolean {
    const rank = this.rankOf[target]!;
    const field = (sendWord >>> 4) & this.fieldMask;
    if (this.stop[rank] === Stop.Receive && this.stopWord[rank] === this.recvWordOf(target, field, direction)) return true;
    return (this.marks[target * this.width + field]! & (direction === forward ? 1 : 2)) !== 0;
  }

  /** Hands a message over: the receive is written if it is not yet, and its rank goes on if it waited for this. */
  private take(target: number, sendWord: number, direction: number): void {
    const rank = this.rankOf[target]!;
    const field = (sendWord >>> 4) & this.fieldMask;
    const key = target * this.width + field;
    const received = direction === forward ? 1 : 2;
    const recvWord = this.recvWordOf(target, field, direction);
    if ((this.marks[key]! & received) === 0) {
      this.marks[key]! |= received;
      this.out[rank]![this.length[rank]!++] = recvWord;
    }
    if (this.stop[rank]! >= Stop.Receive && this.stopWord[rank] === recvWord) {
      this.stop[rank] = Stop.Not;
      if (rank !== this.current) this.ready.push(rank);
    }
  }

  /** Gives the send a rank is stopped at its receives on the spot. */
  private force(rank: number): void {
    const word = this.stopWord[rank]!;
    const direction = (word & 15) === Code.SendF ? forward : backward;
    const stage = word >>> this.stageShift;
    const peer = this.sendPeer[direction]![stage]!;
    if (peer !== Peer.Several) this.take(peer, word, direction);
    else for (const target of this.peersOf(stage, direction, 'send')) this.take(target, word, direction);
    this.sent(rank, word, direction);
    this.stop[rank] = Stop.Not;
    this.ready.push(rank);
  }

  /** The usual circle, two ranks that wait for each other, is broken as soon as it closes. */
  private breakPair(rank: number, other: number): void {
    if (this.stop[other] === Stop.Not || this.waitsFor(other) !== rank) return;
    const sender = this.better(this.stop[rank] === Stop.Send ? rank : -1, this.stop[other] === Stop.Send ? other : -1);
    if (sender >= 0) this.force(sender);
  }

  /** Of two ranks at sends, the one to give its receive: a forward send before a backward one, then the lower rank. */
  private better(a: number, b: number): number {
    if (a < 0 || b < 0) return Math.max(a, b);
    const aForward = (this.stopWord[a]! & 15) === Code.SendF;
    const bForward = (this.stopWord[b]! & 15) === Code.SendF;
    return aForward === bForward ? Math.min(a, b) : aForward ? a : b;
  }

  /** The rank a stopped rank waits for; -1 if it is not stopped at a message. */
  private waitsFor(rank: number): number {
    const word = this.stopWord[rank]!;
    const code = word & 15;
    const stage = word >>> this.stageShift;
    const direction = code === Code.SendF || code === Code.RecvF ? forward : backward;
    const field = (word >>> 4) & this.fieldMask;
    if (this.stop[rank] === Stop.Send) {
      const peer = this.sendPeer[direction]![stage]!;
      const missing = peer === Peer.Several ? this.peersOf(stage, direction, 'send').find((target) => !this.isThere(target, word, direction))! : peer;
      return this.rankOf[missing]!;
    }
    const peer = this.recvPeer[direction]![stage]!;
    const missing = peer === Peer.Several ? this.peersOf(stage, direction, 'recv').find((source) => (this.marks[source * this.width + field]! & (direction === forward ? 4 : 8)) === 0)! : peer;
    return this.rankOf[missing]!;
  }

  /** When no rank can go on: breaks every circle. False when all ranks are at their end. */
  private breakCircles(): boolean {
    this.current = -1;
    const ranks = this.rows.length;
    const seen = new Int32Array(ranks).fill(-1);
    let stopped = -1;
    for (let start = 0; start < ranks; start++) {
      if (this.stop[start] === Stop.Not) continue;
      stopped = start;
      let rank = start;
      while (seen[rank]! < 0 && this.stop[rank] !== Stop.Not) {
        seen[rank] = start;
        rank = this.waitsFor(rank);
      }
      if (seen[rank] !== start || this.stop[rank] === Stop.Not) continue;
      const first = rank;
      let sender = -1;
      do {
        if (this.stop[rank] === Stop.Send) sender = this.better(sender, rank);
        rank = this.waitsFor(rank);
      } while (rank !== first);
      if (sender >= 0) this.force(sender);
    }
    if (stopped >= 0 && this.ready.length === 0) this.refuse(stopped);
    return stopped >= 0;
  }

  private refuse(rank: number): never {
    const slot = this.cursor[rank]!;
    throw new ScheduleError(
      'DEADLOCK',
      `lower: rank ${rank} never gets past slot ${slot} (${this.schedule.format(this.rows[rank]![slot]!)}): ranks wait for each other's compute; validate() shows the cycle`,
      { rank, slot },
    );
  }

  private peersOf(stage: number, direction: number, side: 'send' | 'recv'): number[] {
    return (direction === forward) === (side === 'send') ? this.graph.sendForwardPeers(stage) : this.graph.recvForwardPeers(stage);
  }

  private sendWordOf(stage: number, field: number, direction: number): number {
    return (direction === forward ? Code.SendF : Code.SendB) | (field << 4) | (stage << this.stageShift);
  }

  private recvWordOf(stage: number, field: number, direction: number): number {
    return (direction === forward ? Code.RecvF : Code.RecvB) | (field << 4) | (stage << this.stageShift);
  }
}

/** 0 for a forward, 1 for a backward that makes an input gradient, -1 for anything else. */
function directionOf(code: number): number {
  return code === Code.F ? forward : code === Code.I || code === Code.B ? backward : -1;
}
