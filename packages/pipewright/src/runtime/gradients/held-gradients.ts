/** @file Which parameters of a rank have gradients when a step begins, so that a failed step can be undone. */
import { scope, type Tensor } from '@pipewright/torch';
import type { PipelineStage } from '../../stage/pipeline-stage.ts';

/** What a rank finds when a step begins: gradients; none, although it has trainable parameters; or nothing to train. */
export type FoundGradients = 'held' | 'cleared' | 'nothing';

/** The gradients of a rank's stages. */
export class HeldGradients {
  private readonly stages: readonly PipelineStage[];
  /** Collected in the first step: walking through all modules in every step would cost more than the rest of this class. */
  private known: readonly Tensor[] | null = null;
  private without: readonly Tensor[] = [];

  constructor(stages: readonly PipelineStage[]) {
    this.stages = stages;
  }

  /** Which gradients are there now. */
  find(): FoundGradients {
    if (scope(() => this.parameters.some(({ grad }) => grad !== null))) return 'held';
    return this.isLearning() ? 'cleared' : 'nothing';
  }

  /** Whether any parameter is trainable. */
  isLearning(): boolean {
    return this.parameters.some(({ requiresGrad }) => requiresGrad);
  }

  /** A step begins: remembers which parameters have no gradient. */
  begin(): void {
    this.without = this.empty();
  }

  /** The step has succeeded: its gradients stay. */
  end(): void {
    this.without = [];
  }

  /** The step has failed: removes the gradients that it has made. Those that it was added to keep what was added. */
  undo(): void {
    for (const parameter of this.without) parameter.grad = null;
    this.end();
  }

  private get parameters(): readonly Tensor[] {
    this.known ??= [...new Set<Tensor>(this.stages.flatMap(({ module }) => module.parameters()))];
    return this.known;
  }

  private empty(): readonly Tensor[] {
    return scope(() => this.parameters.filter(({ grad }) => grad === null));
  }
}
