/** @file Local search over the order of rows: moves actions on the critical path, weight work above all, within memory limits. */

import { fits } from '../costs/memory-limit.ts';
import type { OrderGraph, OrderRows, OrderScore } from '../costs/order-graph.ts';
import { Code, wordCode } from '../model/packed.ts';
import { Random } from './random.ts';

/** What a search minimises: `makespan`, the time until all is done, or `span`, the longest time of one rank. */
export type Objective = 'makespan' | 'span';

/** How a search runs. */
export interface OrderSearchOptions {
  readonly objective: Objective;
  /** Memory each rank may hold. */
  readonly limits: Float64Array;
  /** Orders it may try. */
  readonly evaluations: number;
  readonly seed: number;
  /** Stop as soon as this is reached. */
  readonly target: number;
}

/** What a search found. */
export interface OrderSearchResult {
  readonly rows: OrderRows;
  readonly score: OrderScore;
  readonly evaluations: number;
}

/** Weight of the mean end of ranks beside the objective: it tells apart orders that are equally long. */
const evenness = 1e-3;

/** How much worse an order may get at first, in mean durations of an action, to be taken with a chance of 1/e. */
const startHeat = 0.2;

/**
 * Simulated annealing on a graph of operations, always able to return the best order met. The first order must keep the
 * limits.
 */
export function searchOrder(graph: OrderGraph, first: OrderRows, options: OrderSearchOptions): OrderSearchResult {
  return new OrderSearch(graph, first, options).run();
}

class OrderSearch {
  private readonly graph: OrderGraph;
  private readonly options: OrderSearchOptions;
  private readonly random: Random;
  private readonly rows: Int32Array[];
  private readonly slot: Int32Array;
  private readonly step: number;
  /** Operations of the current critical path, from its end. */
  private path: number[] = [];
  private current: number;
  private best: OrderRows;
  private bestScore: OrderScore;
  private bestValue: number;

  constructor(graph: OrderGraph, first: OrderRows, options: OrderSearchOptions) {
    this.graph = graph;
    this.options = options;
    this.random = new Random(options.seed);
    this.rows = first.map((row) => row.slice());
    this.slot = new Int32Array(graph.count);
    for (const row of this.rows) for (let i = 0; i < row.length; i++) this.slot[row[i]!] = i;
    this.step = graph.duration.reduce((sum, d) => sum + d, 0) / Math.max(1, graph.count);
    this.bestScore = graph.score(this.rows);
    this.best = first;
    this.current = this.bestValue = this.valueOf(this.bestScore);
    this.tracePath();
  }

  run(): OrderSearchResult {
    const { evaluations, objective, target } = this.options;
    let tried = 0;
    // Moves that are refused at once cost little, but must not go on for ever.
    for (
      let attempts = 0;
      tried < evaluations && attempts < 20 * evaluations && this.bestScore[objective] > target;
      attempts++
    ) {
      const move = this.proposeMove();
      if (move === null) continue;
      this.shift(move.rank, move.from, move.to);
      if (!fits(this.graph.peakOf(this.rows[move.rank]!), this.options.limits[move.rank]!)) {
        this.shift(move.rank, move.to, move.from);
        continue;
      }
      tried++;
      this.judge(move, 1 - tried / evaluations);
    }
    return { rows: this.best, score: this.bestScore, evaluations: tried };
  }

  /** Keeps a move that was made, or takes it back; `heat` goes from 1 to 0. */
  private judge(move: Move, heat: number): void {
    const score = this.graph.score(this.rows);
    const value = this.valueOf(score);
    const worse = value - this.current;
    if (
      !(
        worse <= 0 ||
        (Number.isFinite(worse) && this.random.unit() < Math.exp(-worse / (startHeat * this.step * heat + 1e-12)))
      )
    ) {
      this.shift(move.rank, move.to, move.from);
      return;
    }
    this.current = value;
    if (value < this.bestValue) {
      this.bestValue = value;
      this.bestScore = score;
      this.best = this.rows.map((row) => row.slice());
    }
    this.tracePath();
  }

  /** The objective, then how early ranks are done on average. */
  private valueOf(score: OrderScore): number {
    const { end } = this.graph;
    let sum = 0;
    for (const row of this.rows) if (row.length > 0) sum += end[row[row.length - 1]!]!;
    return score[this.options.objective] + (evenness * sum) / Math.max(1, this.rows.length);
  }

  /** Follows one chain of operations without slack from the end that decides the objective; needs fresh times. */
  private tracePath(): void {
    const { graph } = this;
    this.path = [];
    let op = this.lastOperation();
    while (op >= 0) {
      this.path.push(op);
      op = this.causeOf(op);
    }
    if (this.path.length === 0 && graph.count > 0) this.path.push(0);
  }

  private lastOperation(): number {
    const { start, end } = this.graph;
    let found = -1;
    let most = -1;
    for (const row of this.rows) {
      if (row.length === 0) continue;
      const last = row[row.length - 1]!;
      const length = this.options.objective === 'makespan' ? end[last]! : end[last]! - start[row[0]!]!;
      if (length > most || (length === most && this.random.unit() < 0.5)) {
        most = length;
        found = last;
      }
    }
    return found;
  }

  /** An operation whose end made another one start when it did; -1: it started at once. */
  private causeOf(op: number): number {
    const { graph } = this;
    const begin = graph.start[op]!;
    if (begin <= 0) return -1;
    const slack = 1e-9 * (1 + begin);
    const at = this.slot[op]!;
    const before = at > 0 ? this.rows[graph.rankOf[op]!]![at - 1]! : -1;
    const byRow = before >= 0 && graph.end[before]! >= begin - slack;
    if (byRow && this.random.unit() < 0.5) return before;
    for (let i = graph.beforeStart[op]!; i < graph.beforeStart[op + 1]!; i++) {
      const source = graph.before[i]!;
      if (graph.end[source]! + graph.beforeDelay[i]! >= begin - slack) return source;
    }
    return byRow ? before : -1;
  }

  /** A move of an operation on the critical path, or of weight work on its rank; null where it cannot be. */
  private proposeMove(): Move | null {
    const { graph, random } = this;
    const op = this.path[random.below(this.path.length)]!;
    const rank = graph.rankOf[op]!;
    const row = this.rows[rank]!;
    const from = this.slot[op]!;
    const choice = random.unit();
    if (choice < 0.5) return this.checked(rank, from, from + (random.unit() < 0.5 ? 1 : -1));
    if (choice < 0.75) {
      const weight = this.weightNear(row, from);
      if (weight < 0) return null;
      return this.checked(rank, weight, random.unit() < 0.5 ? this.gapNear(row, weight) : random.below(row.length));
    }
    return this.checked(rank, from, from + random.below(17) - 8);
  }

  /** Slot of a W around a slot; -1 where there is none near. */
  private weightNear(row: Int32Array, from: number): number {
    for (let i = 0; i < 8; i++) {
      const at = from + this.random.below(13) - 6;
      if (at >= 0 && at < row.length && wordCode(this.graph.word[row[at]!]!) === Code.W) return at;
    }
    return -1;
  }

  /** A slot before which the rank waits, searched from a random place. */
  private gapNear(row: Int32Array, other: number): number {
    const { start, end } = this.graph;
    const first = this.random.below(row.length);
    for (let i = 0; i < row.length; i++) {
      const at = (first + i) % row.length;
      if (at > 0 && start[row[at]!]! > end[row[at - 1]!]! + 1e-9) return at > other ? at - 1 : at;
    }
    return first;
  }

  /** The move, unless it goes nowhere or past something it needs or that needs it. */
  private checked(rank: number, from: number, to: number): Move | null {
    const { graph } = this;
    const row = this.rows[rank]!;
    if (to < 0 || to >= row.length || to === from) return null;
    const op = row[from]!;
    const [starts, others] = to < from ? [graph.beforeStart, graph.before] : [graph.afterStart, graph.after];
    for (let i = starts[op]!; i < starts[op + 1]!; i++) {
      const other = others[i]!;
      if (graph.rankOf[other] !== rank) continue;
      const at = this.slot[other]!;
      if (to < from ? at >= to : at <= to) return null;
    }
    return { rank, from, to };
  }

  private shift(rank: number, from: number, to: number): void {
    const row = this.rows[rank]!;
    const op = row[from]!;
    if (from < to) row.copyWithin(from, from + 1, to + 1);
    else row.copyWithin(to + 1, to, from);
    row[to] = op;
    for (let i = Math.min(from, to); i <= Math.max(from, to); i++) this.slot[row[i]!] = i;
  }
}

/** An operation taken from one slot of a row and put into another. */
interface Move {
  readonly rank: number;
  readonly from: number;
  readonly to: number;
}
