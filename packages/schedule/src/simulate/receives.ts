/** @file The receives of a replay: where each was posted, and whether all of their messages have been used. */

import type { StageGraph } from '../model/stage-graph.ts';

/** Receives that were posted, by stage and microbatch. */
export class Receives {
  /** By pair of stage and microbatch, activations first, then gradients: the cell that posted the receive; -1: none has. */
  private readonly postedBy: Int32Array;
  /** 1 for each stage that receives activations, then for each that receives gradients. */
  private readonly receivesOf: Uint8Array;
  private readonly stages: number;
  private readonly microbatches: number;
  /** Receives whose message nothing has used yet. */
  private open = 0;

  constructor(graph: StageGraph, stages: number, microbatches: number) {
    this.stages = stages;
    this.microbatches = microbatches;
    this.postedBy = new Int32Array(2 * stages * microbatches).fill(-1);
    this.receivesOf = new Uint8Array(2 * stages);
    graph.crosses.forEach((crosses, edge) => {
      if (crosses === 1) this.receivesOf[graph.to[edge]!] = this.receivesOf[stages + graph.from[edge]!] = 1;
    });
  }

  /** Whether a message was received that nothing has used. */
  get areOpen(): boolean {
    return this.open !== 0;
  }

  /** A cell posts a receive. */
  post(stage: number, microbatch: number, backward: boolean, index: number): void {
    this.open++;
    this.postedBy[this.at(stage, microbatch, backward)] = index;
  }

  /** The cell that posted a receive; -1: none has. */
  cellOf(stage: number, microbatch: number, backward: boolean): number {
    return this.postedBy[this.at(stage, microbatch, backward)]!;
  }

  /** What a stage received for a microbatch is used. */
  use(stage: number, backward: boolean): void {
    if (this.receivesOf[(backward ? this.stages : 0) + stage] === 1) this.open--;
  }

  private at(stage: number, microbatch: number, backward: boolean): number {
    return ((backward ? this.stages : 0) + stage) * this.microbatches + microbatch;
  }
}
