/** @file The schedule as one rank runs it: agreed on with the other ranks, lowered, and compiled into the rows that steps walk. */
import type { Action, Schedule } from '@pipewright/schedule';
import type { distributed } from '@pipewright/torch';
import type { DataParallel } from '../../parallel/data-parallel.ts';
import type { PipelineStage } from '../../stage/pipeline-stage.ts';
import { rankStatus } from '../../status/rank-status.ts';
import { agree } from '../agreement.ts';
import { customExecutor } from '../custom.ts';
import { builtInExecutors } from '../executors.ts';
import { tiedCopies } from '../gradients/ties.ts';
import { lowerFor, type ParallelDescription } from '../lowering.ts';
import { type AnyRuntime, type AnyRuntimeOptions, type CustomFunction, deviceOf } from '../options.ts';
import type { Overlap } from '../overlap/overlap.ts';
import type { Transport } from '../transport/transport.ts';
import { Plan } from './plan.ts';
import type { Executors, PlannedAction } from './planned-action.ts';

/** A schedule on one rank of its group. */
export class RankSchedule {
  /** The lowered order of all ranks. */
  readonly lowered: Schedule;
  /** All stages, as their ranks describe them. */
  readonly descriptions: readonly ParallelDescription[];
  /** Number of actions of this rank, parts of overlapped ones counted too. */
  readonly actionCount: number;
  /** Where the stages of this rank compute. */
  readonly device: string;
  private readonly plan: Plan;
  private readonly options: AnyRuntimeOptions;
  private readonly parallel: DataParallel | null;
  private readonly unshards: boolean;

  /** Compares the schedule and the stages with those of the other ranks, which do so too. */
  constructor(given: Schedule, { group, stages, options, parallel, transport }: RankParts) {
    if (group !== null) rankStatus.set({ action: 'comparing schedules and stages', waitingFor: 'all' });
    const tied = tiedCopies(stages);
    this.descriptions = agree(
      group,
      given,
      stages.map(
        (stage, i): ParallelDescription => ({
          ...stage.describe(),
          sharding: parallel?.sharding(stage.stageIndex) ?? null,
          pipelines: (parallel?.groups ?? []).reduce((product, { size }) => product * size, 1),
          tied: tied[i]!,
          learns: options.lossFn !== undefined,
        }),
      ),
      transport?.way,
    );
    rankStatus.set({ action: 'preparing the first step' });
    this.lowered = lowerFor(given, this.descriptions, options);
    this.plan = new Plan(this.lowered, group?.rank ?? 0, stages, this.descriptions);
    this.actionCount = this.plan.count;
    this.device = deviceOf(stages);
    this.options = options;
    this.parallel = parallel;
    this.unshards = parallel?.sharding(stages[0]!.stageIndex)?.level === 'parameters';
  }

  /** The rows of this rank, with what performs their actions now. */
  rows({ runtime, overlap, customFunctions, hasHooks }: Performers): RankRows {
    const builtIn = builtInExecutors(overlap, this.parallel, this.unshards);
    const custom = [...customFunctions].map(([kind, f]) => [kind, customExecutor(runtime, f, builtIn[kind])]);
    const executors: Executors = { ...builtIn, ...Object.fromEntries(custom) };
    // Hooks and custom functions see whole backwards.
    const earlyGradients =
      (this.options.earlyGradients ?? this.device === 'cpu') && !hasHooks && !customFunctions.has('B');
    const options = { executors, earlyGradients };
    return { training: this.plan.trainingRow(options), forward: this.plan.forwardRow(options) };
  }
}

/** Who runs a schedule, and how. */
interface RankParts {
  /** Null where one rank is alone. */
  readonly group: distributed.ProcessGroup | null;
  /** The stages of this rank. */
  readonly stages: readonly PipelineStage[];
  readonly options: AnyRuntimeOptions;
  readonly parallel: DataParallel | null;
  readonly transport: Pick<Transport, 'way'> | null;
}

/** What performs the actions of a row. */
interface Performers {
  readonly runtime: AnyRuntime;
  readonly overlap: Overlap;
  readonly customFunctions: ReadonlyMap<Action['kind'], CustomFunction>;
  readonly hasHooks: boolean;
}

/** What steps and evaluations walk. */
export interface RankRows {
  readonly training: readonly PlannedAction[];
  readonly forward: readonly PlannedAction[];
}
