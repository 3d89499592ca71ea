/** @file When the actions of a schedule start and end, and their messages leave and arrive. */

import type { StageGraph } from '../model/stage-graph.ts';

/** Start and end of every cell, rows one after the other: the cell of a rank and slot is at `offsets[rank] + slot`. */
export class Timing {
  readonly offsets: Int32Array;
  readonly start: Float64Array;
  readonly end: Float64Array;
  /** The cell whose end decided the start; -1: none, it started at once. */
  readonly cause: Int32Array;
  /** Messages between stages. */
  readonly messages: Messages;
  /** By cell of a composite whose parts release separately: start and end of each part. */
  readonly partTimes: ReadonlyMap<number, Float64Array>;
  /** By cell of an UNSHARD or REDUCE_GRAD that waits for its lane: when its rank came to it. */
  readonly issued: ReadonlyMap<number, number>;

  constructor(columns: Timing) {
    this.offsets = columns.offsets;
    this.start = columns.start;
    this.end = columns.end;
    this.cause = columns.cause;
    this.messages = columns.messages;
    this.partTimes = columns.partTimes;
    this.issued = columns.issued;
  }
}

/** Messages over the edges of the stage graph: activations at `edge * microbatches + microbatch`, gradients one lap of all edges later. */
export interface Messages {
  readonly graph: StageGraph;
  /** When each has left, and when it is there; NaN: never sent. */
  readonly departures: Float64Array;
  readonly arrivals: Float64Array;
  /** The cell that sent it: a send, or the compute action where there are no sends. */
  readonly senders: Int32Array;
}
