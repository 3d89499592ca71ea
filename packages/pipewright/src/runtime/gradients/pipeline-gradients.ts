/** @file The gradients of a rank between its steps: clipped over all ranks, applied by optimizers, and whether the losses that made them were finite. */
import type { distributed, nn, Tensor } from '@pipewright/torch';
import type { DataParallel } from '../../parallel/data-parallel.ts';
import { shardOf } from '../../parallel/shard.ts';
import type { PipelineStage } from '../../stage/pipeline-stage.ts';
import type { StepResult } from '../capture.ts';
import type { AnyRuntimeOptions } from '../options.ts';
import { type ClipOptions, clipGradNorm, clippingText, type RankGradients } from './grad-norm.ts';
import { type FoundGradients, HeldGradients } from './held-gradients.ts';
import {
  type AnyOptimizer,
  LossLog,
  type OptimizerStep,
  type OptimizerStepOptions,
  stepOptimizers,
} from './optimizer-step.ts';
import type { Ties } from './ties.ts';

/** The rank whose gradients these are. */
interface GradientOwner {
  readonly stages: readonly PipelineStage[];
  readonly group: distributed.ProcessGroup | null;
  readonly parallel: DataParallel | null;
  readonly scaler: AnyRuntimeOptions['scaler'];
}

/** The gradients of a rank's stages, from training steps to the steps of optimizers. */
export class PipelineGradients {
  readonly held: HeldGradients;
  /** How gradients were clipped since the last training step. */
  readonly clips: string[] = [];
  /** Number of optimizer steps that were skipped. */
  skipped = 0;
  private readonly owner: GradientOwner;
  /** Losses since the last step of an optimizer, or since gradients were cleared. */
  private readonly losses = new LossLog();
  /** Whether shards have gradients that are not summed yet: `grad` does not show them. */
  private isUnsummed = false;

  constructor(owner: GradientOwner) {
    this.owner = owner;
    this.held = new HeldGradients(owner.stages);
  }

  /** Clips the norm over all ranks; returns the norm before. */
  clipNorm(ties: Ties | null, maxNorm: number, options: ClipOptions | undefined): number {
    const norm = clipGradNorm(this.ofRank(ties), maxNorm, options);
    if (maxNorm < Number.POSITIVE_INFINITY)
      this.clips.push(clippingText({ where: 'clipGradNorm_', maxNorm, normType: options?.normType }));
    return norm;
  }

  /** Makes the steps of optimizers on all ranks, or on none. */
  stepOptimizers(
    ties: Ties | null,
    optimizers: AnyOptimizer | readonly AnyOptimizer[],
    options: OptimizerStepOptions | undefined,
  ): OptimizerStep {
    const { group, parallel, scaler } = this.owner;
    const gradients = this.ofRank(ties);
    const groups = [...(parallel?.groups ?? []), ...(group === null ? [] : [group])];
    const result = stepOptimizers({ gradients, groups, losses: this.losses, scaler }, optimizers, options);
    if (result.skipped) this.skipped++;
    return result;
  }

  /** A training step begins. */
  beginStep(): void {
    this.losses.begin(this.found());
  }

  /** A training step has ended; `isSummed` says whether its gradients are summed over replicas and shards. */
  endStep({ losses, lossValues }: Pick<StepResult, 'losses' | 'lossValues'>, isSummed: boolean): void {
    this.losses.add(losses, lossValues);
    this.isUnsummed = !isSummed && (this.isUnsummed || this.held.isLearning());
  }

  dispose(): void {
    this.losses.dispose();
  }

  /** Which gradients a training step finds: earlier losses do not count any more if their gradients were cleared. */
  private found(): FoundGradients {
    const { group, parallel } = this.owner;
    const isAlone = group === null && parallel === null;
    if (this.isUnsummed || (isAlone && !this.losses.mayBeNotFinite)) return 'held';
    return this.held.find();
  }

  private ofRank(ties: Ties | null): RankGradients {
    const { stages, group, parallel } = this.owner;
    return {
      parameters: [...new Set<Tensor>(stages.flatMap((stage) => stage.module.parameters()))],
      duplicates: ties?.duplicates() ?? new Set(),
      isSharded: (parameter) => shardOf(parameter as nn.Parameter) !== null,
      shards: parallel?.shardGroup ?? null,
      group,
    };
  }
}
