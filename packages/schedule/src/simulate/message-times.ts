/** @file The messages of a replay: which link each one takes, when it leaves and when it is there. */

import type { EdgeCosts } from '../costs/edge-costs.ts';
import type { StageGraph } from '../model/stage-graph.ts';
import type { Messages } from './timing.ts';

/** Messages by key: activations at `edge * microbatches + microbatch`, gradients `gradients` later. */
export class MessageTimes implements Messages {
  readonly graph: StageGraph;
  readonly departures: Float64Array;
  readonly arrivals: Float64Array;
  readonly senders: Int32Array;
  /** By link: when it is free, and the cell whose message it carried last. */
  readonly linkFree: Float64Array;
  readonly linkLast: Int32Array;
  /** The key of the message that `allArrived` did not find. */
  missing = -1;
  private readonly edges: EdgeCosts;
  private readonly microbatches: number;
  private readonly gradients: number;

  constructor(graph: StageGraph, edges: EdgeCosts, microbatches: number) {
    this.graph = graph;
    this.edges = edges;
    this.microbatches = microbatches;
    this.gradients = graph.edgeCount * microbatches;
    this.arrivals = new Float64Array(2 * this.gradients).fill(Number.NaN);
    this.departures = new Float64Array(2 * this.gradients).fill(Number.NaN);
    this.senders = new Int32Array(2 * this.gradients).fill(-1);
    this.linkFree = new Float64Array(edges.links);
    this.linkLast = new Int32Array(edges.links).fill(-1);
  }

  /** The link of an edge, one direction. */
  linkOf(edge: number, backward: boolean): number {
    return (backward ? this.edges.backwardLink : this.edges.forwardLink)[edge]!;
  }

  /** A result that stays on its rank: it is there at once. */
  handOver(key: number, at: number, index: number): void {
    this.departures[key] = this.arrivals[key] = at;
    this.senders[key] = index;
  }

  /** Sends a message that is ready at `from`, taking its link for as long as it needs; returns when it has arrived. */
  transfer(edge: number, key: number, from: number, index: number): number {
    const { edges, linkFree } = this;
    const backward = key >= this.gradients;
    const occupancy = (backward ? edges.backwardOccupancy : edges.forwardOccupancy)[edge]!;
    const latency = (backward ? edges.backwardLatency : edges.forwardLatency)[edge]!;
    this.senders[key] = index;
    if (occupancy === 0) {
      this.departures[key] = from;
      return (this.arrivals[key] = from + latency);
    }
    const link = this.linkOf(edge, backward);
    const leave = Math.max(from, linkFree[link]!);
    linkFree[link] = leave + occupancy;
    this.linkLast[link] = index;
    this.departures[key] = leave;
    return (this.arrivals[key] = leave + occupancy + latency);
  }

  /** When all messages that a stage receives for a microbatch are there; NaN, and `missing` set, when one is not sent yet. */
  allArrived(stage: number, microbatch: number, backward: boolean): number {
    const { graph, arrivals } = this;
    const base = (backward ? this.gradients : 0) + microbatch;
    const starts = backward ? graph.outputStart : graph.inputStart;
    const list = backward ? graph.outEdges : graph.inEdges;
    let arrived = 0;
    for (let i = starts[stage]!; i < starts[stage + 1]!; i++) {
      const edge = list[i]!;
      if (graph.crosses[edge] === 0) continue;
      const key = base + edge * this.microbatches;
      const at = arrivals[key]!;
      if (Number.isNaN(at)) {
        this.missing = key;
        return Number.NaN;
      }
      arrived = Math.max(arrived, at);
    }
    return arrived;
  }
}
