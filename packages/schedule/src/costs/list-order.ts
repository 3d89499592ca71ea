/** @file A plain greedy order: whatever can start first, gradients before forwards before weight work, within memory limits. */

import { Code, wordCode } from '../model/packed.ts';
import { fits } from './memory-limit.ts';
import type { OrderGraph, OrderRows } from './order-graph.ts';

/**
 * The greedy order of a graph's operations under limits. A rank takes a microbatch in only when all its stages have room for it, so that
 * the oldest microbatch can always go on and the order cannot get stuck. Null where a rank has no room for one microbatch.
 */
export function listOrder(graph: OrderGraph, limits: Float64Array): OrderRows | null {
  return new ListOrder(graph, limits).run();
}

/** One kind of work of one stage, in the order of microbatches. */
interface Stream {
  readonly rank: number;
  readonly code: number;
  readonly stage: number;
  readonly ops: number[];
  next: number;
}

class ListOrder {
  private readonly graph: OrderGraph;
  private readonly limits: Float64Array;
  private readonly streams: readonly Stream[];
  private readonly streamsOfRank: readonly Stream[][];
  private readonly end: Float64Array;
  private readonly free: Float64Array;
  /** Memory each rank has promised to the microbatches it took in, and what a microbatch needs on it. */
  private readonly promised: Float64Array;
  private readonly whole: Float64Array;
  /** Whether a rank has taken in a microbatch. */
  private readonly taken: readonly Set<number>[];

  constructor(graph: OrderGraph, limits: Float64Array) {
    this.graph = graph;
    this.limits = limits;
    this.streams = streamsOf(graph);
    this.streamsOfRank = Array.from({ length: graph.ranks }, (_, rank) =>
      this.streams.filter((stream) => stream.rank === rank),
    );
    this.end = new Float64Array(graph.count).fill(Number.NaN);
    this.free = new Float64Array(graph.ranks);
    this.promised = new Float64Array(graph.ranks);
    this.whole = new Float64Array(graph.ranks);
    for (const stream of this.streams) {
      if (stream.code === Code.F && stream.ops.length > 0) this.whole[stream.rank]! += graph.takes[stream.ops[0]!]!;
    }
    this.taken = Array.from({ length: graph.ranks }, () => new Set<number>());
  }

  run(): OrderRows | null {
    const { graph } = this;
    if (this.whole.some((needed, rank) => !fits(needed, this.limits[rank]!))) return null;
    const rows: number[][] = Array.from({ length: graph.ranks }, () => []);
    for (let done = 0; done < graph.count; done++) {
      let best: Stream | null = null;
      let bestStart = Number.POSITIVE_INFINITY;
      for (const streams of this.streamsOfRank) {
        for (const stream of streams) {
          const start = this.startOf(stream);
          if (start < bestStart || (start === bestStart && best !== null && urgency(stream) > urgency(best))) {
            best = stream;
            bestStart = start;
          }
        }
      }
      if (best === null) return null;
      rows[best.rank]!.push(this.take(best, bestStart));
    }
    return rows.map((row) => Int32Array.from(row));
  }

  /** When the next operation of a stream could start; Infinity while an input or room is missing. */
  private startOf(stream: Stream): number {
    const { graph } = this;
    const op = stream.ops[stream.next];
    if (op === undefined) return Number.POSITIVE_INFINITY;
    if (stream.code === Code.F && !this.taken[stream.rank]!.has(stream.next) && !this.hasRoom(stream.rank))
      return Number.POSITIVE_INFINITY;
    let start = this.free[stream.rank]!;
    for (let i = graph.beforeStart[op]!; i < graph.beforeStart[op + 1]!; i++) {
      const at = this.end[graph.before[i]!]! + graph.beforeDelay[i]!;
      if (Number.isNaN(at)) return Number.POSITIVE_INFINITY;
      if (at > start) start = at;
    }
    return start;
  }

  private hasRoom(rank: number): boolean {
    return fits(this.promised[rank]! + this.whole[rank]!, this.limits[rank]!);
  }

  private take(stream: Stream, start: number): number {
    const { graph } = this;
    const { rank } = stream;
    const op = stream.ops[stream.next]!;
    if (stream.code === Code.F && !this.taken[rank]!.has(stream.next)) {
      this.taken[rank]!.add(stream.next);
      this.promised[rank]! += this.whole[rank]!;
    }
    stream.next++;
    this.promised[rank]! -= graph.gives[op]!;
    this.free[rank] = this.end[op] = start + graph.duration[op]!;
    return op;
  }
}

/** Gradients first, then forwards, later stages first; weight work last. */
function urgency({ code, stage }: Stream): number {
  return (code === Code.W ? 0 : code === Code.F ? 1e6 : 2e6) + stage;
}

function streamsOf(graph: OrderGraph): Stream[] {
  const { layout } = graph.schedule;
  const streams = new Map<number, Stream>();
  for (let op = 0; op < graph.count; op++) {
    const word = graph.word[op]!;
    const stage = layout.stage(word);
    const code = wordCode(word);
    const key = stage * 16 + code;
    let stream = streams.get(key);
    if (stream === undefined) streams.set(key, (stream = { rank: graph.rankOf[op]!, code, stage, ops: [], next: 0 }));
    stream.ops.push(op);
  }
  for (const { ops } of streams.values())
    ops.sort((a, b) => layout.microbatch(graph.word[a]!) - layout.microbatch(graph.word[b]!));
  return [...streams.values()];
}
