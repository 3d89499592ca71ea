/** @file A plan as something that runs: its order, its costs, its simulated step. */

import type { Costs } from '../costs/costs.ts';
import { buildSchedule } from '../generate/build-schedule.ts';
import { ScheduleError } from '../model/errors.ts';
import { Schedule } from '../model/schedule.ts';
import { simulate } from '../simulate/simulate.ts';
import type { Simulation } from '../simulate/simulation.ts';
import { checkUnpredicted, type PipelinePlan, type PlanMachine, type PlanParallel, type StageCosts } from './plan.ts';
import { type PipelineMachine, parallelOf, pipelineMachine, stateOf, withCollectives } from './plan-parallel.ts';

/**
 * The order that a plan's ranks run, without collectives: these are put in where it is run or simulated.
 * @example new PipelineRuntime(stages, planSchedule(plan), { lossFn })
 */
export function planSchedule(plan: PipelinePlan): Schedule {
  checkUnpredicted('planSchedule', plan);
  const { schedule: name, order, ranks, stages, microbatches } = plan;
  const schedule =
    order === undefined ? buildSchedule(name, { ranks, stages, microbatches }) : Schedule.fromJSON(order);
  const fits = schedule.ranks === ranks && schedule.stages === stages && schedule.microbatches === microbatches;
  if (!fits)
    throw new ScheduleError(
      'BAD_PLAN',
      `planSchedule: the order is for ${schedule.ranks} ranks, ${schedule.stages} stages and ${schedule.microbatches} microbatches, the plan says ${ranks}, ${stages} and ${microbatches}`,
    );
  return schedule;
}

/** What the costs of stages are made of. */
export interface CostSource {
  readonly stages: readonly StageCosts[];
  readonly stageToRank: readonly number[];
  readonly machine: PlanMachine;
  readonly stateFactor: number;
  /** Copies of the pipeline; default: one. */
  readonly parallel?: PlanParallel | undefined;
}

/** The costs of stages as the simulator takes them, on the ranks that hold them. */
export function stageCosts({ stages, stageToRank, machine, stateFactor, parallel }: CostSource): Costs {
  const beside = parallelOf({ dataParallel: parallel });
  const ranks = stageToRank.reduce((most, rank) => Math.max(most, rank + 1), 1);
  const seen = pipelineMachine(machine, ranks, beside.replicas);
  const { slowness, bandwidth, latency, links } = seen;
  const slow = (stage: number): number => slowness?.[stageToRank[stage]!] ?? 1;
  const time = (of: (costs: StageCosts) => number): number[] => stages.map((costs, stage) => of(costs) * slow(stage));
  return {
    F: time(({ F }) => F),
    I: time(({ I }) => I),
    W: time(({ W }) => W),
    ...(stages.some(({ B }) => B !== undefined) ? { B: time(fullBackward) } : {}),
    ...(stages.some(({ inputGradient }) => inputGradient !== undefined)
      ? { inputGradient: time((costs) => Math.min(costs.inputGradient ?? fullBackward(costs), fullBackward(costs))) }
      : {}),
    overlap: 'parts',
    activation: stages.map(({ activation }) => activation),
    retained: stages.map(({ activation, retained }) => (activation === 0 ? 0 : Math.min(1, retained / activation))),
    // One byte in `stateFactor` is the gradient's, which is there from the first backward on.
    parameters: stages.map((stage) => stateOf(stage, stateFactor, beside).simulated),
    weightGradient: stages.map(({ parameters }) => (stateFactor >= 1 ? parameters : 0)),
    ...(beside.replicas === 1 ? {} : sharedCosts(stages, seen, beside)),
    comm: {
      bytes: stages.map((_, stage) => stages[stage + 1]?.input ?? 0),
      ...(bandwidth === undefined ? {} : { bandwidth }),
      ...(latency === undefined ? {} : { latency }),
      ...(links === undefined ? {} : { links: [...links] }),
    },
  };
}

function fullBackward({ B, I, W }: StageCosts): number {
  return B ?? I + W;
}

/** What the copies of a pipeline share, and how they sum gradients and gather parameters. */
function sharedCosts(
  stages: readonly StageCosts[],
  { collective }: PipelineMachine,
  { replicas, level }: PlanParallel,
): Costs {
  const bytes = stages.map(({ parameters }) => parameters);
  return {
    ...(level === 'replicate' ? { replicas } : { shards: replicas, sharding: level }),
    collective: { ...collective, parameterBytes: bytes, gradientBytes: bytes },
  };
}

/** The costs of a plan's stages. @example simulate(buildSchedule('GPipe', shape), planCosts(plan)).makespan // in seconds */
export function planCosts(plan: PipelinePlan): Costs {
  checkUnpredicted('planCosts', plan);
  const { costs: stages, stageToRank, machine, stateFactor, dataParallel: parallel } = plan;
  return stageCosts({ stages, stageToRank, machine, stateFactor, parallel });
}

/** The step of a plan, simulated: for pictures. @example renderSvg(planSimulation(plan)) */
export function planSimulation(plan: PipelinePlan): Simulation {
  checkUnpredicted('planSimulation', plan);
  return simulate(withCollectives(planSchedule(plan), plan.costs, parallelOf(plan)), planCosts(plan));
}
