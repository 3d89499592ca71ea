/** @file Which stage feeds which, as flat columns: the chain, or a graph with skip connections. */

import { ScheduleError } from './errors.ts';
import type { StageEdge } from './schedule.ts';

/** What a graph is made from; a `Schedule` is one. `edges` null is the chain. */
export interface StageGraphSource {
  readonly stages: number;
  readonly stageToRank: readonly number[];
  readonly edges: readonly StageEdge[] | null;
}

/**
 * `inputs[inputStart[s] .. inputStart[s + 1] - 1]` are the stages that feed stage `s`, ascending; `outputs` likewise those
 * it feeds. Every edge that crosses ranks carries one forward and one backward message per microbatch, so a stage has one
 * RECV_F per remote input (in the order of the producers, lowest first), one SEND_F per remote output (lowest first), one
 * SEND_B per remote input (highest first) and one RECV_B per remote output (highest first): what is ready first comes first.
 * @example new StageGraph({ stages: 3, stageToRank: [0, 1, 2], edges: null }).outputs // Int32Array [1, 2]
 */
export class StageGraph {
  readonly stages: number;
  readonly isChain: boolean;
  readonly inputStart: Int32Array;
  readonly inputs: Int32Array;
  readonly outputStart: Int32Array;
  readonly outputs: Int32Array;
  /** Rank of each stage; -1: on none. */
  readonly rankOf: Int32Array;

  constructor({ stages, stageToRank, edges }: StageGraphSource) {
    this.stages = stages;
    this.isChain = edges === null;
    if (edges !== null) checkEdges(edges, stages);
    const list = edges ?? Array.from({ length: Math.max(0, stages - 1) }, (_, s): StageEdge => [s, s + 1]);
    this.rankOf = Int32Array.from({ length: stages }, (_, s) => stageToRank[s] ?? -1);
    [this.inputStart, this.inputs] = columns(stages, list, 1);
    [this.outputStart, this.outputs] = columns(stages, list, 0);
  }

  /** Stages that feed a stage, ascending. */
  inputsOf(stage: number): readonly number[] {
    return Array.from(this.inputs.subarray(this.inputStart[stage], this.inputStart[stage + 1]));
  }

  /** Stages that a stage feeds, ascending. */
  outputsOf(stage: number): readonly number[] {
    return Array.from(this.outputs.subarray(this.outputStart[stage], this.outputStart[stage + 1]));
  }

  /** Whether two stages are on different ranks. */
  crosses(a: number, b: number): boolean {
    return this.rankOf[a] !== this.rankOf[b];
  }

  /** Stages that send a stage's remote inputs, in the order of its RECV_F actions. */
  recvForwardPeers(stage: number): readonly number[] {
    return this.inputsOf(stage).filter((s) => this.crosses(s, stage));
  }

  /** Stages that take a stage's output on other ranks, in the order of its SEND_F actions. */
  sendForwardPeers(stage: number): readonly number[] {
    return this.outputsOf(stage).filter((s) => this.crosses(s, stage));
  }

  /** Stages that take a stage's input gradients on other ranks, in the order of its SEND_B actions. */
  sendBackwardPeers(stage: number): readonly number[] {
    return [...this.recvForwardPeers(stage)].reverse();
  }

  /** Stages that send a stage's output gradients from other ranks, in the order of its RECV_B actions. */
  recvBackwardPeers(stage: number): readonly number[] {
    return [...this.sendForwardPeers(stage)].reverse();
  }
}

/** The other ends of the edges, grouped by the stage at end `key`, ascending. */
function columns(stages: number, edges: readonly StageEdge[], key: 0 | 1): [Int32Array, Int32Array] {
  const sorted = [...edges].sort((a, b) => a[key] - b[key] || a[1 - key]! - b[1 - key]!);
  const start = new Int32Array(stages + 1);
  for (const edge of sorted) start[edge[key] + 1]!++;
  for (let s = 0; s < stages; s++) start[s + 1]! += start[s]!;
  return [start, Int32Array.from(sorted, (edge) => edge[1 - key]!)];
}

/** Refuses edges that are out of range, repeated or do not lead to a later stage. */
export function checkEdges(edges: readonly StageEdge[], stages: number): void {
  const seen = new Set<string>();
  for (const edge of edges) {
    const [from, to] = Array.isArray(edge) ? (edge as StageEdge) : [Number.NaN, Number.NaN];
    if (!Number.isSafeInteger(from) || !Number.isSafeInteger(to) || from < 0 || to >= stages || from >= to) {
      throw new ScheduleError('BAD_OPTION', `edges: [${String(edge)}] must lead from a stage to a later one of the ${stages} stages; write [from, to] with 0 <= from < to < ${stages}`, { edge });
    }
    const key = `${from},${to}`;
    if (seen.has(key)) throw new ScheduleError('BAD_OPTION', `edges: [${key}] is listed twice; list every edge once`, { edge });
    seen.add(key);
  }
}
