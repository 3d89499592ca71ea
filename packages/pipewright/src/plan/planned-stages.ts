/** @file The stages of a plan on this rank: on the mesh that the plan asks for, as replicas or shards as it says. */
import { type PipelinePlan, planSchedule } from '@pipewright/schedule';
import { checkPlan, parallelOf } from '@pipewright/schedule/internal';
import { type Device, distributed } from '@pipewright/torch';
import { checkArgument, checkOptions } from '../base/checks.ts';
import { PipelineError } from '../base/errors.ts';
import type { DeviceMesh } from '../parallel/device-mesh.ts';
import { initDeviceMesh } from '../parallel/device-mesh.ts';
import { fullyShard } from '../parallel/fully-shard.ts';
import { replicate } from '../parallel/replicate.ts';
import { Pipe } from '../pipe/pipe.ts';
import type { PipelineStage } from '../stage/pipeline-stage.ts';

/** What a rank runs of a plan. */
export interface PlannedStages {
  readonly stages: readonly PipelineStage[];
  /** The mesh of pipeline (`pp`) and data (`dp`); null where the plan has one pipeline. */
  readonly mesh: DeviceMesh | null;
  /** How many pipelines there are, and which of them this rank is in: each has its own part of a batch. */
  readonly replicas: number;
  readonly replica: number;
}

/**
 * The stages that a plan gives this rank, ready for a runtime. Where the plan has several pipelines, it makes the mesh and replicates or
 * shards the stages. All ranks call it, after `initProcessGroup` and before optimizers are made.
 *
 * @example const { stages } = planStages(pipeline(model, { mbArgs: [x], plan }), plan); new PipelineRuntime(stages, plan, { lossFn })
 */
export function planStages(
  pipe: Pipe,
  plan: PipelinePlan,
  options: { readonly device?: Device | undefined } = {},
): PlannedStages {
  checkArgument('planStages', pipe instanceof Pipe, ['the pipe', pipe], 'what pipeline(model, { plan }) returned');
  checkPlan('planStages', plan);
  checkOptions('planStages', options, ['device']);
  if (pipe.numStages !== plan.stages)
    throw new PipelineError(
      'BAD_OPTION',
      `planStages: the plan has ${plan.stages} stages, the pipe ${pipe.numStages}; cut the model with pipeline(model, { plan })`,
    );
  const { replicas, level } = parallelOf(plan);
  const { device } = options;
  const world = distributed.isInitialized() ? distributed.getWorldSize() : 1;
  if (world !== plan.ranks * replicas)
    throw new PipelineError(
      'BAD_OPTION',
      `planStages: the plan is for ${plan.ranks} x ${replicas} ranks, but there are ${world}; start ${plan.ranks * replicas} of them and call initProcessGroup() first, or plan for ${world}`,
      { ranks: plan.ranks, replicas, world },
    );
  const mesh = replicas === 1 ? null : initDeviceMesh(deviceType(device), [plan.ranks, replicas], ['pp', 'dp']);
  const rank = mesh === null ? (world === 1 ? 0 : distributed.getRank()) : mesh.getLocalRank('pp');
  const stages = planSchedule(plan)
    .stagesOf(rank)
    .map((index) => {
      const stage = pipe.buildStage(index, {
        ...(device === undefined ? {} : { device }),
        ...(mesh === null ? {} : { group: mesh.getGroup('pp') }),
      });
      if (mesh !== null) {
        if (level === 'replicate') replicate(stage.module, { mesh: mesh.get('dp') });
        else fullyShard(stage.module, { mesh: mesh.get('dp'), level, reshardAfterForward: level === 'parameters' });
      }
      return stage;
    });
  return { stages, mesh, replicas, replica: mesh?.getLocalRank('dp') ?? 0 };
}

function deviceType(device: Device | undefined): 'cpu' | 'cuda' {
  return String(device ?? 'cpu').startsWith('cuda') ? 'cuda' : 'cpu';
}
