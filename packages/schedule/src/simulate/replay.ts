/** @file The replay of a schedule in time: when each action starts and ends, given costs. Every action starts as early as its row and its inputs let it. */

import { type CostTable, compositeDuration, partScale } from '../costs/cost-table.ts';
import { edgeCosts } from '../costs/edge-costs.ts';
import { bits, hasMessages, type Layout, samePair } from '../model/packed.ts';
import type { Schedule } from '../model/schedule.ts';
import { StageGraph } from '../model/stage-graph.ts';
import { checkCell, checkedLeaves } from './cells.ts';
import { deadlockError, Why, type WhyCode } from './deadlock.ts';
import { Lanes } from './lanes.ts';
import { MessageTimes } from './message-times.ts';
import { Receives } from './receives.ts';
import { SharedCores } from './shared-cores.ts';
import type { Timing } from './timing.ts';
import { WaitingRanks } from './waiting-ranks.ts';

// Constants of this module: an import is looked up at every use.
const { Code, wordCode } = bits;

const doneF = 1;
const doneI = 2;
const doneB = 4;

/** Times of a schedule. Compute-only orders send along their edges by themselves; orders with sends and receives say when. */
export function replay(caller: string, schedule: Schedule, costs: CostTable): Timing {
  return new Replay(caller, schedule, costs).run();
}

class Replay {
  readonly caller: string;
  readonly schedule: Schedule;
  private readonly costs: CostTable;
  private readonly graph: StageGraph;
  private readonly offsets: Int32Array;
  private readonly start: Float64Array;
  private readonly end: Float64Array;
  private readonly cause: Int32Array;
  private readonly messages: MessageTimes;
  private readonly lanes: Lanes;
  /** Null where messages are implied: no cell sends or receives. */
  private readonly receives: Receives | null;
  // Per (stage, microbatch).
  private readonly done: Uint8Array;
  // Per rank.
  private readonly cursor: Int32Array;
  private readonly free: Float64Array;
  private readonly last: Int32Array;
  private readonly waiting: WaitingRanks;
  // Composites whose parts release separately: parts done of the one a rank stands at, start and end of every part.
  private readonly partsDone: Int32Array;
  private readonly partTimes: Map<number, Float64Array> = new Map();
  // Columns of the schedule at hand, for the inner loops.
  private readonly layout: Layout;
  private readonly microbatches: number;
  /** Where the keys of gradient messages begin. */
  private readonly gradients: number;
  private readonly rankOf: Int32Array;
  private readonly durations: readonly (Float64Array | null)[];
  // The latest input found so far by `inputsOf`, and the cell that brought it.
  private readyAt = 0;
  private readyBy = -1;
  // The parts of the composite at hand, and how many of them come before the one that is looked at.
  private inside: readonly number[] = [];
  private insideCount = 0;
  /** Cores that ranks share; null where each has its own. */
  private readonly cores: SharedCores | null;
  /** By rank that works on them: what follows. */
  private readonly following: ((end: number) => boolean)[] = [];

  constructor(caller: string, schedule: Schedule, costs: CostTable) {
    const { ranks, stages, microbatches } = schedule;
    this.caller = caller;
    this.schedule = schedule;
    this.costs = costs;
    this.graph = new StageGraph(schedule);
    this.offsets = new Int32Array(ranks + 1);
    for (let rank = 0; rank < ranks; rank++)
      this.offsets[rank + 1] = this.offsets[rank]! + (schedule.rows[rank]?.length ?? 0);
    const cells = this.offsets[ranks]!;
    this.start = new Float64Array(cells);
    this.end = new Float64Array(cells);
    this.cause = new Int32Array(cells).fill(-1);
    const edges = edgeCosts(caller, costs, { edges: schedule.stageEdges, stageToRank: schedule.stageToRank });
    this.messages = new MessageTimes(this.graph, edges, microbatches);
    this.lanes = new Lanes(ranks, stages);
    this.done = new Uint8Array(stages * microbatches);
    this.receives = hasMessages(schedule.rows) ? new Receives(this.graph, stages, microbatches) : null;
    this.cursor = new Int32Array(ranks);
    this.free = new Float64Array(ranks);
    this.last = new Int32Array(ranks).fill(-1);
    this.waiting = new WaitingRanks(ranks);
    this.partsDone = new Int32Array(ranks);
    this.layout = schedule.layout;
    this.microbatches = microbatches;
    this.gradients = this.graph.edgeCount * microbatches;
    this.rankOf = Int32Array.from(schedule.stageToRank);
    this.durations = [null, costs.F, costs.I, costs.W, costs.B];
    this.cores = SharedCores.of(costs.cores, ranks);
  }

  run(): Timing {
    const { waiting, messages } = this;
    const { ready } = waiting;
    do while (ready.length > 0) this.advance(ready.pop()!);
    while (this.workNext());
    this.finishReceives();
    const stuck = this.schedule.rows.some((row, rank) => this.cursor[rank]! < row.length);
    if (stuck) {
      throw deadlockError(
        this.caller,
        this.schedule,
        Array.from(this.cursor, (slot, rank) => ({
          rank,
          slot,
          why: waiting.why[rank]! as WhyCode,
          key: waiting.key[rank]!,
        })),
      );
    }
    return {
      offsets: this.offsets,
      start: this.start,
      end: this.end,
      cause: this.cause,
      partTimes: this.partTimes,
      issued: this.lanes.issued,
      messages,
    };
  }

  /** Whether work on shared cores has ended; its rank goes on. */
  private workNext(): boolean {
    const done = this.cores?.next() ?? null;
    if (done === null) return false;
    if (this.following[done.rank]!(done.end)) this.cursor[done.rank]!++;
    this.waiting.ready.push(done.rank);
    return true;
  }

  /**
   * A rank works for a while on a core. `then` is told when it ends, and returns whether the cell is through, or else the rank
   * comes to it again. False where that is known later.
   */
  private work(rank: number, begin: number, duration: number, then: (end: number) => boolean): boolean {
    if (this.cores === null || duration === 0) return then(begin + duration);
    this.cores.add(rank, begin, duration);
    this.following[rank] = then;
    return false;
  }

  /** Runs a rank until it waits or is through. */
  private advance(rank: number): void {
    const row = this.schedule.rows[rank]!;
    const offset = this.offsets[rank]!;
    let slot = this.cursor[rank]!;
    for (; slot < row.length; slot++) {
      const word = row[slot]!;
      const index = offset + slot;
      this.cursor[rank] = slot;
      if (word === 0) {
        this.start[index] = this.end[index] = this.free[rank]!;
        continue;
      }
      if (!this.step(rank, index, word)) return;
    }
    this.cursor[rank] = slot;
  }

  /** Does one cell; false when it has to wait. */
  private step(rank: number, index: number, word: number): boolean {
    const code = wordCode(word);
    if (code === Code.Composite) return this.composite(rank, index, word);
    checkCell(this, index, word);
    if (code <= Code.B) return this.compute(rank, index, word);
    if (code <= Code.ReduceGrad) return this.collective(rank, index, code, this.layout.stage(word));
    return code === Code.SendF || code === Code.SendB ? this.send(rank, index, word) : this.receive(rank, index, word);
  }

  private compute(rank: number, index: number, word: number): boolean {
    this.readyAt = this.free[rank]!;
    this.readyBy = this.last[rank]!;
    if (!this.inputsOf(rank, word)) return false;
    const duration = this.durations[wordCode(word)]![this.layout.stage(word)]!;
    this.start[index] = this.readyAt;
    this.cause[index] = this.readyBy;
    if (this.cores === null) return this.computed(rank, index, word, this.readyAt + duration); // without a closure
    return this.work(rank, this.readyAt, duration, (end) => this.computed(rank, index, word, end));
  }

  /** A cell has its rank until `end`. */
  private take(rank: number, index: number, end: number): void {
    this.free[rank] = end;
    this.last[rank] = index;
  }

  /** A compute action ends. */
  private computed(rank: number, index: number, word: number, end: number): true {
    this.end[index] = end;
    this.take(rank, index, end);
    // On shared cores nothing leaves in the past: a gradient waits for the end of its backward.
    const isEarly = this.cores === null && wordCode(word) === Code.B;
    const made = isEarly ? this.start[index]! + this.costs.inputGradient[this.layout.stage(word)]! : end;
    this.outputsOf(rank, index, word, made);
    return true;
  }

  /** Raises `readyAt` to the latest input of an F, I, W or B; false when one is not there yet. */
  private inputsOf(rank: number, word: number): boolean {
    const { graph, receives } = this;
    const { arrivals, senders } = this.messages;
    const code = wordCode(word);
    const stage = this.layout.stage(word);
    const microbatch = this.layout.microbatch(word);
    const gathered = this.lanes.gathered[stage]!;
    if (gathered > this.readyAt) {
      this.readyAt = gathered;
      this.readyBy = this.lanes.gatheredBy[stage]!;
    }
    const pair = stage * this.microbatches + microbatch;
    if (code === Code.W)
      return (
        (this.done[pair]! & doneI) !== 0 ||
        this.isInside(stage, microbatch, true) ||
        this.waiting.block(rank, Why.OwnInput, -1)
      );
    const backward = code !== Code.F;
    if (backward && (this.done[pair]! & doneF) === 0 && !this.isInside(stage, microbatch, false))
      return this.waiting.block(rank, Why.OwnForward, -1);
    const starts = backward ? graph.outputStart : graph.inputStart;
    const list = backward ? graph.outEdges : graph.inEdges;
    const base = backward ? this.gradients + microbatch : microbatch;
    const stop = starts[stage + 1]!;
    let received = -1;
    let arrived = 0;
    for (let i = starts[stage]!; i < stop; i++) {
      const edge = list[i]!;
      const key = base + edge * this.microbatches;
      if (receives !== null && graph.crosses[edge] === 1) {
        received = receives.cellOf(stage, microbatch, backward);
        if (received < 0) return this.waiting.block(rank, Why.NotReceived, key);
      }
      const at = arrivals[key]!;
      if (Number.isNaN(at)) {
        if (this.isInside((backward ? graph.to : graph.from)[edge]!, microbatch, backward)) continue;
        return this.waiting.block(rank, Why.Arrival, key);
      }
      if (receives !== null && graph.crosses[edge] === 1 && at > arrived) arrived = at;
      if (at > this.readyAt) {
        this.readyAt = at;
        this.readyBy = senders[key]!;
      }
    }
    if (received >= 0 && arrived > this.end[received]!) this.end[received] = arrived;
    return true;
  }

  /** Hands the results of an F, I, W or B, made at `finish`, to the stages that wait for them. */
  private outputsOf(rank: number, index: number, word: number, finish: number): void {
    const { graph } = this;
    const code = wordCode(word);
    if (code === Code.W) return;
    const stage = this.layout.stage(word);
    const microbatch = this.layout.microbatch(word);
    const backward = code !== Code.F;
    this.receives?.use(stage, backward);
    this.done[stage * this.microbatches + microbatch]! |= backward ? (code === Code.I ? doneI : doneB) : doneF;
    const starts = backward ? graph.inputStart : graph.outputStart;
    const list = backward ? graph.inEdges : graph.outEdges;
    const base = backward ? this.gradients + microbatch : microbatch;
    const stop = starts[stage + 1]!;
    for (let i = starts[stage]!; i < stop; i++) {
      const edge = list[i]!;
      const key = base + edge * this.microbatches;
      if (graph.crosses[edge] === 0) {
        this.messages.handOver(key, finish, index);
      } else if (this.receives === null) {
        const at = this.messages.transfer(edge, key, finish, index);
        if (this.costs.blocking && at > this.free[rank]!) this.free[rank] = at;
        this.wake(edge, key);
      }
    }
  }

  private wake(edge: number, key: number): void {
    const rank = this.rankOf[(key >= this.gradients ? this.graph.from : this.graph.to)[edge]!]!;
    if (rank >= 0) this.waiting.wake(rank, key);
  }

  /** An overlapped composite as one block: starts with all inputs, gives all results at its end. */
  private composite(rank: number, index: number, word: number): boolean {
    const leaves = checkedLeaves(this, index, word);
    if (this.costs.releaseParts) return this.partByPart(rank, index, leaves);
    this.readyAt = this.free[rank]!;
    this.readyBy = this.last[rank]!;
    this.inside = leaves;
    for (this.insideCount = 0; this.insideCount < leaves.length; this.insideCount++)
      if (!this.inputsOf(rank, leaves[this.insideCount]!)) break;
    const isReady = this.insideCount === leaves.length;
    this.insideCount = 0;
    if (!isReady) return false;
    this.start[index] = this.readyAt;
    this.cause[index] = this.readyBy;
    return this.work(rank, this.readyAt, compositeDuration(this.costs, leaves, this.layout), (end) => {
      this.end[index] = end;
      this.take(rank, index, end);
      for (const leaf of leaves) this.outputsOf(rank, index, leaf, end);
      return true;
    });
  }

  /** Whether an earlier part of the composite at hand makes an output (a gradient, with `backward`). */
  private isInside(stage: number, microbatch: number, backward: boolean): boolean {
    for (let i = 0; i < this.insideCount; i++) {
      const leaf = this.inside[i]!;
      if (this.layout.stage(leaf) !== stage || this.layout.microbatch(leaf) !== microbatch) continue;
      const code = wordCode(leaf);
      if (backward ? code === Code.I || code === Code.B : code === Code.F) return true;
    }
    return false;
  }

  /** A composite whose parts run one after the other, each with its own inputs and results. */
  private partByPart(rank: number, index: number, leaves: readonly number[]): boolean {
    const scale = partScale(this.costs, leaves, this.layout);
    const times = this.partTimes.get(index) ?? new Float64Array(2 * leaves.length);
    this.partTimes.set(index, times);
    while (this.partsDone[rank]! < leaves.length) {
      const at = this.partsDone[rank]!;
      const leaf = leaves[at]!;
      this.readyAt = this.free[rank]!;
      this.readyBy = this.last[rank]!;
      if (!this.inputsOf(rank, leaf)) return false;
      if (at === 0) {
        this.start[index] = this.readyAt;
        this.cause[index] = this.readyBy;
      }
      times[2 * at] = this.readyAt;
      const duration = scale * this.durations[wordCode(leaf)]![this.layout.stage(leaf)]!;
      this.work(rank, this.readyAt, duration, (end) => {
        times[2 * at + 1] = end;
        this.end[index] = this.free[rank] = end;
        this.last[rank] = index;
        this.outputsOf(rank, index, leaf, end);
        this.partsDone[rank] = at + 1;
        return false;
      });
      if (this.partsDone[rank] === at) return false; // it works
    }
    this.partsDone[rank] = 0;
    return true;
  }

  /** UNSHARD and REDUCE_GRAD take their overhead of the rank, then run on a lane of their own; RESHARD takes the rank's time. */
  private collective(rank: number, index: number, code: number, stage: number): boolean {
    const { overhead, reshard } = this.costs;
    const times = code === Code.Reshard ? reshard : code === Code.Unshard ? overhead.unshard : overhead.reduceGrad;
    const own = times[stage]!;
    this.start[index] = this.free[rank]!;
    this.cause[index] = this.last[rank]!;
    return this.work(rank, this.free[rank]!, own, (end) => {
      if (own > 0 || code === Code.Reshard) {
        this.end[index] = this.free[rank] = end;
        this.last[rank] = index;
      }
      if (code !== Code.Reshard) this.runLane(rank, index, code, stage);
      return true;
    });
  }

  /** What an UNSHARD or REDUCE_GRAD takes beside computing, once the rank has begun it. */
  private runLane(rank: number, index: number, code: number, stage: number): void {
    const { lanes } = this;
    const duration = (code === Code.Unshard ? this.costs.unshard : this.costs.reduceGrad)[stage]!;
    const begun = this.free[rank]!;
    const from = Math.max(begun, lanes.free[rank]!);
    if (from > begun && this.last[rank] !== index) {
      // Nothing of it has been done: it starts with its lane.
      lanes.issued.set(index, begun);
      this.start[index] = from;
      this.cause[index] = lanes.last[rank]!;
    }
    const end = from + duration;
    this.end[index] = end;
    lanes.take(rank, index, end);
    if (this.costs.blocking) this.take(rank, index, end);
    if (code === Code.Unshard) lanes.gather(stage, index, end);
  }

  private send(rank: number, index: number, word: number): boolean {
    const stage = this.layout.stage(word);
    const microbatch = this.layout.microbatch(word);
    const backward = wordCode(word) === Code.SendB;
    const made = this.done[stage * this.microbatches + microbatch]! & (backward ? doneI | doneB : doneF);
    if (made === 0) return this.waiting.block(rank, Why.NotMade, -1);
    const from = this.departureOf(rank, word);
    const own = this.costs.overhead.send[stage]!;
    if (own === 0) return this.transferAll(rank, index, word, from);
    const before = this.last[rank]!;
    return this.work(rank, this.free[rank]!, own, (end) => {
      this.take(rank, index, end);
      this.transferAll(rank, index, word, this.cores === null ? from + own : end);
      this.start[index] = from;
      this.cause[index] = before;
      return true;
    });
  }

  /** The messages of a send leave, as soon as their links are free. */
  private transferAll(rank: number, index: number, word: number, from: number): true {
    const { graph, messages } = this;
    const stage = this.layout.stage(word);
    const microbatch = this.layout.microbatch(word);
    const backward = wordCode(word) === Code.SendB;
    const starts = backward ? graph.inputStart : graph.outputStart;
    const list = backward ? graph.inEdges : graph.outEdges;
    const stop = starts[stage + 1]!;
    let begin = Number.POSITIVE_INFINITY;
    let finish = from;
    let by = this.last[rank]!;
    for (let i = starts[stage]!; i < stop; i++) {
      const edge = list[i]!;
      if (graph.crosses[edge] === 0) continue;
      const key = (backward ? this.gradients : 0) + edge * this.microbatches + microbatch;
      const link = messages.linkOf(edge, backward);
      const free = messages.linkFree[link]!;
      if (free > from) by = messages.linkLast[link]!;
      begin = Math.min(begin, Math.max(from, free));
      finish = Math.max(finish, messages.transfer(edge, key, from, index));
      this.wake(edge, key);
    }
    this.start[index] = begin === Number.POSITIVE_INFINITY ? from : begin;
    this.end[index] = finish;
    this.cause[index] = by;
    if (this.costs.blocking) this.take(rank, index, finish);
    return true;
  }

  /**
   * When a send can leave: with the part of a composite right before it that makes it, in the middle of the full backward right
   * before it, else when the rank is free.
   */
  private departureOf(rank: number, send: number): number {
    const last = this.last[rank]!;
    if (last < 0 || this.costs.blocking || this.cores !== null) return this.free[rank]!;
    const { rows, composites } = this.schedule;
    const forward = wordCode(send) === Code.SendF;
    const word = rows[rank]![last - this.offsets[rank]!]!;
    if (wordCode(word) === Code.B && !forward && samePair(word, send))
      return this.start[last]! + this.costs.inputGradient[this.layout.stage(word)]!;
    const times = this.partTimes.get(last);
    if (times === undefined) return this.free[rank]!;
    const at = composites
      .leavesOf(word)
      .findIndex((leaf) => samePair(leaf, send) && (wordCode(leaf) === Code.F) === forward);
    return at < 0 ? this.free[rank]! : times[2 * at + 1]!;
  }

  /** Posts a receive. It ends when the message is there, which its user or `finishReceives` finds out. */
  private receive(rank: number, index: number, word: number): boolean {
    const stage = this.layout.stage(word);
    const microbatch = this.layout.microbatch(word);
    this.start[index] = this.end[index] = this.free[rank]!;
    this.cause[index] = this.last[rank]!;
    if (this.costs.blocking) {
      const arrived = this.arrivalFor(rank, word);
      if (Number.isNaN(arrived)) return false;
      if (arrived > this.free[rank]!) this.end[index] = this.free[rank] = arrived;
      this.last[rank] = index;
    }
    this.receives?.post(stage, microbatch, wordCode(word) === Code.RecvB, index);
    return true;
  }

  /** When all messages of a receive are there; NaN, and the rank blocked, when one is not sent yet. */
  private arrivalFor(rank: number, word: number): number {
    const arrived = this.messages.allArrived(
      this.layout.stage(word),
      this.layout.microbatch(word),
      wordCode(word) === Code.RecvB,
    );
    if (Number.isNaN(arrived)) this.waiting.block(rank, Why.Arrival, this.messages.missing);
    return arrived;
  }

  /** Ends receives that nothing on their rank used; one that is never sent stops its rank there. */
  private finishReceives(): void {
    if (this.receives?.areOpen !== true) return;
    const { rows } = this.schedule;
    rows.forEach((row, rank) => {
      if (this.cursor[rank]! < row.length) return;
      for (let slot = 0; slot < row.length; slot++) {
        const word = row[slot]!;
        const code = wordCode(word);
        if (code !== Code.RecvF && code !== Code.RecvB) continue;
        const index = this.offsets[rank]! + slot;
        this.cursor[rank] = slot;
        const arrived = this.arrivalFor(rank, word);
        if (Number.isNaN(arrived)) return;
        if (arrived > this.end[index]!) this.end[index] = arrived;
      }
      this.cursor[rank] = row.length;
    });
  }
}
