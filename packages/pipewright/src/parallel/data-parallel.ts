/** @file Data parallelism as the runtime uses it: one interface for stages that are replicated and for those that are sharded. */
import type { distributed, nn, Tensor } from '@pipewright/torch';
import { PipelineError } from '../base/errors.ts';
import type { Waited } from '../base/waited.ts';
import { shardingOf } from './fully-shard.ts';
import { GradientReduction } from './gradient-reduction.ts';
import { replicatedInside, replicationOf } from './replicate.ts';
import { ShardedStages } from './sharded-stages.ts';
import type { StageParameters, StepKind } from './step-kind.ts';

/** A stage and the module that has its parameters. */
export interface ParallelStage {
  readonly stageIndex: number;
  readonly module: nn.Module;
}

/** What lowering must know of a stage. Plain JSON. */
export interface StageSharding {
  readonly level: 'optimizer' | 'gradients' | 'parameters';
  /** Bytes of the whole parameters that are sharded. */
  readonly bytes: number;
  readonly shards: number;
  readonly replicas: number;
  /** Whether the stage is resharded as soon as another one is needed. */
  readonly leaves: boolean;
}

/** Whether a rank can begin a step. */
export interface Readiness {
  /** Why it cannot; null where it can. */
  readonly refusal: string | null;
  /** Rows of its batch. */
  readonly rows: number;
  /** What it is about to do; all replicas and shards do the same. */
  readonly kind: StepKind;
}

/** How a step ends. */
export interface StepEnd {
  readonly training: boolean;
  /** Whether gradients are summed in this step; in one that is refused they are not. */
  readonly sync: boolean;
  /** Whether the step was refused: nothing was computed. */
  readonly refused: boolean;
}

/** The data parallelism of one rank's stages. */
export interface DataParallel {
  /** Reductions that were begun, by stage. */
  readonly counts: ReadonlyMap<number, number>;
  /** What the reductions of this step took after the row, by stage. */
  readonly lateReductions: ReadonlyMap<number, Waited>;
  /** The ranks that divide parameters among them; null where parameters are whole. */
  readonly shardGroup: distributed.ProcessGroup | null;
  /** How a stage is sharded; null where it is only replicated. */
  sharding(stage: number): StageSharding | null;
  /** Before the first step. */
  prepare(tied: ReadonlySet<Tensor>): void;
  /** Before a training step: refuses parameters whose gradients no reduction would sum. */
  checkLearned(own: readonly StageParameters[]): void;
  /** The groups beside the pipeline: this rank's replicas, and the ranks it shares state with. */
  readonly groups: readonly distributed.ProcessGroup[];
  /**
   * Before a step: the rows of all replicas, and the reason if one of them refuses the step. All replicas call it, once.
   * An evaluation without collectives asks no other rank.
   */
  agree(ready: Readiness, training: boolean): Readiness;
  /** A training step begins: puts gradients aside that earlier steps have summed, so that they are not summed again. */
  setAside(): void;
  /** A step or an evaluation begins. */
  begin(): void;
  unshard(stage: number): void;
  /** A stage is about to compute: waits until it is gathered. Null where that was waited for before. */
  ready(stage: number): Waited | null;
  reshard(stage: number): void;
  reduce(stage: number): void;
  /** After the row: shards are in place, their gradients are those of this step. Before tied parameters are summed. */
  settle(end: StepEnd): void;
  /** Between `settle` and `finish`: whether a tied parameter has gradients of earlier steps without a sum, even if it is frozen by now. */
  owes(parameter: Tensor): boolean;
  /** After tied parameters were summed. */
  finish(end: StepEnd): void;
  /** After a failure. */
  abandon(reason: string): void;
}

/** The data parallelism of the stages of a rank; null where there is none. */
export function dataParallelOf(stages: readonly ParallelStage[]): DataParallel | null {
  for (const stage of stages) checkWrapping(stage);
  const kindOf = ({ module }: ParallelStage): string =>
    shardingOf(module) !== null
      ? 'sharded'
      : (replicationOf(module)?.group.size ?? 1) > 1
        ? 'replicated'
        : 'neither sharded nor replicated';
  const kinds = stages.map(kindOf);
  const [first] = kinds as [string];
  const odd = kinds.findIndex((kind) => kind !== first);
  if (odd >= 0) {
    const [a, b] = [stages[0], stages[odd]] as [ParallelStage, ParallelStage];
    throw new PipelineError(
      'BAD_OPTION',
      `PipelineRuntime: stage ${b.stageIndex} is ${kinds[odd]}, but stage ${a.stageIndex} of this rank is ${first}; treat all of them alike`,
      { stage: b.stageIndex },
    );
  }
  if (first === 'sharded') return new ShardedStages(stages);
  return first === 'replicated' ? new GradientReduction(stages) : null;
}

/** Refuses modules whose gradients would not be summed as their wrapping says. */
function checkWrapping({ stageIndex: stage, module }: ParallelStage): void {
  const isReplicated = (replicationOf(module)?.group.size ?? 1) > 1;
  const inside = isReplicated ? null : replicatedInside(module);
  if (inside !== null)
    throw new PipelineError(
      'BAD_OPTION',
      `PipelineRuntime: '${inside}' inside the module of stage ${stage} is replicated, but not the module itself; call replicate with the module that the stage gets`,
      { stage },
    );
  if (isReplicated && shardingOf(module) !== null)
    throw new PipelineError(
      'BAD_OPTION',
      `PipelineRuntime: the module of stage ${stage} is replicated and sharded; for replicas of shards call only fullyShard, with both dimensions: mesh.get('replicate', 'shard')`,
      { stage },
    );
}
