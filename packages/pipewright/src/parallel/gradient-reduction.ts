/**
 * @file The gradients of a rank's stages, summed over replicas. A stage's reduction begins where REDUCE_GRAD stands in the row
 * and runs under the computing that follows; the end of the step waits for it.
 */

import { type distributed, noGrad, scope, type Tensor, unscoped } from '@pipewright/torch';
import { PipelineError } from '../base/errors.ts';
import { addWaits, beginWait, type Waited } from '../base/waited.ts';
import { type Bucket, bucketsOf, type PackedBucket, pack, unpack } from './buckets.ts';
import type { DataParallel, ParallelStage, Readiness, StepEnd } from './data-parallel.ts';
import { isDue, oweLearned, settleOwed } from './owed.ts';
import { agreeOver } from './readiness.ts';
import { compareReplicas, equalize, equalizeBuffers, type Replication, replicationOf } from './replicate.ts';
import { SharedParameters } from './shared-parameters.ts';
import type { StageParameters } from './step-kind.ts';

/** A bucket that is being reduced. */
interface Reduction extends PackedBucket {
  readonly stage: number;
  readonly work: distributed.Work;
}

/** Parameters whose gradient is already the sum over all replicas, whichever runtime has summed it. */
const reduced = new WeakSet<Tensor>();
/** Such gradients, put aside while others are summed. */
const aside = new WeakMap<Tensor, Tensor>();

/** The stages of one rank whose modules are replicated. */
export class GradientReduction implements DataParallel {
  private readonly replications: ReadonlyMap<number, { stage: ParallelStage; replication: Replication }>;
  /** Parameters that other stages hold too: reduced at the end, when they have been summed over those. */
  private tied: ReadonlySet<Tensor> = new Set();
  private readonly buckets = new Map<number, { due: readonly Tensor[]; buckets: readonly Bucket[] }>();
  private readonly underWay: Reduction[] = [];
  /** Parameters that had the same values on all replicas before the first step. */
  private readonly equalized = new WeakSet<Tensor>();
  /** Reductions that were begun, by stage; for tests and reports. */
  readonly counts: Map<number, number> = new Map();
  readonly shardGroup = null;
  readonly lateReductions: Map<number, Waited> = new Map();
  /** Frozen parameters that replicas on threads share (`shareFrozen`). */
  readonly frozen: SharedParameters = new SharedParameters();

  constructor(stages: readonly ParallelStage[]) {
    this.replications = new Map(
      stages.map((stage) => [stage.stageIndex, { stage, replication: replicationOf(stage.module)! }]),
    );
  }

  sharding(): null {
    return null;
  }

  /** Before the first step: all replicas begin equal. */
  prepare(tied: ReadonlySet<Tensor>): void {
    this.tied = tied;
    for (const { stage, replication } of this.replications.values()) {
      compareReplicas(stage.module, replication);
      equalize(stage.module, replication);
      for (const parameter of stage.module.parameters()) this.equalized.add(parameter);
      if (replication.shareFrozen) this.frozen.share(stage.module, replication.group);
    }
  }

  checkLearned(own: readonly StageParameters[]): void {
    const isNew = (parameter: Tensor): boolean => !this.equalized.has(parameter) && parameter.requiresGrad;
    for (const { stageIndex: stage, module, parameters } of own) {
      if (!parameters.some(isNew)) continue;
      const [name] = module.namedParameters().find(([, parameter]) => isNew(parameter))!;
      throw new PipelineError(
        'BAD_INPUT',
        `step: the parameter '${name}' of stage ${stage} is learned, but was put there after the first step, and replicas would begin with different values of it; replace parameters before the first step, or make a new PipelineRuntime`,
        { stage, parameter: name },
      );
    }
  }

  get groups(): readonly distributed.ProcessGroup[] {
    return [...new Set([...this.replications.values()].map(({ replication }) => replication.group))];
  }

  agree(ready: Readiness, training: boolean): Readiness {
    return training ? agreeOver(this.groups, ready) : ready;
  }

  setAside(): void {
    this.frozen.separate();
    // Gradients that were cleared since then: the ones put aside are cleared too.
    for (const [parameter, before] of this.putAside())
      if (parameter.grad === null) {
        aside.delete(parameter);
        before.dispose();
      }
    for (const { stage, replication } of this.replications.values()) {
      if (replication.broadcastBuffers) equalizeBuffers(stage.module, replication);
      for (const parameter of stage.module.parameters()) {
        if (!reduced.has(parameter)) continue;
        reduced.delete(parameter);
        const before = unscoped(() => parameter.grad);
        if (before === null) continue;
        aside.set(parameter, before);
        parameter.grad = null;
      }
    }
  }

  /**
   * Adds the sums of earlier steps to the gradients again, unless a parameter has gradients of this replica alone: then they stay
   * aside.
   */
  private takeBack(): void {
    for (const [parameter, before] of this.putAside()) {
      const { grad } = parameter;
      if (grad !== null && !reduced.has(parameter)) continue;
      parameter.grad = grad === null ? before : grad.add(before);
      before.dispose();
      reduced.add(parameter);
      aside.delete(parameter);
    }
  }

  /** The gradients of this rank's parameters that are aside. */
  private putAside(): (readonly [Tensor, Tensor])[] {
    const own = new Set<Tensor>([...this.replications.values()].flatMap(({ stage }) => stage.module.parameters()));
    return [...own].flatMap((parameter) => {
      const before = aside.get(parameter);
      return before === undefined ? [] : [[parameter, before] as const];
    });
  }

  begin(): void {}

  unshard(): void {}

  ready(): null {
    return null;
  }

  reshard(): void {}

  settle(): void {}

  /** Ties are summed over stages in every step, summed over replicas or not. */
  owes(): boolean {
    return false;
  }

  /** Begins the reduction of a stage. */
  reduce(stageIndex: number): void {
    const found = this.replications.get(stageIndex);
    if (found === undefined) return;
    this.counts.set(stageIndex, (this.counts.get(stageIndex) ?? 0) + 1);
    for (const bucket of this.bucketsOf(stageIndex)) this.start(bucket, stageIndex, found.replication.group);
  }

  /** The end of a step: reduces parameters held by several stages, and waits for all reductions. */
  finish({ training, sync, refused }: StepEnd): void {
    // An evaluation has put nothing aside: what is aside since an unsummed step may be cleared by now.
    if (!training) return;
    for (const { stage, replication } of this.replications.values()) {
      const parameters = new Set<Tensor>(stage.module.parameters());
      if (sync) this.reduceTied(stage, replication, parameters);
      else if (!refused) oweLearned(parameters, replication.group);
    }
    noGrad(() =>
      scope(() => {
        this.lateReductions.clear();
        for (const { stage, work, ...packed } of this.underWay.splice(0)) {
          const ended = beginWait();
          work.wait();
          unpack(packed);
          packed.packed.dispose();
          for (const parameter of packed.bucket.parameters) reduced.add(parameter);
          settleOwed(packed.bucket.parameters);
          this.lateReductions.set(stage, addWaits(this.lateReductions.get(stage), ended()));
        }
        this.takeBack();
      }),
    );
  }

  /** Parameters held by several stages are complete only after the row. */
  private reduceTied({ stageIndex }: ParallelStage, replication: Replication, parameters: Iterable<Tensor>): void {
    const { group, bucketBytes } = replication;
    const own = [...parameters].filter((parameter) => this.tied.has(parameter) && isDue(parameter, group));
    for (const bucket of bucketsOf(own, bucketBytes)) this.start(bucket, stageIndex, group);
  }

  /** After a failure: restores the gradients of earlier steps, and aborts the groups so that replicas stop waiting. */
  abandon(reason: string): void {
    for (const { packed } of this.underWay.splice(0)) packed.dispose();
    for (const [parameter, before] of this.putAside()) {
      parameter.grad = before;
      aside.delete(parameter);
      before.dispose();
      reduced.add(parameter);
    }
    for (const group of this.groups) group.abort(reason);
  }

  /** The buckets of a stage, for parameters that are trainable now or were since the last sum. */
  private bucketsOf(stageIndex: number): readonly Bucket[] {
    const { stage, replication } = this.replications.get(stageIndex) as {
      stage: ParallelStage;
      replication: Replication;
    };
    const due = stage.module
      .parameters()
      .filter((parameter) => isDue(parameter, replication.group) && !this.tied.has(parameter));
    const known = this.buckets.get(stageIndex);
    if (known?.due.length === due.length && due.every((parameter, i) => parameter === known.due[i]))
      return known.buckets;
    const buckets = bucketsOf(due, replication.bucketBytes);
    this.buckets.set(stageIndex, { due, buckets });
    return buckets;
  }

  private start(bucket: Bucket, stage: number, group: distributed.ProcessGroup): void {
    noGrad(() =>
      scope(() => {
        const packed = pack(bucket);
        this.underWay.push({ ...packed, stage, work: group.allReduce(packed.packed, { asyncOp: true }) });
      }),
    );
  }
}
