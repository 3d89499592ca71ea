/** @file `optimalSchedule`: the shortest order of all, by exhaustive search; for small steps, and to check the other searches. */

import { resolveCosts } from '../costs/cost-table.ts';
import type { Costs } from '../costs/costs.ts';
import { fits, limitTooLow, resolveMemoryLimit } from '../costs/memory-limit.ts';
import { OrderGraph } from '../costs/order-graph.ts';
import { checkCount, checkOptions, ScheduleError } from '../model/errors.ts';
import { isComposite, wordCode } from '../model/packed.ts';
import { Schedule, type ScheduleData } from '../model/schedule.ts';
import { chainsOf } from './lower-bound.ts';

/** What `optimalSchedule` takes. */
export interface OptimalOptions {
  readonly costs?: Costs;
  /** Activation memory a rank may hold, one number or one per rank, in the unit of `costs.activation`; default: no limit. */
  readonly memoryLimit?: number | readonly number[];
  /** Partial orders to keep at most; beyond that the step is refused as too large. Default 200,000. */
  readonly maxStates?: number;
}

/** The shortest order. */
export interface Optimum {
  readonly schedule: Schedule;
  readonly makespan: number;
  /** Partial orders looked at. */
  readonly states: number;
}

/**
 * The order of least makespan of a schedule's compute actions under memory limits, proven by branch and bound over all
 * orders. Microbatches are alike, so each kind of work of a stage is done in their order. Small steps only: 3 ranks and 6
 * microbatches, or 4 and 4, take less than a second.
 * @example optimalSchedule(buildSchedule('ZBH1', { ranks: 2, microbatches: 3 })).makespan // 10
 */
export function optimalSchedule(schedule: Schedule | ScheduleData, options: OptimalOptions = {}): Optimum {
  checkOptions('optimalSchedule', options, ['costs', 'memoryLimit', 'maxStates']);
  const given = Schedule.from(schedule);
  const costs = resolveCosts('optimalSchedule', options.costs ?? {}, given.stages);
  const limits = resolveMemoryLimit(
    'optimalSchedule',
    options.memoryLimit,
    new Float64Array(given.ranks).fill(Number.POSITIVE_INFINITY),
  );
  const graph = new OrderGraph('optimalSchedule', given, costs);
  return new Branching(graph, limits, checkCount('optimalSchedule', 'maxStates', options.maxStates ?? 200_000)).run();
}

/** A partial order: how far each stream is, and when things ended. Later nodes of the same progress may be no better anywhere. */
interface Node {
  readonly progress: Uint16Array;
  readonly free: Float64Array;
  readonly held: Float64Array;
  /** Ends of the operations done. */
  readonly end: Float64Array;
  readonly op: number;
  readonly parent: Node | null;
}

class Branching {
  private readonly graph: OrderGraph;
  private readonly limits: Float64Array;
  private readonly maxStates: number;
  /** Operations that are done in a fixed order: one kind of work of one stage. */
  private readonly streams: readonly Int32Array[];
  private readonly streamOf: Int32Array;
  private readonly placeOf: Int32Array;
  private readonly tail: Float64Array;
  private readonly work: Float64Array;
  private upper: number;
  private states = 0;

  constructor(graph: OrderGraph, limits: Float64Array, maxStates: number) {
    this.graph = graph;
    this.limits = limits;
    this.maxStates = maxStates;
    this.streams = streamsOf(graph);
    this.streamOf = new Int32Array(graph.count);
    this.placeOf = new Int32Array(graph.count);
    this.streams.forEach((stream, s) => {
      stream.forEach((op, i) => {
        this.streamOf[op] = s;
        this.placeOf[op] = i;
      });
    });
    this.tail = chainsOf(graph).tail;
    this.work = new Float64Array(graph.ranks);
    for (let op = 0; op < graph.count; op++) this.work[graph.rankOf[op]!]! += graph.duration[op]!;
    this.upper = Number.POSITIVE_INFINITY;
  }

  run(): Optimum {
    const { graph } = this;
    const keepsLimits = graph.rows.every((row, rank) => fits(graph.peakOf(row), this.limits[rank]!));
    const given = keepsLimits ? graph.score(graph.rows).makespan : Number.POSITIVE_INFINITY;
    this.upper = given;
    let layer = new Map<string, Node[]>();
    layer.set('', [this.root()]);
    for (let done = 0; done < graph.count; done++) {
      const next = new Map<string, Node[]>();
      for (const nodes of layer.values()) for (const node of nodes) this.expand(node, next);
      layer = next;
    }
    const last = [...layer.values()]
      .flat()
      .reduce<Node | null>((best, node) => (best === null || makespanOf(node) < makespanOf(best) ? node : best), null);
    if (last === null && given === Number.POSITIVE_INFINITY) this.refuse();
    const rows = last === null ? graph.rows : rowsOf(graph, last);
    return {
      schedule: graph.scheduleOf(rows),
      makespan: last === null ? given : makespanOf(last),
      states: this.states,
    };
  }

  private root(): Node {
    const { graph } = this;
    return {
      progress: new Uint16Array(this.streams.length),
      free: new Float64Array(graph.ranks),
      held: new Float64Array(graph.ranks),
      end: new Float64Array(graph.count),
      op: -1,
      parent: null,
    };
  }

  /** Adds every operation that can come next. */
  private expand(node: Node, into: Map<string, Node[]>): void {
    const { graph } = this;
    for (let s = 0; s < this.streams.length; s++) {
      const op = this.streams[s]![node.progress[s]!];
      if (op === undefined) continue;
      const rank = graph.rankOf[op]!;
      let start = node.free[rank]!;
      let ready = fits(node.held[rank]! + graph.takes[op]!, this.limits[rank]!);
      for (let i = graph.beforeStart[op]!; ready && i < graph.beforeStart[op + 1]!; i++) {
        const source = graph.before[i]!;
        ready = this.isDone(node, source);
        start = Math.max(start, node.end[source]! + graph.beforeDelay[i]!);
      }
      if (!ready || start + this.tail[op]! >= this.upper * (1 - 1e-12)) continue;
      this.keep(this.child(node, op, start), into);
    }
  }

  private child(node: Node, op: number, start: number): Node {
    const { graph } = this;
    const rank = graph.rankOf[op]!;
    const progress = node.progress.slice();
    const free = node.free.slice();
    const held = node.held.slice();
    const end = node.end.slice();
    progress[this.streamOf[op]!]!++;
    free[rank] = end[op] = start + graph.duration[op]!;
    held[rank]! += graph.takes[op]! - graph.gives[op]!;
    return { progress, free, held, end, op, parent: node };
  }

  private isDone(node: Node, op: number): boolean {
    return this.placeOf[op]! < node.progress[this.streamOf[op]!]!;
  }

  /** Keeps a node unless it cannot become better than the best known, or another one of its progress is nowhere later. */
  private keep(node: Node, into: Map<string, Node[]>): void {
    if (this.boundOf(node) >= this.upper * (1 - 1e-12)) return;
    const key = node.progress.join();
    const pending = this.pendingOf(node);
    const rivals = into.get(key) ?? [];
    for (const rival of rivals) if (this.noLater(rival, node, pending)) return;
    const left = rivals.filter((rival) => !this.noLater(node, rival, pending));
    left.push(node);
    into.set(key, left);
    if (++this.states > this.maxStates) {
      throw new ScheduleError(
        'UNSUPPORTED',
        `optimalSchedule: more than ${this.maxStates} partial orders; use fewer ranks or microbatches, raise maxStates, or use improveSchedule`,
        {
          maxStates: this.maxStates,
        },
      );
    }
  }

  /** Least makespan after a node: each rank still has its work to do. */
  private boundOf(node: Node): number {
    const { graph } = this;
    const left = this.work.slice();
    for (let s = 0; s < this.streams.length; s++) {
      const stream = this.streams[s]!;
      for (let i = 0; i < node.progress[s]!; i++) left[graph.rankOf[stream[i]!]!]! -= graph.duration[stream[i]!]!;
    }
    return left.reduce((bound, work, rank) => Math.max(bound, node.free[rank]! + work), 0);
  }

  /** Operations done whose results something not done still waits for. */
  private pendingOf(node: Node): number[] {
    const { graph } = this;
    const pending: number[] = [];
    for (let op = 0; op < graph.count; op++) {
      if (!this.isDone(node, op)) continue;
      for (let i = graph.afterStart[op]!; i < graph.afterStart[op + 1]!; i++) {
        if (!this.isDone(node, graph.after[i]!)) {
          pending.push(op);
          break;
        }
      }
    }
    return pending;
  }

  /** Whether everything that still counts is there no later in one node than in another of the same progress. */
  private noLater(a: Node, b: Node, pending: readonly number[]): boolean {
    const { graph } = this;
    for (let rank = 0; rank < graph.ranks; rank++) if (a.free[rank]! > b.free[rank]!) return false;
    for (const op of pending) {
      for (let i = graph.afterStart[op]!; i < graph.afterStart[op + 1]!; i++) {
        const user = graph.after[i]!;
        if (this.isDone(a, user)) continue;
        const rank = graph.rankOf[user]!;
        const delay = graph.afterDelay[i]!;
        if (Math.max(a.end[op]! + delay, a.free[rank]!) > Math.max(b.end[op]! + delay, b.free[rank]!)) return false;
      }
    }
    return true;
  }

  private refuse(): never {
    const { graph } = this;
    const needs = graph.takes.reduce((most, takes) => Math.max(most, takes), 0);
    const rank = this.limits.reduce((low, limit, r) => (limit < this.limits[low]! ? r : low), 0);
    throw limitTooLow('optimalSchedule', { rank, limit: this.limits[rank]!, needed: needs, what: 'every order' });
  }
}

function makespanOf(node: Node): number {
  return Math.max(...node.free);
}

/** Kinds of work by rank and stage, each in the order of microbatches. */
function streamsOf(graph: OrderGraph): Int32Array[] {
  const { layout } = graph.schedule;
  const streams = new Map<string, number[]>();
  for (let op = 0; op < graph.count; op++) {
    const word = graph.word[op]!;
    if (isComposite(word)) {
      throw new ScheduleError(
        'UNSUPPORTED',
        `optimalSchedule: ${graph.schedule.format(word)} is a composite; write its parts as actions of their own`,
      );
    }
    const key = `${layout.stage(word)}/${wordCode(word)}`;
    const list = streams.get(key);
    if (list === undefined) streams.set(key, [op]);
    else list.push(op);
  }
  return [...streams.values()].map((list) =>
    Int32Array.from(list.sort((a, b) => layout.microbatch(graph.word[a]!) - layout.microbatch(graph.word[b]!))),
  );
}

/** The rows a node has built. */
function rowsOf(graph: OrderGraph, node: Node): Int32Array[] {
  const rows: number[][] = Array.from({ length: graph.ranks }, () => []);
  for (let at: Node | null = node; at !== null && at.op >= 0; at = at.parent) rows[graph.rankOf[at.op]!]!.push(at.op);
  return rows.map((row) => Int32Array.from(row.reverse()));
}
