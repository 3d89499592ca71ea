/** @file Which stage feeds which, as flat columns: the chain, or a graph with skip connections. */

import { checkCount, ScheduleError } from './errors.ts';
import type { StageEdge } from './schedule.ts';

/** What a graph is made from; a `Schedule` is one. `edges` null is the chain. */
export interface StageGraphSource {
  readonly stages: number;
  readonly stageToRank: readonly number[];
  readonly edges: readonly StageEdge[] | null;
}

/**
 * `inputs[inputStart[s] .. inputStart[s + 1] - 1]` are the stages that feed stage `s`, ascending; `outputs` likewise those
 * it feeds. `inEdges` and `outEdges` have the numbers of these edges in `edges` of the schedule, or in the chain. One SEND_F of a stage carries its output along all its edges that cross ranks, one RECV_F of a stage takes all
 * its inputs from other ranks; SEND_B and RECV_B likewise for gradients.
 * @example new StageGraph({ stages: 3, stageToRank: [0, 1, 2], edges: null }).outputs // Int32Array [1, 2]
 */
export class StageGraph {
  readonly stages: number;
  readonly isChain: boolean;
  /** How many edges there are; edge `e` leads from stage `from[e]` to stage `to[e]`. */
  readonly edgeCount: number;
  readonly from: Int32Array;
  readonly to: Int32Array;
  /** 1 where the two stages of an edge are on different ranks. */
  readonly crosses: Uint8Array;
  readonly inputStart: Int32Array;
  readonly inputs: Int32Array;
  readonly inEdges: Int32Array;
  readonly outputStart: Int32Array;
  readonly outputs: Int32Array;
  readonly outEdges: Int32Array;
  /** Rank of each stage; -1: on none. */
  readonly rankOf: Int32Array;

  constructor(source: StageGraphSource) {
    const { stages, stageToRank, edges } = (source ?? {}) as StageGraphSource;
    checkCount('StageGraph', 'stages', stages, 0);
    if (!Array.isArray(stageToRank) || (edges !== null && !Array.isArray(edges)))
      throw new ScheduleError(
        'BAD_OPTION',
        'StageGraph: expected { stages, stageToRank, edges } with one rank per stage and edges null or a list',
      );
    this.stages = stages;
    this.isChain = edges === null;
    if (edges !== null) checkEdges(edges, stages);
    this.edgeCount = edges === null ? Math.max(0, stages - 1) : edges.length;
    this.from = Int32Array.from({ length: this.edgeCount }, (_, e) => edges?.[e]![0] ?? e);
    this.to = Int32Array.from({ length: this.edgeCount }, (_, e) => edges?.[e]![1] ?? e + 1);
    this.rankOf = Int32Array.from({ length: stages }, (_, s) => stageToRank[s] ?? -1);
    const { from, to, rankOf } = this;
    this.crosses = Uint8Array.from(from, (stage, e) => (rankOf[stage] === rankOf[to[e]!] ? 0 : 1));
    [this.inputStart, this.inEdges] = columns(stages, to, from);
    [this.outputStart, this.outEdges] = columns(stages, from, to);
    this.inputs = this.inEdges.map((e) => from[e]!);
    this.outputs = this.outEdges.map((e) => to[e]!);
  }

  /** Stages on other ranks whose outputs a stage's RECV_F takes, ascending. */
  recvForwardPeers(stage: number): number[] {
    return remote(this.inputs.subarray(this.inputStart[stage], this.inputStart[stage + 1]), stage, this.rankOf);
  }

  /** Stages on other ranks to which a stage's SEND_F goes, ascending. */
  sendForwardPeers(stage: number): number[] {
    return remote(this.outputs.subarray(this.outputStart[stage], this.outputStart[stage + 1]), stage, this.rankOf);
  }

  /** Stages on other ranks whose gradients a stage's RECV_B takes, ascending. */
  recvBackwardPeers(stage: number): number[] {
    return this.sendForwardPeers(stage);
  }

  /** Stages on other ranks to which a stage's SEND_B goes, ascending. */
  sendBackwardPeers(stage: number): number[] {
    return this.recvForwardPeers(stage);
  }

  /** Per stage its only remote peer, `Peer.None` or `Peer.Several`; `inputs` or `outputs`. */
  peers(side: 'inputs' | 'outputs'): Int32Array {
    return Int32Array.from({ length: this.stages }, (_, stage) => {
      const list = side === 'inputs' ? this.recvForwardPeers(stage) : this.sendForwardPeers(stage);
      return list.length === 0 ? Peer.None : list.length === 1 ? list[0]! : Peer.Several;
    });
  }
}

/** Marks of `StageGraph.peers`. */
export const Peer = { None: -1, Several: -2 } as const;

function remote(stages: Int32Array, stage: number, rankOf: Int32Array): number[] {
  return Array.from(stages).filter((other) => rankOf[other] !== rankOf[stage]);
}

/** Numbers of edges grouped by the stage at one end, in a group ascending by the stage at the other end. */
function columns(stages: number, key: Int32Array, other: Int32Array): [Int32Array, Int32Array] {
  const start = new Int32Array(stages + 1);
  for (const stage of key) start[stage + 1]!++;
  for (let s = 0; s < stages; s++) start[s + 1]! += start[s]!;
  return [start, Int32Array.from(key.keys()).sort((a, b) => key[a]! - key[b]! || other[a]! - other[b]!)];
}

/** Refuses edges that are out of range, repeated or do not lead to a later stage. */
export function checkEdges(edges: readonly StageEdge[], stages: number): void {
  const seen = new Set<string>();
  for (const edge of edges) {
    const [from, to] = Array.isArray(edge) ? (edge as StageEdge) : [Number.NaN, Number.NaN];
    if (!Number.isSafeInteger(from) || !Number.isSafeInteger(to) || from < 0 || to >= stages || from >= to) {
      throw new ScheduleError(
        'BAD_OPTION',
        `edges: [${String(edge)}] must lead from a stage to a later one of the ${stages} stages; write [from, to] with 0 <= from < to < ${stages}`,
        { edge },
      );
    }
    const key = `${from},${to}`;
    if (seen.has(key))
      throw new ScheduleError('BAD_OPTION', `edges: [${key}] is listed twice; list every edge once`, { edge });
    seen.add(key);
  }
}
