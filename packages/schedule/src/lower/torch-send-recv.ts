/** @file Adds sends and receives as PyTorch does: a receive is posted the moment its sender sends. */

import { ScheduleError } from '../model/errors.ts';
import { type Extent, measure } from '../model/extent.ts';
import { bits } from '../model/packed.ts';
import { Schedule, type ScheduleData } from '../model/schedule.ts';
import { Peer, StageGraph } from '../model/stage-graph.ts';

// Constants of this module: an import is looked up at every use.
const { Code, fieldIn, movedIn, stageIn, withCode, wordCode } = bits;

const forwardDone = 1;
const gradientDone = 2;

/**
 * PyTorch's pass, action for action: rounds over the ranks, at most one entry per rank and round.
 * @example addSendRecv(Schedule.from({ order: [['0F0'], ['1F0']] })).toString() // '0F0 0SEND_F0\n1RECV_F0 1F0'
 */
export function addSendRecv(input: Schedule | ScheduleData): Schedule {
  const schedule = Schedule.from(input);
  return schedule.with({ rows: sendRecvRows(schedule, measure(schedule)) });
}

/** The rows of the pass for a schedule whose extent is known. */
export function sendRecvRows(schedule: Schedule, extent: Extent): Int32Array[] {
  return new SendRecvPass(schedule, extent).run();
}

class SendRecvPass {
  private readonly schedule: Schedule;
  /** Per stage its neighbour if that is on another rank, else -1. */
  private readonly next: Int32Array;
  private readonly previous: Int32Array;
  private readonly rankOf: Int32Array;
  private readonly width: number;
  /** What is done of each (stage, microbatch). */
  private readonly done: Uint8Array;
  private readonly out: Int32Array[];
  private readonly length: Int32Array;

  constructor(schedule: Schedule, extent: Extent) {
    const { stages } = schedule;
    const { stages: rows, fields } = extent;
    this.schedule = schedule;
    this.rankOf = Int32Array.from({ length: rows }, (_, s) => schedule.stageToRank[s] ?? -1);
    const chain = new StageGraph({ stages, stageToRank: schedule.stageToRank, edges: null });
    this.next = new Int32Array(rows).fill(Peer.None);
    this.next.set(chain.peers('outputs'));
    this.previous = new Int32Array(rows).fill(Peer.None);
    this.previous.set(chain.peers('inputs'));
    this.width = fields;
    this.done = new Uint8Array((rows + 1) * fields);
    this.length = new Int32Array(schedule.ranks);
    this.out = Array.from(this.countCells(), (cells) => new Int32Array(cells));
  }

  /** Cells every row will have. */
  private countCells(): Int32Array {
    const { rows, layout, composites, ranks } = this.schedule;
    const cells = new Int32Array(ranks);
    for (let rank = 0; rank < ranks; rank++) {
      const row = rows[rank]!;
      let own = 0;
      for (let slot = 0; slot < row.length; slot++) {
        const word = row[slot]!;
        if (word === 0) continue;
        own++;
        const code = wordCode(word);
        if (code === Code.Composite) {
          for (const leaf of composites.leavesOf(word)) if (this.countMessage(leaf, cells)) own++;
        } else if (code === Code.F || code === Code.I || code === Code.B) {
          const peer = (code === Code.F ? this.next : this.previous)[layout.stage(word)]!;
          if (peer < 0) continue;
          own++;
          cells[this.rankOf[peer]!]!++;
        }
      }
      cells[rank]! += own;
    }
    return cells;
  }

  private countMessage(leaf: number, cells: Int32Array): boolean {
    const peer = this.peerOf(leaf);
    if (peer >= 0) cells[this.rankOf[peer]!]!++;
    return peer >= 0;
  }

  run(): Int32Array[] {
    const { rows, layout } = this.schedule;
    const { stageShift, microbatchMask } = layout;
    const { done, width, out, length, next, previous, rankOf } = this;
    const lastStage = this.schedule.stages - 1;
    const cursor = new Int32Array(rows.length);
    let pending = Int32Array.from(rows, (_, rank) => rank);
    const empty = rows.findIndex((row) => row.length === 0);
    if (empty >= 0)
      throw new ScheduleError('BAD_SCHEDULE', `addSendRecv: rank ${empty} has no actions; every rank needs a row`, {
        rank: empty,
      });
    while (pending.length > 0) {
      let advanced = false;
      let finished = false;
      for (let i = 0; i < pending.length; i++) {
        const rank = pending[i]!;
        const row = rows[rank]!;
        const slot = cursor[rank]!;
        const word = row[slot]!;
        const code = wordCode(word);
        if (code === Code.F || code === Code.B || code === Code.I) {
          const forward = code === Code.F;
          const mark = forward ? forwardDone : gradientDone;
          const stage = stageIn(word, stageShift);
          const key = stage * width + fieldIn(word, microbatchMask);
          const isFirst = stage === (forward ? 0 : lastStage);
          if (!isFirst && (done[forward ? key - width : key + width]! & mark) === 0) continue;
          done[key]! |= mark;
          const own = out[rank]!;
          own[length[rank]!++] = word;
          const peer = (forward ? next : previous)[stage]!;
          if (peer >= 0) {
            own[length[rank]!++] = withCode(word, forward ? Code.SendF : Code.SendB);
            const there = rankOf[peer]!;
            const receive = withCode(word, forward ? Code.RecvF : Code.RecvB);
            out[there]![length[there]!++] = movedIn(receive, forward ? 1 : -1, stageShift);
          }
        } else if (code === Code.Composite) {
          if (!this.runComposite(rank, word)) continue;
        } else if (word !== 0) {
          out[rank]![length[rank]!++] = word;
        }
        advanced = true;
        cursor[rank] = slot + 1;
        if (slot + 1 === row.length) finished = true;
      }
      if (!advanced) this.refuse(Array.from(pending), cursor);
      if (finished) pending = pending.filter((rank) => cursor[rank]! < rows[rank]!.length);
    }
    return out;
  }

  /** Performs a composite if all its parts are ready; its sends follow it in the order of the parts. */
  private runComposite(rank: number, word: number): boolean {
    const { layout, composites, stages } = this.schedule;
    const { done, width, out, length, rankOf } = this;
    const leaves = composites.leavesOf(word);
    const keyOf = (leaf: number): number => layout.stage(leaf) * width + layout.microbatch(leaf) + 1;
    const isReady = (leaf: number): boolean => {
      const code = wordCode(leaf);
      const stage = layout.stage(leaf);
      if (code === Code.F) return stage === 0 || (done[keyOf(leaf) - width]! & forwardDone) !== 0;
      if (code === Code.I || code === Code.B)
        return stage === stages - 1 || (done[keyOf(leaf) + width]! & gradientDone) !== 0;
      return true;
    };
    if (!leaves.every(isReady)) return false;
    out[rank]![length[rank]!++] = word;
    for (const leaf of leaves) {
      const code = wordCode(leaf);
      if (code === Code.F) done[keyOf(leaf)]! |= forwardDone;
      else if (code === Code.I || code === Code.B) done[keyOf(leaf)]! |= gradientDone;
      const peer = this.peerOf(leaf);
      if (peer < 0) continue;
      const microbatch = layout.microbatch(leaf);
      out[rank]![length[rank]!++] = layout.pack(
        code === Code.F ? Code.SendF : Code.SendB,
        layout.stage(leaf),
        microbatch,
      );
      const there = rankOf[peer]!;
      out[there]![length[there]!++] = layout.pack(code === Code.F ? Code.RecvF : Code.RecvB, peer, microbatch);
    }
    return true;
  }

  /** The stage on another rank that needs the result of an action; -1 if there is none. */
  private peerOf(word: number): number {
    const code = wordCode(word);
    const stage = this.schedule.layout.stage(word);
    if (code === Code.F) return this.next[stage]!;
    return code === Code.I || code === Code.B ? this.previous[stage]! : -1;
  }

  private refuse(pending: readonly number[], cursor: Int32Array): never {
    const { schedule } = this;
    const fronts = pending
      .slice(0, 8)
      .map((rank) => `rank ${rank} slot ${cursor[rank]} (${schedule.format(schedule.rows[rank]![cursor[rank]!]!)})`);
    throw new ScheduleError(
      'DEADLOCK',
      `addSendRecv: no rank can go on: ${fronts.join(', ')} wait for actions that come later; validate() shows the cycle`,
      {
        ranks: pending,
        slots: pending.map((rank) => cursor[rank]),
      },
    );
  }
}
