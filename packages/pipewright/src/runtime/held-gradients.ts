/** @file Which parameters of a rank have gradients when a step begins: what of it is new is known when it fails. */
import { scope, type Tensor } from '@pipewright/torch';
import type { PipelineStage } from '../stage/pipeline-stage.ts';

/** What a rank finds when a step begins: gradients, none though something is learned, or none and nothing that is learned. */
export type FoundGradients = 'held' | 'cleared' | 'nothing';

/** The gradients of a rank's stages, as far as they are there. */
export class HeldGradients {
  private readonly stages: readonly PipelineStage[];
  /** Known since the first step: to walk through all modules in every step would cost more than all the rest. */
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

  /** Whether something is learned here. */
  isLearning(): boolean {
    return this.parameters.some(({ requiresGrad }) => requiresGrad);
  }

  /** A step begins. */
  begin(): void {
    this.without = this.empty();
  }

  /** The step has ended well: all that it has added stays. */
  end(): void {
    this.without = [];
  }

  /** The step has failed: what had no gradient has none. Gradients that the step was to be added to have parts of it. */
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
