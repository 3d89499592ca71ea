/** @file The replay of a schedule in time: when each action starts and ends, given costs. Every action starts as early as its row and its inputs let it. */

import { type CostTable, type EdgeCosts, type Part, compositeDuration, computeCost, edgeCosts, partScale } from './costs.ts';
import { type Blocked, Why, deadlockError } from './deadlock.ts';
import { ScheduleError } from './errors.ts';
import { Code } from './packed.ts';
import type { Schedule } from './schedule.ts';
import { type EdgeGraph, edgeGraph } from './edge-graph.ts';

/** Start and end of every cell, rows one after the other: the cell of a rank and slot is at `offsets[rank] + slot`. */
export interface Timing {
  readonly offsets: Int32Array;
  readonly start: Float64Array;
  readonly end: Float64Array;
  /** The cell whose end decided the start; -1: none, it started at once. */
  readonly cause: Int32Array;
  readonly messages: Messages;
  /** By cell of a composite whose parts release separately: start and end of each part. */
  readonly partTimes: ReadonlyMap<number, Float64Array>;
}

/** Messages over the edges of the stage graph: activations at `edge * microbatches + microbatch`, gradients one lap of all edges later. */
export interface Messages {
  readonly graph: EdgeGraph;
  /** When each has left, and when it is there; NaN: never sent. */
  readonly departures: Float64Array;
  readonly arrivals: Float64Array;
  /** The cell that sent it: a send, or the compute action where there are no sends. */
  readonly senders: Int32Array;
}

const doneF = 1;
const doneI = 2;
const doneB = 4;

/** Times of a schedule. Compute-only orders send along their edges by themselves; orders with sends and receives say when. */
export function replay(caller: string, schedule: Schedule, costs: CostTable): Timing {
  return new Replay(caller, schedule, costs).run();
}

/** Whether an order says itself when it sends and receives. */
export function hasMessages(schedule: Schedule): boolean {
  return schedule.rows.some((row) => row.some((word) => (word & 15) >= Code.SendF && (word & 15) <= Code.RecvB));
}

class Replay {
  private readonly caller: string;
  private readonly schedule: Schedule;
  private readonly costs: CostTable;
  private readonly graph: EdgeGraph;
  private readonly edges: EdgeCosts;
  private readonly explicit: boolean;
  private readonly offsets: Int32Array;
  private readonly start: Float64Array;
  private readonly end: Float64Array;
  private readonly cause: Int32Array;
  // Per (edge, microbatch): when the activation, then the gradient, is there (NaN: not yet), and the cell that sent it.
  private readonly departures: Float64Array;
  private readonly arrivals: Float64Array;
  private readonly senders: Int32Array;
  // Per (stage, microbatch).
  private readonly done: Uint8Array;
  private readonly receives: Int32Array;
  // Per rank.
  private readonly cursor: Int32Array;
  private readonly free: Float64Array;
  private readonly last: Int32Array;
  private readonly laneFree: Float64Array;
  private readonly laneLast: Int32Array;
  private readonly blocked: Blocked[];
  private readonly blockedOn: Int32Array;
  // Per stage and per link.
  private readonly gathered: Float64Array;
  private readonly gatheredBy: Int32Array;
  private readonly linkFree: Float64Array;
  private readonly linkLast: Int32Array;
  private readonly ready: number[] = [];
  // Composites whose parts release separately: parts done of the one a rank stands at, start and end of every part.
  private readonly partsDone: Int32Array;
  private readonly partTimes: Map<number, Float64Array> = new Map();

  constructor(caller: string, schedule: Schedule, costs: CostTable) {
    const { ranks, stages, microbatches } = schedule;
    this.caller = caller;
    this.schedule = schedule;
    this.costs = costs;
    this.graph = edgeGraph(schedule);
    this.edges = edgeCosts(caller, costs, { edges: schedule.stageEdges, stageToRank: schedule.stageToRank });
    this.explicit = hasMessages(schedule);
    this.offsets = new Int32Array(ranks + 1);
    for (let rank = 0; rank < ranks; rank++) this.offsets[rank + 1] = this.offsets[rank]! + (schedule.rows[rank]?.length ?? 0);
    const cells = this.offsets[ranks]!;
    this.start = new Float64Array(cells);
    this.end = new Float64Array(cells);
    this.cause = new Int32Array(cells).fill(-1);
    this.arrivals = new Float64Array(2 * this.graph.edges * microbatches).fill(Number.NaN);
    this.departures = new Float64Array(this.arrivals.length).fill(Number.NaN);
    this.senders = new Int32Array(this.arrivals.length).fill(-1);
    this.done = new Uint8Array(stages * microbatches);
    this.receives = new Int32Array(this.explicit ? 2 * stages * microbatches : 0).fill(-1);
    this.cursor = new Int32Array(ranks);
    this.free = new Float64Array(ranks);
    this.last = new Int32Array(ranks).fill(-1);
    this.laneFree = new Float64Array(ranks);
    this.laneLast = new Int32Array(ranks).fill(-1);
    this.blocked = Array.from({ length: ranks }, () => ({ why: Why.Nothing, edge: -1, backward: false }));
    this.blockedOn = new Int32Array(ranks).fill(-1);
    this.gathered = new Float64Array(stages);
    this.gatheredBy = new Int32Array(stages).fill(-1);
    this.linkFree = new Float64Array(this.edges.links);
    this.linkLast = new Int32Array(this.edges.links).fill(-1);
    this.partsDone = new Int32Array(ranks);
  }

  run(): Timing {
    const { ready, graph, departures, arrivals, senders } = this;
    for (let rank = this.schedule.rows.length - 1; rank >= 0; rank--) ready.push(rank);
    while (ready.length > 0) this.advance(ready.pop()!);
    this.finishReceives();
    const stuck = this.schedule.rows.some((row, rank) => this.cursor[rank]! < row.length);
    if (stuck) throw deadlockError(this.caller, this.schedule, this.blocked.map((wait, rank) => ({ ...wait, rank, slot: this.cursor[rank]! })));
    return { offsets: this.offsets, start: this.start, end: this.end, cause: this.cause, partTimes: this.partTimes, messages: { graph, departures, arrivals, senders } };
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
    const code = word & 15;
    if (code === Code.Composite) return this.composite(rank, index, word);
    const { layout, stages, microbatches } = this.schedule;
    const stage = layout.stage(word);
    const microbatch = layout.microbatch(word);
    if (stage >= stages || microbatch >= microbatches) this.outOfRange(index, word);
    if (code <= Code.B) return this.compute(rank, index, { code, stage, microbatch });
    if (code <= Code.ReduceGrad) return this.collective(rank, index, code, stage);
    return code === Code.SendF || code === Code.SendB ? this.send(rank, index, word) : this.receive(rank, index, word);
  }

  private outOfRange(index: number, word: number): never {
    const { stages, microbatches } = this.schedule;
    throw new ScheduleError(
      'BAD_SCHEDULE',
      `${this.caller}: ${this.schedule.format(word)} (cell ${index}) is outside ${stages} stages and ${microbatches} microbatches; validate(schedule) lists what is wrong`,
    );
  }

  private compute(rank: number, index: number, part: Part): boolean {
    const before = this.free[rank]!;
    this.readyAt = before;
    this.readyBy = this.last[rank]!;
    if (!this.inputsOf(rank, part)) return false;
    const begin = this.readyAt;
    const finish = begin + computeCost(this.costs, part.code, part.stage);
    this.start[index] = begin;
    this.end[index] = finish;
    this.cause[index] = this.readyBy;
    this.free[rank] = finish;
    this.last[rank] = index;
    this.outputsOf(rank, index, part, finish);
    return true;
  }

  // The latest input found so far by `inputsOf`, and the cell that brought it.
  private readyAt = 0;
  private readyBy = -1;

  /** Raises `readyAt` to the latest input of a part; false when one is not there yet. */
  private inputsOf(rank: number, { code, stage, microbatch }: Part): boolean {
    const { graph, arrivals, senders } = this;
    const { microbatches } = this.schedule;
    const gathered = this.gathered[stage]!;
    if (gathered > this.readyAt) {
      this.readyAt = gathered;
      this.readyBy = this.gatheredBy[stage]!;
    }
    const pair = stage * microbatches + microbatch;
    if (code === Code.W) return (this.done[pair]! & doneI) !== 0 || this.block(rank, Why.OwnInput, -1, true);
    const backward = code !== Code.F;
    if (backward && (this.done[pair]! & doneF) === 0) return this.block(rank, Why.OwnForward, -1, true);
    const starts = backward ? graph.outStart : graph.inStart;
    const list = backward ? graph.outEdges : graph.inEdges;
    const base = backward ? graph.edges * microbatches : 0;
    let received = -1;
    let arrived = 0;
    for (let i = starts[stage]!; i < starts[stage + 1]!; i++) {
      const edge = list[i]!;
      const key = base + edge * microbatches + microbatch;
      if (this.explicit && graph.crosses[edge] === 1) {
        received = this.receives[(backward ? this.done.length : 0) + pair]!;
        if (received < 0) return this.block(rank, Why.NotReceived, edge, backward);
      }
      const at = arrivals[key]!;
      if (Number.isNaN(at)) return this.block(rank, Why.Arrival, edge, backward);
      if (graph.crosses[edge] === 1 && at > arrived) arrived = at;
      if (at > this.readyAt) {
        this.readyAt = at;
        this.readyBy = senders[key]!;
      }
    }
    if (received >= 0 && arrived > this.end[received]!) this.end[received] = arrived;
    return true;
  }

  /** Hands the results of a part to the stages that wait for them. */
  private outputsOf(rank: number, index: number, { code, stage, microbatch }: Part, finish: number): void {
    const { graph, arrivals, senders } = this;
    const { microbatches } = this.schedule;
    const pair = stage * microbatches + microbatch;
    if (code === Code.W) return;
    const backward = code !== Code.F;
    this.done[pair]! |= backward ? (code === Code.I ? doneI : doneB) : doneF;
    const starts = backward ? graph.inStart : graph.outStart;
    const list = backward ? graph.inEdges : graph.outEdges;
    const base = backward ? graph.edges * microbatches : 0;
    for (let i = starts[stage]!; i < starts[stage + 1]!; i++) {
      const edge = list[i]!;
      const key = base + edge * microbatches + microbatch;
      if (graph.crosses[edge] === 0) {
        this.departures[key] = arrivals[key] = finish;
        senders[key] = index;
      } else if (!this.explicit) {
        const at = this.transfer(edge, key, finish, index);
        if (this.costs.blocking && at > this.free[rank]!) this.free[rank] = at;
        this.wake(edge, backward, key);
      }
    }
  }

  /** Sends a message that is ready at `from`, taking its link for as long as it needs; returns when it has arrived. */
  private transfer(edge: number, key: number, from: number, index: number): number {
    const { edges, linkFree, linkLast } = this;
    const backward = key >= this.graph.edges * this.schedule.microbatches;
    const occupancy = (backward ? edges.backwardOccupancy : edges.forwardOccupancy)[edge]!;
    const latency = (backward ? edges.backwardLatency : edges.forwardLatency)[edge]!;
    this.senders[key] = index;
    if (occupancy === 0) {
      this.departures[key] = from;
      return (this.arrivals[key] = from + latency);
    }
    const link = (backward ? edges.backwardLink : edges.forwardLink)[edge]!;
    const leave = Math.max(from, linkFree[link]!);
    linkFree[link] = leave + occupancy;
    linkLast[link] = index;
    this.departures[key] = leave;
    return (this.arrivals[key] = leave + occupancy + latency);
  }

  private wake(edge: number, backward: boolean, key: number): void {
    const rank = this.schedule.stageToRank[(backward ? this.graph.from : this.graph.to)[edge]!]!;
    if (this.blockedOn[rank] !== key) return;
    this.blockedOn[rank] = -1;
    this.blocked[rank]!.why = Why.Nothing;
    this.ready.push(rank);
  }

  /** Notes what a rank waits for; always false. */
  private block(rank: number, why: Blocked['why'], edge: number, backward: boolean): false {
    const wait = this.blocked[rank]!;
    wait.why = why;
    wait.edge = edge;
    wait.backward = backward;
    if (why === Why.Arrival) {
      const { rows, layout, composites, microbatches } = this.schedule;
      const stage = (backward ? this.graph.from : this.graph.to)[edge]!;
      const leaf = composites.leavesOf(rows[rank]![this.cursor[rank]!]!).find((word) => layout.stage(word) === stage && isBackward(word & 15) === backward)!;
      this.blockedOn[rank] = ((backward ? this.graph.edges : 0) + edge) * microbatches + layout.microbatch(leaf);
    }
    return false;
  }

  /** An overlapped composite as one block: starts with all inputs, gives all results at its end. */
  private composite(rank: number, index: number, word: number): boolean {
    const parts = this.partsOf(index, word);
    if (this.costs.releaseParts) return this.partByPart(rank, index, parts);
    this.readyAt = this.free[rank]!;
    this.readyBy = this.last[rank]!;
    for (const part of parts) if (!this.inputsOf(rank, part)) return false;
    const begin = this.readyAt;
    const finish = begin + compositeDuration(this.costs, parts);
    this.start[index] = begin;
    this.end[index] = finish;
    this.cause[index] = this.readyBy;
    this.free[rank] = finish;
    this.last[rank] = index;
    for (const part of parts) this.outputsOf(rank, index, part, finish);
    return true;
  }

  /** A composite whose parts run one after the other, each with its own inputs and results. */
  private partByPart(rank: number, index: number, parts: readonly Part[]): boolean {
    const scale = partScale(this.costs, parts);
    let times = this.partTimes.get(index);
    if (times === undefined) this.partTimes.set(index, (times = new Float64Array(2 * parts.length)));
    while (this.partsDone[rank]! < parts.length) {
      const at = this.partsDone[rank]!;
      const part = parts[at]!;
      this.readyAt = this.free[rank]!;
      this.readyBy = this.last[rank]!;
      if (!this.inputsOf(rank, part)) return false;
      const finish = this.readyAt + scale * computeCost(this.costs, part.code, part.stage);
      if (at === 0) {
        this.start[index] = this.readyAt;
        this.cause[index] = this.readyBy;
      }
      times[2 * at] = this.readyAt;
      times[2 * at + 1] = finish;
      this.end[index] = this.free[rank] = finish;
      this.last[rank] = index;
      this.outputsOf(rank, index, part, finish);
      this.partsDone[rank] = at + 1;
    }
    this.partsDone[rank] = 0;
    return true;
  }

  /** The parts of a composite, checked. */
  private partsOf(index: number, word: number): readonly Part[] {
    const { composites, layout, stages, microbatches } = this.schedule;
    return composites.leavesOf(word).map((leaf) => {
      const part = { code: leaf & 15, stage: layout.stage(leaf), microbatch: layout.microbatch(leaf) };
      if (part.stage >= stages || part.microbatch >= microbatches) this.outOfRange(index, leaf);
      if (part.code > Code.B) {
        throw new ScheduleError('UNSUPPORTED', `${this.caller}: ${this.schedule.format(word)} overlaps something other than F, I, W and B; write it as its own action`);
      }
      return part;
    });
  }

  /** UNSHARD and REDUCE_GRAD run on a lane of their own; RESHARD takes the rank's time. */
  private collective(rank: number, index: number, code: number, stage: number): boolean {
    const { costs } = this;
    const duration = (code === Code.Unshard ? costs.unshard : code === Code.Reshard ? costs.reshard : costs.reduceGrad)[stage]!;
    let begin = this.free[rank]!;
    let by = this.last[rank]!;
    if (code !== Code.Reshard && this.laneFree[rank]! > begin) {
      begin = this.laneFree[rank]!;
      by = this.laneLast[rank]!;
    }
    this.start[index] = begin;
    this.end[index] = begin + duration;
    this.cause[index] = by;
    if (code === Code.Reshard || costs.blocking) {
      this.free[rank] = begin + duration;
      this.last[rank] = index;
    }
    if (code !== Code.Reshard) {
      this.laneFree[rank] = begin + duration;
      this.laneLast[rank] = index;
    }
    if (code === Code.Unshard) {
      this.gathered[stage] = begin + duration;
      this.gatheredBy[stage] = index;
    }
    return true;
  }

  private send(rank: number, index: number, word: number): boolean {
    const { graph, schedule } = this;
    const { layout, microbatches } = schedule;
    const stage = layout.stage(word);
    const microbatch = layout.microbatch(word);
    const backward = (word & 15) === Code.SendB;
    const pair = stage * microbatches + microbatch;
    const made = this.done[pair]! & (backward ? doneI | doneB : doneF);
    if (made === 0) return this.block(rank, Why.NotMade, -1, backward);
    const from = this.partEndOf(rank, word) ?? this.free[rank]!;
    const starts = backward ? graph.inStart : graph.outStart;
    const list = backward ? graph.inEdges : graph.outEdges;
    const base = backward ? graph.edges * microbatches : 0;
    let begin = Number.POSITIVE_INFINITY;
    let finish = from;
    let by = this.last[rank]!;
    for (let i = starts[stage]!; i < starts[stage + 1]!; i++) {
      const edge = list[i]!;
      if (graph.crosses[edge] === 0) continue;
      const key = base + edge * microbatches + microbatch;
      const link = (backward ? this.edges.backwardLink : this.edges.forwardLink)[edge]!;
      if (this.linkFree[link]! > from) by = this.linkLast[link]!;
      begin = Math.min(begin, Math.max(from, this.linkFree[link]!));
      finish = Math.max(finish, this.transfer(edge, key, from, index));
      this.wake(edge, backward, key);
    }
    this.start[index] = Number.isFinite(begin) ? begin : from;
    this.end[index] = finish;
    this.cause[index] = by;
    if (this.costs.blocking) {
      this.free[rank] = finish;
      this.last[rank] = index;
    }
    return true;
  }

  /** End of the part of the rank's last composite that makes what a send sends; undefined where that is not how it was. */
  private partEndOf(rank: number, send: number): number | undefined {
    const last = this.last[rank]!;
    const times = this.partTimes.get(last);
    if (times === undefined || this.costs.blocking) return undefined;
    const { rows, layout, composites } = this.schedule;
    const forward = (send & 15) === Code.SendF;
    const at = composites
      .leavesOf(rows[rank]![last - this.offsets[rank]!]!)
      .findIndex((leaf) => layout.stage(leaf) === layout.stage(send) && layout.microbatch(leaf) === layout.microbatch(send) && ((leaf & 15) === Code.F) === forward);
    return at < 0 ? undefined : times[2 * at + 1];
  }

  /** Posts a receive. It ends when the message is there, which its user or `finishReceives` finds out. */
  private receive(rank: number, index: number, word: number): boolean {
    const { layout, microbatches } = this.schedule;
    const backward = (word & 15) === Code.RecvB;
    const pair = layout.stage(word) * microbatches + layout.microbatch(word);
    this.start[index] = this.end[index] = this.free[rank]!;
    this.cause[index] = this.last[rank]!;
    if (this.costs.blocking) {
      const arrived = this.arrivalFor(rank, word);
      if (Number.isNaN(arrived)) return false;
      this.end[index] = Math.max(arrived, this.free[rank]!);
      this.free[rank] = this.end[index]!;
      this.last[rank] = index;
    }
    this.receives[(backward ? this.done.length : 0) + pair] = index;
    return true;
  }

  /** When all messages of a receive are there; NaN, and the rank blocked, when one is not sent yet. */
  private arrivalFor(rank: number, word: number): number {
    const { graph } = this;
    const { layout, microbatches } = this.schedule;
    const backward = (word & 15) === Code.RecvB;
    const stage = layout.stage(word);
    const starts = backward ? graph.outStart : graph.inStart;
    const list = backward ? graph.outEdges : graph.inEdges;
    let arrived = 0;
    for (let i = starts[stage]!; i < starts[stage + 1]!; i++) {
      const edge = list[i]!;
      if (graph.crosses[edge] === 0) continue;
      const at = this.arrivals[((backward ? graph.edges : 0) + edge) * microbatches + layout.microbatch(word)]!;
      if (Number.isNaN(at)) {
        this.block(rank, Why.Arrival, edge, backward);
        return Number.NaN;
      }
      arrived = Math.max(arrived, at);
    }
    return arrived;
  }

  /** Ends receives that nothing on their rank used; one that is never sent stops its rank there. */
  private finishReceives(): void {
    if (!this.explicit) return;
    const { rows } = this.schedule;
    rows.forEach((row, rank) => {
      if (this.cursor[rank]! < row.length) return;
      for (let slot = 0; slot < row.length; slot++) {
        const word = row[slot]!;
        const code = word & 15;
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

function isBackward(code: number): boolean {
  return code === Code.I || code === Code.B || code === Code.RecvB;
}
