/**
 * @file Adds sends and receives, each receive at its latest safe point.
 *
 * A send stands right after the action that makes its data. A receive stands right before the action that needs its data,
 * unless that would let ranks wait for each other for ever; then it stands right before the action its rank would be
 * stuck at, and no later: moved past that action the cycle would close again.
 *
 * How: the rows are executed with rendezvous channels (a send and its receive wait for each other). When ranks wait in a
 * cycle, one of its sends is given its receive on the spot, which breaks the cycle. What comes out is the order in
 * which things happened, so it is free of deadlock with rendezvous channels and hence with buffered ones. Each cell is
 * handled a bounded number of times. Only orders of waiting enter, no times: actions that take part in no communication
 * (UNSHARD, RESHARD, REDUCE_GRAD) do not move receives.
 *
 * A receive from several stages (skip connections) only posts: its rank goes on, and the action that needs the data waits.
 */

import { ScheduleError } from '../model/errors.ts';
import { bits, isSendCode, type Layout, samePair } from '../model/packed.ts';
import type { Schedule } from '../model/schedule.ts';
import { Peer, StageGraph } from '../model/stage-graph.ts';
import { forEachCycle } from '../model/waits.ts';
import { ReceiveSettler } from './settle-receives.ts';

// Constants of this module: an import is looked up at every use.
const { Code, fieldIn, isComposite, movedIn, otherEnd, stageIn, withCode, wordCode } = bits;

/** The rows of a compute order (bubbles dropped) with sends and receives. */
export function placeCommunication(schedule: Schedule): Int32Array[] {
  return new Placer(schedule).run();
}

class Placer {
  private readonly schedule: Schedule;
  private readonly rows: readonly Int32Array[];
  private readonly layout: Layout;
  private readonly graph: StageGraph;
  private readonly rankOf: Int32Array;
  /** The only stage on another rank that feeds a stage (is fed by it), or Peer.None, Peer.Several. */
  private readonly inPeer: Int32Array;
  private readonly outPeer: Int32Array;
  /** Whether no message has several senders or receivers. */
  private readonly simple: boolean;
  private readonly width: number;
  /** Per (stage, microbatch), forward and backward: bits 1 and 2 received or posted, bits 4 and 8 sent (kept if not simple). */
  private readonly marks: Uint8Array;
  private readonly cursor: Int32Array;
  /** Parts of the current entry whose sends are done; -1 before the entry itself is done. */
  private readonly sent: Int32Array;
  /** The send or receive a rank is stopped at (for compute that lacks data: its receive); 0: it is not stopped. */
  private readonly stop: Int32Array;
  private readonly out: Int32Array[];
  private readonly length: Int32Array;
  private readonly ready: Int32Array;
  private readyCount = 0;
  private readonly settler: ReceiveSettler;

  constructor(schedule: Schedule) {
    const { rows, layout, ranks, stages } = schedule;
    this.schedule = schedule;
    this.rows = rows;
    this.layout = layout;
    this.graph = new StageGraph(schedule);
    this.rankOf = this.graph.rankOf;
    this.inPeer = this.graph.peers('inputs');
    this.outPeer = this.graph.peers('outputs');
    this.simple = !this.inPeer.includes(Peer.Several) && !this.outPeer.includes(Peer.Several);
    this.width = schedule.microbatches + 1;
    this.marks = new Uint8Array(stages * this.width);
    this.cursor = new Int32Array(ranks);
    this.sent = new Int32Array(ranks).fill(-1);
    this.stop = new Int32Array(ranks);
    this.ready = new Int32Array(ranks);
    this.length = new Int32Array(ranks);
    this.out = this.makeRoom();
    this.settler = new ReceiveSettler({
      out: this.out,
      length: this.length,
      stop: this.stop,
      partnerRank: (word) => this.rankOf[this.partnerStage(word)]!,
      partner: (word) => this.layout.counterpart(word, this.partnerStage(word)),
      isUse: (word, receive) => this.isUse(word, receive),
    });
  }

  run(): Int32Array[] {
    for (let rank = this.rows.length - 1; rank >= 0; rank--) this.wake(rank);
    do {
      this.runReady();
    } while (this.breakCycles());
    return this.out.map((row, rank) => (this.length[rank] === row.length ? row : row.slice(0, this.length[rank])));
  }

  private wake(rank: number): void {
    this.stop[rank] = 0;
    this.ready[this.readyCount++] = rank;
  }

  /** Rows of the lengths they will have: every stage sends and receives once per microbatch, each way. */
  private makeRoom(): Int32Array[] {
    const { microbatches } = this.schedule;
    const ways = this.rows.some((row) => row.some((word) => isBackward(word, this.schedule))) ? 2 : 1;
    const room = Int32Array.from(this.rows, (row) => row.length);
    for (let stage = 0; stage < this.rankOf.length; stage++) {
      const peers = (this.inPeer[stage] === Peer.None ? 0 : 1) + (this.outPeer[stage] === Peer.None ? 0 : 1);
      room[this.rankOf[stage]!]! += peers * microbatches * ways;
    }
    return Array.from(room, (cells) => new Int32Array(cells));
  }

  /** Goes on with all ranks that can, each until it has to wait. */
  private runReady(): void {
    const { rows, out: outs, length: lengths, cursor, ready } = this;
    const { inPeer, outPeer, rankOf, stop, marks, width, sent, simple } = this;
    const { stageShift, microbatchMask } = this.layout;
    nextRank: while (this.readyCount > 0) {
      const rank = ready[--this.readyCount]!;
      const row = rows[rank]!;
      const out = outs[rank]!;
      let length = lengths[rank]!;
      let slot = cursor[rank]!;
      if (simple && sent[rank]! >= 0 && !isComposite(row[slot]!)) {
        sent[rank] = -1; // the only send of a plain action was performed while the rank was stopped there
        slot++;
      }
      for (; slot < row.length; slot++) {
        const word = row[slot]!;
        const code = wordCode(word);
        if (code === Code.Composite || (!simple && code <= Code.B)) {
          lengths[rank] = length;
          cursor[rank] = slot;
          if (!this.runParts(rank, word)) continue nextRank;
          length = lengths[rank]!;
          continue;
        }
        if (code !== Code.F && code !== Code.B && code !== Code.I) {
          if (code !== Code.Bubble) out[length++] = word;
          continue;
        }
        // A plain action, at most one message in and one out: what runParts does, written out.
        const forward = code === Code.F;
        const stage = stageIn(word, stageShift);
        const field = fieldIn(word, microbatchMask);
        const received = forward ? 1 : 2;
        const source = forward ? inPeer[stage]! : outPeer[stage]!;
        if (source !== Peer.None && (marks[stage * width + field]! & received) === 0) {
          const recvWord = withCode(word, forward ? Code.RecvF : Code.RecvB);
          const sender = rankOf[source]!;
          const sendWord = movedIn(otherEnd(recvWord), source - stage, stageShift);
          if (stop[sender] !== sendWord) {
            lengths[rank] = length;
            cursor[rank] = slot;
            stop[rank] = recvWord;
            if (stop[sender] !== 0) this.breakPair(rank, sender);
            continue nextRank;
          }
          out[length++] = recvWord;
          outs[sender]![lengths[sender]!++] = sendWord;
          sent[sender]!++;
          stop[sender] = 0;
          ready[this.readyCount++] = sender;
        }
        out[length++] = word;
        const target = forward ? outPeer[stage]! : inPeer[stage]!;
        if (target === Peer.None) continue;
        const sendWord = withCode(word, forward ? Code.SendF : Code.SendB);
        const receiver = rankOf[target]!;
        const recvWord = movedIn(otherEnd(sendWord), target - stage, stageShift);
        if (stop[receiver] !== recvWord) {
          lengths[rank] = length;
          cursor[rank] = slot;
          sent[rank] = 0;
          stop[rank] = sendWord;
          if (stop[receiver] !== 0) this.breakPair(rank, receiver);
          continue nextRank;
        }
        marks[target * width + field]! |= received;
        outs[receiver]![lengths[receiver]!++] = recvWord;
        stop[receiver] = 0;
        ready[this.readyCount++] = receiver;
        out[length++] = sendWord;
      }
      lengths[rank] = length;
      cursor[rank] = slot;
    }
  }

  /** Any action: receives of all parts, the action, sends of all parts. False if the rank has to wait; it comes back here. */
  private runParts(rank: number, word: number): boolean {
    const leaves = this.schedule.composites.leavesOf(word);
    if (this.sent[rank]! < 0) {
      for (const leaf of leaves) if (!this.receive(rank, leaf)) return false;
      this.put(rank, word);
      this.sent[rank] = 0;
    }
    while (this.sent[rank]! < leaves.length) if (!this.send(rank, leaves[this.sent[rank]!]!)) return false;
    this.sent[rank] = -1;
    return true;
  }

  private put(rank: number, word: number): void {
    this.out[rank]![this.length[rank]!++] = word;
  }

  /** Whether the data of an action is there; posts its receive, or stops at it. */
  private receive(rank: number, word: number): boolean {
    const direction = directionOf(wordCode(word));
    if (direction === Direction.None) return true;
    const stage = this.layout.stage(word);
    const field = this.layout.field(word);
    const key = stage * this.width + field;
    const source = this.peerOf(stage, direction, 'recv');
    if (source === Peer.None) return true;
    const recvWord = withCode(word, direction === Direction.Forward ? Code.RecvF : Code.RecvB);
    const received = direction === Direction.Forward ? 1 : 2;
    const isPosted = (this.marks[key]! & received) !== 0;
    if (source !== Peer.Several) {
      if (isPosted) return true;
      this.stop[rank] = recvWord;
      const sender = this.rankOf[source]!;
      if (this.stop[sender] === this.layout.counterpart(recvWord, source)) this.trySend(sender);
      else if (this.stop[sender] !== 0) this.breakPair(rank, sender);
      return false;
    }
    if (!isPosted) {
      this.marks[key]! |= received;
      this.put(rank, recvWord);
    }
    const missing = this.peersOf(stage, direction, 'recv').filter((from) => {
      const sender = this.rankOf[from]!;
      if (this.stop[sender] === this.layout.counterpart(recvWord, from)) this.trySend(sender);
      return (this.marks[from * this.width + field]! & (received << 2)) === 0;
    });
    if (missing.length > 0) this.stop[rank] = recvWord;
    return missing.length === 0;
  }

  /** Whether a part has nothing to send; otherwise the rank stops at the send and goes on when it is performed. */
  private send(rank: number, word: number): boolean {
    const direction = directionOf(wordCode(word));
    const target = direction === Direction.None ? Peer.None : this.peerOf(this.layout.stage(word), direction, 'send');
    if (target === Peer.None) {
      this.sent[rank]!++;
      return true;
    }
    this.stop[rank] = withCode(word, direction === Direction.Forward ? Code.SendF : Code.SendB);
    if (!this.trySend(rank) && target >= 0 && this.stop[this.rankOf[target]!] !== 0)
      this.breakPair(rank, this.rankOf[target]!);
    return false;
  }

  /** Performs the send a rank is stopped at if all its receivers are there. */
  private trySend(rank: number): boolean {
    const word = this.stop[rank]!;
    for (const target of this.targetsOf(word)) if (!this.isThere(target, word)) return false;
    this.perform(rank);
    return true;
  }

  /** Performs the send a rank is stopped at; receives that are not there yet are put where their ranks stand. */
  private force(rank: number): void {
    this.settler.noteForced(rank);
    this.perform(rank);
  }

  private perform(rank: number): void {
    const word = this.stop[rank]!;
    const only = (wordCode(word) === Code.SendF ? this.outPeer : this.inPeer)[this.layout.stage(word)]!;
    if (only >= 0) this.take(only, word);
    else for (const target of this.targetsOf(word)) this.take(target, word);
    this.finishSend(rank);
  }

  private finishSend(rank: number): void {
    const word = this.stop[rank]!;
    if (!this.simple)
      this.marks[this.layout.stage(word) * this.width + this.layout.field(word)]! |=
        wordCode(word) === Code.SendF ? 4 : 8;
    this.put(rank, word);
    this.sent[rank]!++;
    this.wake(rank);
  }

  /** Whether a receiving stage has posted for this send or its rank is stopped at the receive. */
  private isThere(target: number, sendWord: number): boolean {
    const field = this.layout.field(sendWord);
    if (this.stop[this.rankOf[target]!] === this.layout.counterpart(sendWord, target)) return true;
    return (this.marks[target * this.width + field]! & (wordCode(sendWord) === Code.SendF ? 1 : 2)) !== 0;
  }

  /** Hands a message over: the receive is written if it is not yet, and its rank goes on if it waited for this. */
  private take(target: number, sendWord: number): void {
    const rank = this.rankOf[target]!;
    const field = this.layout.field(sendWord);
    const key = target * this.width + field;
    const received = wordCode(sendWord) === Code.SendF ? 1 : 2;
    const recvWord = this.layout.counterpart(sendWord, target);
    if ((this.marks[key]! & received) === 0) {
      this.marks[key]! |= received;
      this.put(rank, recvWord);
    }
    if (this.stop[rank] === recvWord) this.wake(rank);
  }

  /** The usual cycle, two ranks that wait for each other, is broken as soon as it closes. */
  private breakPair(rank: number, other: number): void {
    if (this.waitsFor(other) !== rank) return;
    const aSends = isSendCode(wordCode(this.stop[rank]!));
    const bSends = isSendCode(wordCode(this.stop[other]!));
    if (!aSends && !bSends) return;
    const first = aSends && bSends ? this.better(rank, other) === rank : aSends;
    this.force(first ? rank : other);
  }

  private isAtSend(rank: number): boolean {
    return isSendCode(wordCode(this.stop[rank]!));
  }

  /** Of two ranks at sends, the one to give its receive: a forward send before a backward one, then the lower rank. */
  private better(a: number, b: number): number {
    if (a < 0 || b < 0) return Math.max(a, b);
    const aForward = wordCode(this.stop[a]!) === Code.SendF;
    const bForward = wordCode(this.stop[b]!) === Code.SendF;
    return aForward === bForward ? Math.min(a, b) : aForward ? a : b;
  }

  /** The rank a stopped rank waits for. */
  private waitsFor(rank: number): number {
    const word = this.stop[rank]!;
    const code = wordCode(word);
    const stage = this.layout.stage(word);
    const only = code === Code.SendF || code === Code.RecvB ? this.outPeer[stage]! : this.inPeer[stage]!;
    if (only >= 0) return this.rankOf[only]!;
    return this.waitsForOneOf(rank);
  }

  /** The rank a rank stopped at a message with several ends waits for. */
  private waitsForOneOf(rank: number): number {
    const word = this.stop[rank]!;
    const code = wordCode(word);
    const stage = this.layout.stage(word);
    const field = this.layout.field(word);
    const missing = this.isAtSend(rank)
      ? this.targetsOf(word).find((target) => !this.isThere(target, word))
      : this.peersOf(stage, code === Code.RecvF ? Direction.Forward : Direction.Backward, 'recv').find(
          (from) => (this.marks[from * this.width + field]! & (code === Code.RecvF ? 4 : 8)) === 0,
        );
    return this.rankOf[missing!]!;
  }

  /** When no rank can go on: breaks every cycle. False when all ranks are at their end. */
  private breakCycles(): boolean {
    this.settler.settle();
    const { stop } = this;
    const stopped = stop.findLastIndex((word) => word !== 0);
    if (stopped < 0) return false;
    forEachCycle(
      stop.length,
      (rank) => (stop[rank] === 0 ? -1 : this.waitsFor(rank)),
      (cycle) => this.breakCycle(cycle),
    );
    if (this.readyCount === 0) this.refuse(stopped);
    return true;
  }

  /** Gives one send of a cycle, each rank of which waits for the next, its receive. */
  private breakCycle(cycle: Int32Array): void {
    const sender = this.chooseSender(cycle);
    if (sender < 0) return;
    const rank = cycle[sender]!;
    const receiver = this.waitsFor(rank);
    this.force(rank);
    if (this.simple) this.settler.noteCycle(cycle, receiver);
  }

  /**
   * The place in a cycle of the send to be given its receive: one whose rank has its next message with the rank that waits
   * for it, so that no other send of the cycle needs the same; otherwise the best by kind. -1 if there is no send.
   */
  private chooseSender(cycle: Int32Array): number {
    let best = -1;
    for (let i = 0; i < cycle.length; i++) {
      const rank = cycle[i]!;
      if (!this.isAtSend(rank)) continue;
      if (this.nextPartner(rank) === cycle[(i === 0 ? cycle.length : i) - 1]) return i;
      if (best < 0 || this.better(cycle[best]!, rank) === rank) best = i;
    }
    return best;
  }

  /** The other rank of the message that comes after the send a rank is stopped at; -1 if there is none. */
  private nextPartner(rank: number): number {
    const row = this.rows[rank]!;
    const { composites } = this.schedule;
    const current = row[this.cursor[rank]!]!;
    if (isComposite(current)) {
      for (const leaf of composites.leavesOf(current).slice(this.sent[rank]! + 1)) {
        const partner = this.partnerRank(leaf, 'send');
        if (partner >= 0) return partner;
      }
    }
    for (let slot = this.cursor[rank]! + 1; slot < row.length; slot++) {
      const word = row[slot]!;
      for (const side of ['recv', 'send'] as const) {
        if (!isComposite(word)) {
          const partner = this.partnerRank(word, side);
          if (partner >= 0) return partner;
          continue;
        }
        for (const leaf of composites.leavesOf(word)) {
          const partner = this.partnerRank(leaf, side);
          if (partner >= 0) return partner;
        }
      }
    }
    return -1;
  }

  /** The first rank a plain action has to receive from (unless that is done) or to send to; -1 if there is none. */
  private partnerRank(word: number, side: 'send' | 'recv'): number {
    const direction = directionOf(wordCode(word));
    if (direction === Direction.None) return -1;
    const stage = this.layout.stage(word);
    const peer = this.peerOf(stage, direction, side);
    if (peer === Peer.None) return -1;
    const key = stage * this.width + this.layout.field(word);
    if (side === 'recv' && (this.marks[key]! & (direction === Direction.Forward ? 1 : 2)) !== 0) return -1;
    return this.rankOf[peer >= 0 ? peer : this.peersOf(stage, direction, side)[0]!]!;
  }

  /** The stage at the other end of a message with one sender and one receiver. */
  private partnerStage(word: number): number {
    const code = wordCode(word);
    return (code === Code.SendF || code === Code.RecvB ? this.outPeer : this.inPeer)[this.layout.stage(word)]!;
  }

  private isUse(word: number, receive: number): boolean {
    const direction = wordCode(receive) === Code.RecvF ? Direction.Forward : Direction.Backward;
    return this.schedule.composites
      .leavesOf(word)
      .some((leaf) => samePair(leaf, receive) && directionOf(wordCode(leaf)) === direction);
  }

  private refuse(rank: number): never {
    const slot = this.cursor[rank]!;
    throw new ScheduleError(
      'DEADLOCK',
      `lower: rank ${rank} never gets past slot ${slot} (${this.schedule.format(this.rows[rank]![slot]!)}): ranks wait for each other's compute; validate() shows the cycle`,
      { rank, slot },
    );
  }

  /** Stages that take a send. */
  private targetsOf(sendWord: number): readonly number[] {
    return this.peersOf(
      this.layout.stage(sendWord),
      wordCode(sendWord) === Code.SendF ? Direction.Forward : Direction.Backward,
      'send',
    );
  }

  private peerOf(stage: number, direction: number, side: 'send' | 'recv'): number {
    return ((direction === Direction.Forward) === (side === 'send') ? this.outPeer : this.inPeer)[stage]!;
  }

  private peersOf(stage: number, direction: number, side: 'send' | 'recv'): readonly number[] {
    const only = this.peerOf(stage, direction, side);
    if (only >= 0) return [only];
    return (direction === Direction.Forward) === (side === 'send')
      ? this.graph.sendForwardPeers(stage)
      : this.graph.recvForwardPeers(stage);
  }
}

function isBackward(word: number, { composites }: Schedule): boolean {
  if (!isComposite(word)) return directionOf(wordCode(word)) === Direction.Backward;
  return composites.leavesOf(word).some((leaf) => directionOf(wordCode(leaf)) === Direction.Backward);
}

/** Which way a message goes. */
const Direction = { None: -1, Forward: 0, Backward: 1 } as const;

function directionOf(code: number): number {
  return code === Code.F ? Direction.Forward : code === Code.I || code === Code.B ? Direction.Backward : Direction.None;
}
