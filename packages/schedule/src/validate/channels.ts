/**
 * @file Whether a lowered order can hang, under two models of its channels.
 *
 * In both a rank does one action after the other and a receive waits until its message is sent. Buffered: a send never
 * waits. Rendezvous: a send waits until its receiver stands at the receive. A send along several edges serves its receivers
 * as they come and waits for all; a receive from several stages only posts, and the compute that needs the data waits.
 */

import { checkChoice } from '../model/errors.ts';
import { bits, withCode } from '../model/packed.ts';
import { Schedule, type ScheduleData } from '../model/schedule.ts';
import { Peer, StageGraph } from '../model/stage-graph.ts';
import { type CycleStep, describeCycle, type ViolationList } from './violation.ts';
import { waitingCycle } from './waiting-cycle.ts';

// Constants of this module: an import is looked up at every use.
const { Code, isMessage, movedIn, otherEnd, stageIn, wordCode } = bits;

/** How a channel between two ranks behaves. */
export type ChannelModel = 'buffered' | 'rendezvous';

/** Adds `deadlock-buffered`, `deadlock-rendezvous` and `channel-order`. An order that passes with rendezvous passes with buffers. */
export function checkChannels(schedule: Schedule, violations: ViolationList): void {
  const rendezvous = findDeadlock(schedule, 'rendezvous');
  if (rendezvous === null) return;
  checkChannelOrder(schedule, violations);
  const buffered = findDeadlock(schedule, 'buffered');
  if (buffered !== null)
    violations.add(
      'deadlock-buffered',
      null,
      `deadlock even if sends never wait: ${describeCycle(buffered)}; move what is waited for ahead`,
      buffered,
    );
  violations.add(
    'deadlock-rendezvous',
    null,
    `deadlock if sends wait for receives: ${describeCycle(rendezvous)}; move one of the receives ahead`,
    rendezvous,
  );
}

/**
 * Executes a lowered order; null if every rank reaches its end, else the ranks that wait for each other.
 * @example findDeadlock(lower(buildSchedule('1F1B', { ranks: 2, microbatches: 4 })), 'rendezvous') // null
 */
export function findDeadlock(
  input: Schedule | ScheduleData,
  model: ChannelModel = 'rendezvous',
): readonly CycleStep[] | null {
  checkChoice('findDeadlock', 'model', model, ['buffered', 'rendezvous']);
  const run = new ChannelRun(Schedule.from(input), model);
  run.run();
  return run.cycle();
}

class ChannelRun {
  private readonly schedule: Schedule;
  private readonly buffered: boolean;
  private readonly graph: StageGraph;
  private readonly inPeer: Int32Array;
  private readonly outPeer: Int32Array;
  private readonly several: boolean;
  private readonly width: number;
  /** Per (stage, microbatch), forward and backward: 1 and 2 sent, 4 and 8 receive posted, 16 and 32 received. */
  private readonly marks: Uint8Array;
  private readonly cursor: Int32Array;
  /** The send or receive a rank stands at (a receive for compute that waits for data); 0: none. */
  private readonly waits: Int32Array;
  private readonly ready: number[] = [];

  constructor(schedule: Schedule, model: ChannelModel) {
    this.schedule = schedule;
    this.buffered = model === 'buffered';
    this.graph = new StageGraph(schedule);
    this.inPeer = this.graph.peers('inputs');
    this.outPeer = this.graph.peers('outputs');
    this.several = !this.graph.isChain && [...this.inPeer, ...this.outPeer].includes(Peer.Several);
    this.width = schedule.microbatches;
    this.marks = new Uint8Array(this.buffered || this.several ? schedule.stages * this.width : 0);
    this.cursor = new Int32Array(schedule.ranks);
    this.waits = new Int32Array(schedule.ranks);
  }

  run(): void {
    for (let rank = this.schedule.ranks - 1; rank >= 0; rank--) this.ready.push(rank);
    if (!this.buffered && !this.several) this.runPairs();
    else for (let rank = this.ready.pop(); rank !== undefined; rank = this.ready.pop()) this.runRank(rank);
  }

  /** Rendezvous with one peer per message: two ranks meet or one waits. */
  private runPairs(): void {
    const { rows, layout, ranks } = this.schedule;
    const { stageShift } = layout;
    const { waits, cursor, inPeer, outPeer } = this;
    const { rankOf } = this.graph;
    const ready = Int32Array.from({ length: ranks }, (_, i) => ranks - 1 - i);
    let count = ranks;
    while (count > 0) {
      const rank = ready[--count]!;
      const row = rows[rank]!;
      let slot = cursor[rank]!;
      for (; slot < row.length; slot++) {
        const word = row[slot]!;
        const code = wordCode(word);
        if (!isMessage(word)) continue;
        const stage = stageIn(word, stageShift);
        const peer = code === Code.SendF || code === Code.RecvB ? outPeer[stage]! : inPeer[stage]!;
        if (peer < 0) continue;
        const counterpart = movedIn(otherEnd(word), peer - stage, stageShift);
        const other = rankOf[peer]!;
        if (waits[other] !== counterpart) {
          waits[rank] = word;
          break;
        }
        waits[other] = 0;
        cursor[other]!++;
        ready[count++] = other;
      }
      cursor[rank] = slot;
    }
  }

  private runRank(rank: number): void {
    const row = this.schedule.rows[rank]!;
    this.waits[rank] = 0;
    for (; this.cursor[rank]! < row.length; this.cursor[rank]!++) {
      const word = row[this.cursor[rank]!]!;
      const code = wordCode(word);
      if (code === Code.Bubble) continue;
      if (code === Code.Composite) {
        if (!this.schedule.composites.leavesOf(word).every((leaf) => this.hasData(rank, leaf))) return;
      } else if (code <= Code.B) {
        if (!this.hasData(rank, word)) return;
      } else if (code === Code.SendF || code === Code.SendB) {
        if (!this.trySend(rank, word)) return;
      } else if ((code === Code.RecvF || code === Code.RecvB) && !this.tryReceive(rank, word)) return;
    }
  }

  /** Compute with inputs from several ranks waits for all of them. */
  private hasData(rank: number, word: number): boolean {
    const code = wordCode(word);
    if (!this.several || code === Code.W) return true;
    const recvWord = withCode(word, code === Code.F ? Code.RecvF : Code.RecvB);
    const { layout } = this.schedule;
    const peers = this.peersOf(recvWord);
    if (
      peers.length < 2 ||
      peers.every(
        (peer) => (this.marks[peer * this.width + layout.microbatch(word)]! & (code === Code.F ? 1 : 2)) !== 0,
      )
    )
      return true;
    this.waits[rank] = recvWord;
    return false;
  }

  /** Hands the message to every receiver that is there; whether all have it (with buffers: always). */
  private trySend(rank: number, word: number): boolean {
    const { layout } = this.schedule;
    const microbatch = layout.microbatch(word);
    const isForward = wordCode(word) === Code.SendF;
    let complete = true;
    for (const peer of this.peersOf(word)) {
      const other = this.graph.rankOf[peer]!;
      const recvWord = layout.pack(isForward ? Code.RecvF : Code.RecvB, peer, microbatch);
      const key = peer * this.width + microbatch;
      const isWaiting = this.waits[other] === recvWord;
      if (this.peersOf(recvWord).length > 1) {
        if ((this.marks[key]! & (isForward ? 4 : 8)) === 0) complete = false;
      } else if (isWaiting) {
        this.marks[key]! |= isForward ? 16 : 32;
        this.wake(other);
      } else if ((this.marks[key]! & (isForward ? 16 : 32)) === 0) complete = false;
    }
    if (!complete && !this.buffered) {
      this.waits[rank] = word;
      return false;
    }
    this.marks[layout.stage(word) * this.width + microbatch]! |= isForward ? 1 : 2;
    for (const peer of this.peersOf(word)) {
      const other = this.graph.rankOf[peer]!;
      if (this.waits[other] === layout.pack(isForward ? Code.RecvF : Code.RecvB, peer, microbatch)) this.wake(other);
    }
    return true;
  }

  private tryReceive(rank: number, word: number): boolean {
    const { layout } = this.schedule;
    const microbatch = layout.microbatch(word);
    const isForward = wordCode(word) === Code.RecvF;
    const peers = this.peersOf(word);
    const key = layout.stage(word) * this.width + microbatch;
    if (peers.length > 1) this.marks[key]! |= isForward ? 4 : 8;
    else {
      if (peers.length === 0 || (this.marks[key]! & (isForward ? 16 : 32)) !== 0) return true;
      if (this.buffered && (this.marks[peers[0]! * this.width + microbatch]! & (isForward ? 1 : 2)) !== 0) return true;
      this.waits[rank] = word;
    }
    for (const peer of peers) {
      const sender = this.graph.rankOf[peer]!;
      if (this.waits[sender] === layout.pack(isForward ? Code.SendF : Code.SendB, peer, microbatch)) this.wake(sender); // it tries again
    }
    return peers.length > 1;
  }

  private wake(rank: number): void {
    this.waits[rank] = 0;
    this.ready.push(rank);
  }

  private peersOf(word: number): number[] {
    const stage = this.schedule.layout.stage(word);
    const code = wordCode(word);
    return code === Code.SendF || code === Code.RecvB
      ? this.graph.sendForwardPeers(stage)
      : this.graph.recvForwardPeers(stage);
  }

  /** The cycle of a run that stopped early; null if every rank reached its end. */
  cycle(): readonly CycleStep[] | null {
    const { rows, layout, stageToRank } = this.schedule;
    return waitingCycle(this.schedule, this.cursor, (rank) => {
      const word = this.waits[rank]!;
      const peer = this.peersOf(word).find((p) => !this.isDone(p, word)) ?? this.peersOf(word)[0]!;
      const next = stageToRank[peer]!;
      const needed = layout.counterpart(word, peer);
      const at = rows[next]!.indexOf(needed, this.cursor[next]!);
      const action = this.schedule.format(needed);
      return { waitsFor: { rank: next, slot: at < 0 ? null : at, action }, isMissing: false };
    });
  }

  /** Whether a peer of a waiting send or receive is not what it waits for. */
  private isDone(peer: number, word: number): boolean {
    if (this.marks.length === 0) return false;
    const { layout } = this.schedule;
    const code = wordCode(word);
    const mark = this.marks[peer * this.width + layout.microbatch(word)]!;
    const bit = code === Code.SendF ? 4 | 16 : code === Code.SendB ? 8 | 32 : code === Code.RecvF ? 1 : 2;
    return (mark & bit) !== 0;
  }
}

/** Between two ranks messages are received in the order in which they are sent; only for chains, where it decides. */
function checkChannelOrder(schedule: Schedule, violations: ViolationList): void {
  const graph = new StageGraph(schedule);
  const { layout } = schedule;
  const sent = new Map<string, number[]>();
  const received = new Map<string, { word: number; slot: number }[]>();
  schedule.forEachLeaf(({ rank, slot, code, stage, microbatch }) => {
    if (code < Code.SendF || code > Code.RecvB) return;
    const isSend = code === Code.SendF || code === Code.SendB;
    const peers =
      code === Code.SendF || code === Code.RecvB ? graph.sendForwardPeers(stage) : graph.recvForwardPeers(stage);
    for (const peer of peers) {
      const other = graph.rankOf[peer]!;
      const channel = isSend ? `${rank}>${other}` : `${other}>${rank}`;
      if (isSend) push(sent, channel, layout.pack(code + 1, peer, microbatch));
      else push(received, channel, { word: layout.pack(code, stage, microbatch), slot });
    }
  });
  for (const [channel, receives] of received) {
    const sends = sent.get(channel) ?? [];
    const wrong = receives.findIndex((receive, i) => i < sends.length && receive.word !== sends[i]);
    if (wrong < 0) continue;
    const [from, to] = channel.split('>').map(Number);
    violations.at(
      'channel-order',
      to!,
      receives[wrong]!.slot,
      `rank ${from} sends ${schedule.format(sends[wrong]!)}'s data first; receive in the order of sending`,
    );
  }
}

function push<T>(lists: Map<string, T[]>, key: string, item: T): void {
  const list = lists.get(key);
  if (list === undefined) lists.set(key, [item]);
  else list.push(item);
}
