/** @file What a simulated step looked like: times of every action, idle shares, memory, critical path. */

import type { CostTable } from '../costs/cost-table.ts';
import type { Action } from '../model/action.ts';
import { checkCount, ScheduleError } from '../model/errors.ts';
import { Code, hasMessages, wordCode } from '../model/packed.ts';
import type { Schedule } from '../model/schedule.ts';
import { type RankMemory, rankMemory } from './rank-memory.ts';
import { type Messages, Timing } from './timing.ts';

/** One action with its times. */
export interface SimulatedAction {
  readonly rank: number;
  readonly slot: number;
  readonly action: Action;
  readonly start: number;
  readonly end: number;
}

/** One action of the critical path; what comes before it ended `wait` earlier. */
export interface CriticalStep extends SimulatedAction {
  /** Time between the end of the step before and this start: a message under way. */
  readonly wait: number;
}

/** A message between two ranks. */
export interface SimulatedMessage {
  readonly fromRank: number;
  /** Slot of the send, or of the compute action in an order without sends. */
  readonly fromSlot: number;
  readonly toRank: number;
  /** Slot of the receive, or of the compute action in an order without receives. */
  readonly toSlot: number;
  readonly departure: number;
  readonly arrival: number;
  readonly microbatch: number;
  /** Whether it carries a gradient. */
  readonly backward: boolean;
}

/** Idle shares of a step, 0 to 1. */
export interface BubbleRates {
  /** 1 - work / longest time from a rank's first to its last compute action; work is the mean over ranks. */
  readonly span: number;
  /** 1 - work / time until everything has ended. */
  readonly makespan: number;
}

/**
 * The result of `simulate`. Columns hold one number per cell, rows one after the other; bubbles take no time.
 * @example const s = simulate(schedule, { F: 1, I: 1, W: 1 }); s.startOf(1, 0) // when rank 1 starts
 */
export class Simulation extends Timing {
  readonly schedule: Schedule;
  readonly costs: CostTable;
  /** Per stage how often its parameters are gathered (UNSHARD), and how often its gradients are reduced (REDUCE_GRAD). */
  readonly allGathers: Int32Array;
  readonly reductions: Int32Array;
  /** End of the last action of all. */
  readonly makespan: number;
  /** Longest time from the first to the last compute action of a rank. */
  readonly span: number;
  readonly bubble: BubbleRates;
  /** Compute time of each rank. */
  readonly busy: Float64Array;
  /** `makespan` less `busy`. */
  readonly idle: Float64Array;
  /** Time each rank's sends, UNSHARDs and REDUCE_GRADs were under way, or its outgoing messages in an order without sends. */
  readonly communication: Float64Array;
  /** Part of `idle` in which a rank waited for a message that was already under way. */
  readonly exposed: Float64Array;
  private memoryCache: readonly RankMemory[] | undefined;

  constructor(schedule: Schedule, costs: CostTable, timing: Timing) {
    if (!(timing?.start instanceof Float64Array) || typeof costs?.shards !== 'number' || !Array.isArray(schedule?.rows))
      throw new ScheduleError('BAD_OPTION', 'Simulation: made by simulate(schedule, costs); call that instead');
    super(timing);
    this.schedule = schedule;
    this.costs = costs;
    this.allGathers = countByStage(schedule, Code.Unshard);
    this.reductions = countByStage(schedule, Code.ReduceGrad);
    const totals = addUp(schedule, timing);
    this.makespan = totals.makespan;
    this.span = totals.span;
    this.busy = totals.busy;
    this.idle = totals.busy.map((busy) => totals.makespan - busy);
    this.communication = totals.communication;
    this.exposed = totals.exposed;
    const work = totals.busy.reduce((sum, busy) => sum + busy, 0) / Math.max(1, schedule.ranks);
    this.bubble = { span: idleShare(work, totals.span), makespan: idleShare(work, totals.makespan) };
  }

  /** When a cell starts. */
  startOf(rank: number, slot: number): number {
    return this.start[this.cellOf('Simulation.startOf', rank, slot)]!;
  }

  /** When a cell ends. */
  endOf(rank: number, slot: number): number {
    return this.end[this.cellOf('Simulation.endOf', rank, slot)]!;
  }

  private cellOf(where: string, rank: number, slot: number): number {
    checkCount(where, 'rank', rank, 0);
    return this.offsets[rank]! + checkCount(where, 'slot', slot, 0);
  }

  /** A cell with its times; null for a bubble or past the end of the row. */
  at(rank: number, slot: number): SimulatedAction | null {
    const action = this.schedule.at(rank, slot);
    return action === null
      ? null
      : { rank, slot, action, start: this.startOf(rank, slot), end: this.endOf(rank, slot) };
  }

  /**
   * All actions with their times, rank by rank, in row order.
   * @example simulate(schedule).events().filter((e) => e.rank === 0).map((e) => `${formatAction(e.action)} ${e.start}-${e.end}`)
   */
  events(): SimulatedAction[] {
    const found: SimulatedAction[] = [];
    this.schedule.rows.forEach((row, rank) => {
      for (let slot = 0; slot < row.length; slot++) {
        const event = this.at(rank, slot);
        if (event !== null) found.push(event);
      }
    });
    return found;
  }

  /**
   * All messages between ranks, in order of their receivers' rows.
   * @example simulate(schedule, { comm: 0.1 }).transfers().filter((t) => t.toRank === 1)
   */
  transfers(): SimulatedMessage[] {
    const explicit = hasMessages(this.schedule.rows);
    const found: SimulatedMessage[] = [];
    this.schedule.forEachLeaf(({ rank, slot, code, stage, microbatch }) => {
      const backward = explicit ? code === Code.RecvB : code === Code.I || code === Code.B;
      if (!backward && code !== (explicit ? Code.RecvF : Code.F)) return;
      this.collectTransfers({ stage, microbatch, backward }, { rank, slot }, found);
    });
    return found;
  }

  private collectTransfers(
    what: { stage: number; microbatch: number; backward: boolean },
    to: { rank: number; slot: number },
    into: SimulatedMessage[],
  ): void {
    const { graph, departures, arrivals, senders } = this.messages;
    const { microbatches } = this.schedule;
    const starts = what.backward ? graph.outputStart : graph.inputStart;
    const list = what.backward ? graph.outEdges : graph.inEdges;
    for (let i = starts[what.stage]!; i < starts[what.stage + 1]!; i++) {
      const edge = list[i]!;
      if (graph.crosses[edge] === 0) continue;
      const key = ((what.backward ? graph.edgeCount : 0) + edge) * microbatches + what.microbatch;
      const sender = senders[key]!;
      const fromRank = this.rankAt(sender);
      into.push({
        fromRank,
        fromSlot: sender - this.offsets[fromRank]!,
        toRank: to.rank,
        toSlot: to.slot,
        departure: departures[key]!,
        arrival: arrivals[key]!,
        microbatch: what.microbatch,
        backward: what.backward,
      });
    }
  }

  /** Memory of each rank over time; worked out when first read. */
  get memory(): readonly RankMemory[] {
    this.memoryCache ??= this.schedule.rows.map((_, rank) => rankMemory(this.schedule, this.costs, this, rank));
    return this.memoryCache;
  }

  /** Highest memory of parameters of each rank: exactly what a run holds at most, whatever its speed. */
  get parameterPeak(): Float64Array {
    return Float64Array.from(this.memory, (m) => m.parameterPeak);
  }

  /** Highest memory of each rank. */
  get peakMemory(): Float64Array {
    return Float64Array.from(this.memory, (m) => m.peak);
  }

  /**
   * The chain of actions, each waiting for the one before, that ends last: what must get shorter for the step to get shorter.
   * @example simulate(schedule).criticalPath.map((step) => formatAction(step.action)).join(' ')
   */
  get criticalPath(): readonly CriticalStep[] {
    let index = -1;
    for (let i = 0; i < this.end.length; i++)
      if (this.end[i] === this.makespan && this.makespan > this.start[i]!) index = i;
    const steps: CriticalStep[] = [];
    while (index >= 0) {
      const before = this.cause[index]!;
      const event = this.eventAt(index);
      steps.push({ ...event, wait: before < 0 ? event.start : Math.max(0, event.start - this.end[before]!) });
      index = before;
    }
    return steps.reverse();
  }

  /** Plain numbers, for `JSON.stringify`. */
  toJSON(): Record<string, unknown> {
    const perRank = (column: Float64Array): number[][] =>
      this.schedule.rows.map((row, rank) =>
        Array.from(column.subarray(this.offsets[rank]!, this.offsets[rank]! + row.length)),
      );
    return {
      schedule: this.schedule.name,
      makespan: this.makespan,
      span: this.span,
      bubble: this.bubble,
      busy: Array.from(this.busy),
      idle: Array.from(this.idle),
      communication: Array.from(this.communication),
      exposed: Array.from(this.exposed),
      peakMemory: Array.from(this.peakMemory),
      parameterPeak: Array.from(this.parameterPeak),
      allGathers: Array.from(this.allGathers),
      reductions: Array.from(this.reductions),
      start: perRank(this.start),
      end: perRank(this.end),
    };
  }

  private eventAt(index: number): SimulatedAction {
    const rank = this.rankAt(index);
    return this.at(rank, index - this.offsets[rank]!)!;
  }

  /** The rank of a cell. */
  private rankAt(index: number): number {
    let low = 0;
    let high = this.offsets.length - 2;
    while (low < high) {
      const middle = (low + high + 1) >> 1;
      if (this.offsets[middle]! <= index) low = middle;
      else high = middle - 1;
    }
    return low;
  }
}

/** How often every stage has an action of a code. */
function countByStage({ denseRows, layout, stages }: Schedule, code: number): Int32Array {
  const counts = new Int32Array(stages);
  for (const row of denseRows)
    for (let i = 0; i < row.length; i++) if (wordCode(row[i]!) === code) counts[layout.stage(row[i]!)]!++;
  return counts;
}

function idleShare(work: number, time: number): number {
  return time > 0 ? 1 - work / time : 0;
}

interface Totals {
  makespan: number;
  span: number;
  readonly busy: Float64Array;
  readonly communication: Float64Array;
  readonly exposed: Float64Array;
}

/** One walk over the columns. */
function addUp(schedule: Schedule, timing: Timing): Totals {
  const { offsets, start, end } = timing;
  const totals: Totals = {
    makespan: 0,
    span: 0,
    busy: new Float64Array(schedule.ranks),
    communication: new Float64Array(schedule.ranks),
    exposed: new Float64Array(schedule.ranks),
  };
  const codes = codeColumn(schedule, offsets);
  for (let rank = 0; rank < schedule.rows.length; rank++) {
    let first = -1;
    let free = 0;
    for (let i = offsets[rank]!; i < offsets[rank + 1]!; i++) {
      const code = codes[i]!;
      if (code === Code.Bubble) continue;
      const duration = code === Code.Composite ? workOf(timing, i) : end[i]! - start[i]!;
      if (end[i]! > totals.makespan) totals.makespan = end[i]!;
      if (code <= Code.B || code === Code.Composite) {
        if (first < 0) first = start[i]!;
        totals.busy[rank]! += duration;
        if (start[i]! > free) totals.exposed[rank]! += Math.min(start[i]! - free, underWay(i, timing, codes));
        free = end[i]!;
      } else if (code === Code.Unshard || code === Code.ReduceGrad) totals.communication[rank]! += duration;
    }
    if (first >= 0 && free - first > totals.span) totals.span = free - first;
  }
  addMessages(schedule, timing.messages, totals.communication);
  return totals;
}

/** Time a composite computes, without waiting between its parts. */
function workOf({ start, end, partTimes }: Timing, index: number): number {
  const times = partTimes.get(index);
  if (times === undefined) return end[index]! - start[index]!;
  let work = 0;
  for (let i = 0; i < times.length; i += 2) work += times[i + 1]! - times[i]!;
  return work;
}

/** Adds the time of every message between ranks to its sender. */
function addMessages(schedule: Schedule, messages: Messages, communication: Float64Array): void {
  const { graph, departures, arrivals } = messages;
  const { microbatches, stageToRank } = schedule;
  const gradients = graph.edgeCount * microbatches;
  for (let edge = 0; edge < graph.edgeCount; edge++) {
    if (graph.crosses[edge] === 0) continue;
    const forwardRank = stageToRank[graph.from[edge]!]!;
    const backwardRank = stageToRank[graph.to[edge]!]!;
    for (let key = edge * microbatches; key < (edge + 1) * microbatches; key++) {
      const forward = arrivals[key]! - departures[key]!;
      const backward = arrivals[gradients + key]! - departures[gradients + key]!;
      if (forward > 0) communication[forwardRank]! += forward;
      if (backward > 0) communication[backwardRank]! += backward;
    }
  }
}

/** How long the message that decided a start was under way. */
function underWay(index: number, { start, end, cause }: Timing, codes: Uint8Array): number {
  const by = cause[index]!;
  if (by < 0) return 0;
  const code = codes[by]!;
  if (code === Code.SendF || code === Code.SendB || code === Code.Unshard) return end[by]! - start[by]!;
  return Math.max(0, start[index]! - end[by]!);
}

/** Kind codes of all cells. */
function codeColumn(schedule: Schedule, offsets: Int32Array): Uint8Array {
  const codes = new Uint8Array(offsets[offsets.length - 1]!);
  schedule.rows.forEach((row, rank) => {
    const offset = offsets[rank]!;
    for (let slot = 0; slot < row.length; slot++) codes[offset + slot] = wordCode(row[slot]!);
  });
  return codes;
}
