/** @file The connections of a rank's stages with other stages: on the same rank, or by messages. */
import { type Schedule, StageGraph } from '@pipewright/schedule';
import { edgeTag, messageTag } from '../../base/tags.ts';
import type { PipelineStage } from '../../stage/pipeline-stage.ts';
import type { StageDescription, StageInput } from '../../stage/wiring.ts';
import type { Envelope } from '../transport/transport.ts';

/** A message of the row. */
export interface RowMessage extends Envelope {
  /** Position among all messages of this rank's row: the index under which a step keeps it. */
  readonly index: number;
}

/** The connection of two stages, seen from one of them. */
export interface Link {
  /** The stage at the other end. */
  readonly stage: number;
  /** The rank that holds it. */
  readonly rank: number;
  /** The stage itself, where this rank holds it: then nothing is sent. */
  readonly local: PipelineStage | null;
  /** What the later of the two stages takes of the earlier one's output. */
  readonly wanted: readonly StageInput[];
  /** The messages with values, by microbatch; empty where the stage is local. */
  readonly values: readonly RowMessage[];
  /** The messages with gradients, by microbatch; empty where the stage is local. */
  readonly grads: readonly RowMessage[];
}

/** A stage of this rank with its connections. */
export interface StageLinks {
  readonly stage: PipelineStage;
  readonly from: readonly Link[];
  readonly to: readonly Link[];
}

/** The connections of all stages of a rank, by stage. */
export function linksOf(
  schedule: Schedule,
  stages: readonly PipelineStage[],
  descriptions: readonly StageDescription[],
): ReadonlyMap<number, StageLinks> {
  const { microbatches, stageToRank } = schedule;
  const own = new Map(stages.map((stage) => [stage.stageIndex, stage]));
  const graph = new StageGraph(schedule);
  let messages = 0;
  const messagesOf = (peer: number, edge: number, direction: 'forward' | 'backward'): RowMessage[] =>
    Array.from({ length: microbatches }, (_, m) => ({
      peer,
      tag: messageTag(edge, m, direction),
      index: messages++,
    }));
  const link = (other: number, from: number, to: number): Link => {
    const rank = stageToRank[other]!;
    const local = own.get(other) ?? null;
    const wanted = descriptions[to]!.inputs.filter((input) => input.stage === from);
    const edge = edgeTag(schedule, from, to);
    const [values, grads] =
      local === null ? [messagesOf(rank, edge, 'forward'), messagesOf(rank, edge, 'backward')] : [[], []];
    return { stage: other, rank, local, wanted, values, grads };
  };
  return new Map(
    stages.map((stage) => {
      const at = stage.stageIndex;
      const inputs = graph.inputs.subarray(graph.inputStart[at], graph.inputStart[at + 1]);
      const outputs = graph.outputs.subarray(graph.outputStart[at], graph.outputStart[at + 1]);
      const from = Array.from(inputs, (source) => link(source, source, at));
      const to = Array.from(outputs, (destination) => link(destination, at, destination));
      return [at, { stage, from, to }];
    }),
  );
}
