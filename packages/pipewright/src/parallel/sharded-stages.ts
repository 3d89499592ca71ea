/**
 * @file The sharded stages of a rank during a step: gathered where UNSHARD stands in the row, freed at RESHARD, their gradients
 * summed at REDUCE_GRAD. Where only gradients or optimizer states are sharded, a step begins by gathering what optimizers have
 * changed.
 */
import type { distributed, Tensor } from '@pipewright/torch';
import { PipelineError } from '../base/errors.ts';
import { addWaits, beginWait, type Waited } from '../base/waited.ts';
import type { DataParallel, ParallelStage, Readiness, StageSharding, StepEnd } from './data-parallel.ts';
import { shardingOf, unitsOf, unshardedName } from './fully-shard.ts';
import { isOwed } from './owed.ts';
import { agreeOver } from './readiness.ts';
import type { ShardUnit } from './shard-unit.ts';
import type { StageParameters } from './step-kind.ts';
import type { UnitReduction } from './unit-reduction.ts';
import type { UnitSettings } from './unit-settings.ts';

/** The gradients of a unit on their way. */
interface Reduction {
  readonly stage: number;
  readonly unit: ShardUnit;
  readonly reduction: UnitReduction;
}

/** The sharded stages of one rank. */
export class ShardedStages implements DataParallel {
  readonly counts: Map<number, number> = new Map();
  /** Gatherings that were begun, by stage. */
  readonly gathers: Map<number, number> = new Map();
  private readonly units: ReadonlyMap<number, readonly ShardUnit[]>;
  private readonly settings: UnitSettings;
  /** How many stages a unit belongs to: more than one where they have a parameter in common. */
  private readonly owners = new Map<ShardUnit, number>();
  /** How many of them have asked for its reduction in this step. */
  private readonly asked = new Map<ShardUnit, number>();
  private readonly underWay: Reduction[] = [];
  /** Units whose gradients were summed in this step. */
  private readonly summed: ShardUnit[] = [];
  readonly lateReductions: Map<number, Waited> = new Map();
  /** Stages whose gathering was begun and not waited for. */
  private readonly pending = new Set<number>();
  private readonly unsharded = new Set<number>();
  private peak = 0;
  /** When the gathering of a stage was begun. */
  private readonly begun = new Map<number, number>();
  /** When the first reduction of a step was begun. */
  private reducing = 0;
  /** Milliseconds of collectives from their beginning to their end, and of those the ones that were waited for. */
  readonly times = { gathered: 0, waitedForGathers: 0, reduced: 0, waitedForReductions: 0 };

  constructor(stages: readonly ParallelStage[]) {
    this.units = new Map(stages.map(({ stageIndex, module }) => [stageIndex, unitsOf(module)]));
    for (const list of this.units.values())
      for (const unit of list) this.owners.set(unit, (this.owners.get(unit) ?? 0) + 1);
    const [first] = stages as readonly [ParallelStage];
    this.settings = shardingOf(first.module)!;
    for (const { stageIndex, module } of stages) {
      const of = `stage ${stageIndex}`;
      this.checkAlike(of, shardingOf(module)!);
      for (const unit of this.unitsOf(stageIndex)) this.checkAlike(`${String(unit)} of ${of}`, unit.settings);
    }
    this.note();
  }

  /** Bytes of parameters on this rank now: shards, and wholes that have memory. */
  get parameterBytes(): number {
    let sum = 0;
    for (const unit of this.owners.keys()) sum += unit.shardBytes + (unit.hasWhole ? unit.wholeBytes : 0);
    return sum;
  }

  /** The most they were. */
  get parameterPeak(): number {
    return this.peak;
  }

  get shardGroup(): distributed.ProcessGroup | null {
    const { group } = this.settings;
    return group.size > 1 ? group : null;
  }

  sharding(stage: number): StageSharding {
    const { level, group, replicas } = this.settings;
    const units = this.units.get(stage)!;
    return {
      level,
      bytes: units.reduce((sum, unit) => sum + unit.wholeBytes, 0),
      shards: group.size,
      replicas: replicas?.size ?? 1,
      leaves: units.some(({ settings }) => settings.reshardAfterForward),
    };
  }

  prepare(): void {}

  checkLearned(own: readonly StageParameters[]): void {
    for (const unit of this.owners.keys()) unit.check();
    if (this.groups.length === 0) return;
    for (const { stageIndex: stage, module, parameters } of own) {
      const name = unshardedName(module, parameters);
      if (name !== null)
        throw new PipelineError(
          'BAD_INPUT',
          `step: the parameter '${name}' of stage ${stage} is learned, but not sharded, and its gradients would not be summed: it is outside of what fullyShard was called with, or was put there or unfrozen later; call fullyShard with the whole module, or give it in ignoredParams`,
          { stage, parameter: name },
        );
    }
  }

  get groups(): readonly distributed.ProcessGroup[] {
    const { group, replicas } = this.settings;
    return [group, ...(replicas === null ? [] : [replicas])].filter(({ size }) => size > 1);
  }

  agree(ready: Readiness): Readiness {
    return agreeOver(this.groups, ready);
  }

  setAside(): void {}

  begin(): void {
    this.asked.clear();
    if (this.settings.level !== 'parameters') for (const stage of this.units.keys()) this.unshard(stage);
  }

  unshard(stage: number): void {
    this.gathers.set(stage, (this.gathers.get(stage) ?? 0) + 1);
    this.pending.add(stage);
    this.unsharded.add(stage);
    this.begun.set(stage, performance.now());
    for (const unit of this.unitsOf(stage)) this.attempt('UNSHARD', stage, unit, () => unit.gather());
    this.note();
  }

  ready(stage: number): Waited | null {
    if (!this.pending.delete(stage)) return null;
    const ended = beginWait();
    for (const unit of this.unitsOf(stage)) this.attempt('UNSHARD', stage, unit, () => unit.wait());
    const waited = ended();
    const end = performance.now();
    this.times.gathered += end - (this.begun.get(stage) ?? end);
    this.times.waitedForGathers += waited.time;
    return waited;
  }

  reshard(stage: number): void {
    this.pending.delete(stage);
    this.unsharded.delete(stage);
    for (const unit of this.unitsOf(stage)) this.attempt('RESHARD', stage, unit, () => unit.release());
  }

  reduce(stage: number): void {
    this.counts.set(stage, (this.counts.get(stage) ?? 0) + 1);
    if (this.underWay.length === 0) this.reducing = performance.now();
    // What has arrived meanwhile takes less room afterwards.
    for (const { reduction } of this.underWay) {
      if (!reduction.isReady) break;
      reduction.advance();
    }
    for (const unit of this.unitsOf(stage)) {
      const asked = (this.asked.get(unit) ?? 0) + 1;
      this.asked.set(unit, asked);
      if (asked < this.owners.get(unit)!) continue;
      const begun = this.attempt('REDUCE_GRAD', stage, unit, () => unit.reduce());
      if (begun !== null) this.underWay.push({ stage, unit, reduction: begun });
    }
  }

  settle({ sync }: StepEnd): void {
    for (const stage of [...this.unsharded]) this.reshard(stage);
    const reductions = this.underWay.splice(0);
    const start = performance.now();
    this.lateReductions.clear();
    for (const part of ['advance', 'finish'] as const)
      for (const { stage, reduction } of reductions) {
        const ended = beginWait();
        reduction[part]();
        this.lateReductions.set(stage, addWaits(this.lateReductions.get(stage), ended()));
      }
    this.summed.push(...reductions.map(({ unit }) => unit));
    if (reductions.length > 0) {
      this.times.reduced += performance.now() - this.reducing;
      this.times.waitedForReductions += performance.now() - start;
    }
    // Nothing else has told this rank that the others are through with what they read.
    if (!sync) for (const unit of this.owners.keys()) unit.settleShared();
  }

  owes(parameter: Tensor): boolean {
    return isOwed(parameter, this.settings.group);
  }

  finish({ training, sync, refused }: StepEnd): void {
    for (const unit of this.summed.splice(0)) unit.settleOwed();
    if (training && !sync && !refused) for (const unit of this.owners.keys()) unit.owe();
  }

  abandon(reason: string): void {
    this.underWay.length = 0;
    this.summed.length = 0;
    this.pending.clear();
    this.unsharded.clear();
    for (const unit of this.owners.keys()) {
      unit.restore();
      unit.forget();
    }
    for (const group of this.groups) group.abort(reason);
  }

  /** Refuses a stage, or a part of one, that is sharded otherwise than the first stage of the rank. */
  private checkAlike(what: string, given: UnitSettings): void {
    const { group, replicas, level } = this.settings;
    if (given.level === level && given.group === group && given.replicas === replicas) return;
    throw new PipelineError(
      'BAD_OPTION',
      `PipelineRuntime: ${what} is sharded at level '${given.level}' over ${given.group.size} ranks, the first stage of this rank at level '${level}' over ${group.size}; shard all of a rank's stages alike`,
    );
  }

  private unitsOf(stage: number): readonly ShardUnit[] {
    return this.units.get(stage) ?? [];
  }

  private note(): void {
    this.peak = Math.max(this.peak, this.parameterBytes);
  }

  private attempt<T>(what: string, stage: number, unit: ShardUnit, work: () => T): T {
    try {
      return work();
    } catch (cause) {
      const { group } = this.settings;
      throw new PipelineError(
        'COLLECTIVE_FAILED',
        `${what} of stage ${stage} (${String(unit)}) on rank ${group.rank} of ${group.size}: ${cause instanceof Error ? cause.message : String(cause)}`,
        { stage, parameter: unit.toString(), rank: group.rank },
        { cause },
      );
    }
  }
}
