/** @file The lanes of a replay, one for each rank: UNSHARD and REDUCE_GRAD run there, beside computing and one after the other. */

/** What runs on the lanes, and what was gathered there. */
export class Lanes {
  /** By rank: when its lane is free, and the cell that ran there last. */
  readonly free: Float64Array;
  readonly last: Int32Array;
  /** By stage: when its parameters are there, and the cell that gathered them. */
  readonly gathered: Float64Array;
  readonly gatheredBy: Int32Array;
  /** By cell that waited for its lane: when its rank came to it. */
  readonly issued: Map<number, number> = new Map();

  constructor(ranks: number, stages: number) {
    this.free = new Float64Array(ranks);
    this.last = new Int32Array(ranks).fill(-1);
    this.gathered = new Float64Array(stages);
    this.gatheredBy = new Int32Array(stages).fill(-1);
  }

  /** A cell has the lane of a rank until `end`. */
  take(rank: number, index: number, end: number): void {
    this.free[rank] = end;
    this.last[rank] = index;
  }

  /** The parameters of a stage are there from `end` on. */
  gather(stage: number, index: number, end: number): void {
    this.gathered[stage] = end;
    this.gatheredBy[stage] = index;
  }
}
