/** @file PyTorch's dry run of a lowered order: every action takes one step, bubbles show who waits. */

import { RowBuilder } from '../model/column-builder.ts';
import { ScheduleError } from '../model/errors.ts';
import { Code, isComposite, wordCode } from '../model/packed.ts';
import { Schedule, type ScheduleData } from '../model/schedule.ts';

/**
 * Replays an order in steps. In each step every rank does its next action if what it needs is done, else it waits (a
 * bubble); a rank that waited gets a second chance in the same step after all others had their turn. A receive needs the
 * send, compute needs the receive, or the neighbour stage on the same rank. UNSHARD, RESHARD and REDUCE_GRAD take no step
 * and are left out; a composite is one action that needs what its parts need. Equal to PyTorch's replay wherever that
 * works. An order that gets stuck is a DEADLOCK error whose `details` hold the rows so far and who waits at what.
 * @example simulateSteps(Schedule.from({ order: [['0F0', '0SEND_F0'], ['1RECV_F0', '1F0']] })).toString() // '0F0 0SEND_F0\n. 1RECV_F0 1F0'
 */
export function simulateSteps(input: Schedule | ScheduleData): Schedule {
  const schedule = Schedule.from(input);
  return schedule.with({ rows: new StepReplay(schedule).run() });
}

class StepReplay {
  private readonly schedule: Schedule;
  private readonly rows: readonly Int32Array[];
  /** Plain words done on each rank. */
  private readonly done: Set<number>[];
  private readonly cursor: Int32Array;
  private readonly out: RowBuilder[];

  constructor(schedule: Schedule) {
    this.schedule = schedule;
    this.rows = schedule.rows.map((row) => row.filter((word) => !takesNoStep(wordCode(word))));
    this.done = schedule.rows.map(() => new Set<number>());
    this.cursor = new Int32Array(schedule.ranks);
    this.out = this.rows.map((row) => new RowBuilder(2 * row.length));
  }

  run(): Int32Array[] {
    let open = this.unfinished(this.rows.map((_, rank) => rank));
    while (open.length > 0) {
      let advanced = false;
      for (const rank of open) {
        if (this.isReady(this.front(rank))) {
          this.out[rank]!.push(this.take(rank));
          advanced = true;
        } else this.out[rank]!.push(0);
      }
      open = this.unfinished(open);
      for (const rank of open) {
        const row = this.out[rank]!;
        if (row.words[row.length - 1] === 0 && this.isReady(this.front(rank)))
          row.words[row.length - 1] = this.take(rank);
      }
      open = this.unfinished(open);
      if (!advanced && open.length > 0) this.refuse(open);
    }
    return this.out.map((row) => row.finish());
  }

  private unfinished(ranks: readonly number[]): number[] {
    return ranks.filter((rank) => this.cursor[rank]! < this.rows[rank]!.length);
  }

  private front(rank: number): number {
    return this.rows[rank]![this.cursor[rank]!]!;
  }

  /** Performs the next action of a rank. */
  private take(rank: number): number {
    const word = this.front(rank);
    for (const leaf of this.schedule.composites.leavesOf(word)) this.done[rank]!.add(leaf);
    this.cursor[rank]!++;
    return word;
  }

  private isReady(word: number): boolean {
    if (!isComposite(word)) return this.isLeafReady(word);
    return this.schedule.composites.leavesOf(word).every((leaf) => this.isLeafReady(leaf));
  }

  private isLeafReady(word: number): boolean {
    const { layout, stages } = this.schedule;
    const code = wordCode(word);
    const stage = layout.stage(word);
    const has = (host: number, what: number, of: number): boolean =>
      this.has(host, layout.pack(what, of, layout.microbatch(word)));
    switch (code) {
      case Code.F:
        return stage === 0 || has(stage, Code.RecvF, stage) || has(stage, Code.F, stage - 1);
      case Code.I:
      case Code.B:
        return (
          stage === stages - 1 ||
          has(stage, Code.RecvB, stage) ||
          has(stage, Code.I, stage + 1) ||
          has(stage, Code.B, stage + 1)
        );
      case Code.SendF:
        return has(stage, Code.F, stage);
      case Code.RecvF:
        return has(stage - 1, Code.SendF, stage - 1);
      case Code.SendB:
        return has(stage, Code.I, stage) || has(stage, Code.B, stage);
      case Code.RecvB:
        return has(stage + 1, Code.SendB, stage + 1);
      default:
        return true;
    }
  }

  /** Whether the rank that holds a stage has done an action. */
  private has(stage: number, word: number): boolean {
    const rank = this.schedule.stageToRank[stage];
    return rank !== undefined && this.done[rank]?.has(word) === true;
  }

  private refuse(open: readonly number[]): never {
    const { schedule } = this;
    const waiting = open.map((rank) => ({ rank, action: schedule.format(this.front(rank)) }));
    const shown = waiting.slice(0, 8).map(({ rank, action }) => `rank ${rank} at ${action}`);
    throw new ScheduleError(
      'DEADLOCK',
      `simulateSteps: no rank can go on: ${shown.join(', ')}; validate() shows why. A compute-only order of several ranks has to be lowered first`,
      {
        waiting,
        partial: schedule.with({ rows: this.out.map((row) => row.finish()) }),
      },
    );
  }
}

/** Bubbles and what a rank does without anybody waiting for it. */
function takesNoStep(code: number): boolean {
  return code === Code.Bubble || code === Code.Unshard || code === Code.Reshard || code === Code.ReduceGrad;
}
