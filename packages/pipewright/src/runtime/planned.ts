/** @file Checks that stages are what a plan says: the number of replicas, and the sharding level. */
import { isPlan, type PipelinePlan } from '@pipewright/schedule';
import { PipelineError } from '../base/errors.ts';
import type { DataParallel, ParallelStage } from '../parallel/data-parallel.ts';

/** The data parallelism of the stages; where a plan is run, refuses stages that are replicated or sharded otherwise than it says. */
export function checkPlanned(
  schedule: unknown,
  parallel: DataParallel | null,
  stages: readonly ParallelStage[],
): DataParallel | null {
  const wanted = wantedBy(schedule);
  if (wanted === null) return parallel;
  const sharding = parallel?.sharding(stages[0]!.stageIndex) ?? null;
  const replicas = sharding === null ? (parallel?.groups[0]?.size ?? 1) : sharding.shards * sharding.replicas;
  const level = sharding?.level ?? 'replicate';
  if (replicas === wanted.replicas && level === wanted.level) return parallel;
  const is = (count: number, kind: string): string =>
    count === 1 ? 'one pipeline' : kind === 'replicate' ? `${count} replicas` : `${count} shards of ${kind}`;
  throw new PipelineError(
    'BAD_OPTION',
    `PipelineRuntime: the plan has ${is(wanted.replicas, wanted.level)}, the stages ${is(replicas, level)}; build them with planStages(pipe, plan), or plan with --dp ${replicas}`,
    { wanted, replicas, level },
  );
}

/** What a recorder must know of a rank: whether there are replicas or shards, and whether it belongs to the first replica. */
export function placeOf(parallel: DataParallel | null): { readonly isParallel: boolean; readonly isFollowed: boolean } {
  const isFollowed = parallel?.groups.every(({ rank }) => rank === 0) ?? true;
  return { isParallel: parallel !== null, isFollowed };
}

/** What to do where a plan is run on a group of another size. */
export function meshHint(schedule: unknown): string {
  const wanted = wantedBy(schedule);
  return wanted === null
    ? ''
    : `; the plan has ${wanted.replicas} pipelines beside each other: build the stages with planStages(pipe, plan)`;
}

function wantedBy(schedule: unknown): NonNullable<PipelinePlan['dataParallel']> | null {
  const wanted = isPlan(schedule) ? schedule.dataParallel : undefined;
  return wanted === undefined || wanted.replicas === 1 ? null : wanted;
}
