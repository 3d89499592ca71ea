/** @file A plan tried out: some steps of it are run, and it is predicted anew from what its actions took. */
import { type PipelinePlan, planSchedule, type Recording, recordedSimulation, refitPlan } from '@pipewright/schedule';
import { checkPlan, steadySteps } from '@pipewright/schedule/internal';
import { distributed, scope, type Tensor } from '@pipewright/torch';
import { checkArgument, checkCount, checkOptions } from '../base/checks.ts';
import type { Value } from '../base/value.ts';
import { Pipe } from '../pipe/pipe.ts';
import { Recorder } from '../recording/recorder.ts';
import { PipelineRuntime } from '../runtime/runtime.ts';
import { sumOf } from './measure-units.ts';
import { usual } from './usual.ts';

/** How a plan is tried. */
export interface TryPlanOptions<Output extends Value = Tensor, Target extends Value = Tensor> {
  /** The loss of a microbatch. Default: the sum of the outputs. */
  readonly lossFn?: ((output: Output, target: Target) => Tensor) | undefined;
  /** The target of a microbatch. */
  readonly target?: Target;
  /** Steps that are run; one more comes first to warm up. Default 12. */
  readonly steps?: number | undefined;
}

/**
 * Runs some steps of a plan on the ranks of the default group, and predicts it anew from the steps of usual length. All ranks call it with
 * the arguments of one microbatch, which serve for all of them; all get the same plan.
 *
 * @example const tried = tryPlan(pipeline(program, { plan }), plan, [x], { lossFn, target }); console.log(tried.predicted.step)
 */
export function tryPlan<Output extends Value = Tensor, Target extends Value = Tensor>(
  pipe: Pipe,
  plan: PipelinePlan,
  mbArgs: readonly Value[],
  options: TryPlanOptions<Output, Target> = {},
): PipelinePlan {
  checkArgument('tryPlan', pipe instanceof Pipe, ['the pipe', pipe], 'what pipeline(model, { plan }) returns');
  checkPlan('tryPlan', plan);
  checkArgument('tryPlan', Array.isArray(mbArgs), ['mbArgs', mbArgs], 'the arguments of one microbatch: [x]');
  checkOptions('tryPlan', options, ['lossFn', 'target', 'steps']);
  const steps = checkCount('tryPlan', 'steps', options.steps ?? 12);
  const group = distributed.isInitialized() ? distributed.getDefaultGroup() : null;
  const ranks = group?.size ?? 1;
  const fits = plan.ranks === ranks;
  checkArgument('tryPlan', fits, ['plan.ranks', plan.ranks], `a plan for the ${ranks} ranks that there are`);
  const schedule = planSchedule(plan);
  const recorder = new Recorder({ steps: steps + 1 });
  const stages = schedule.stagesOf(group?.rank ?? 0).map((stage) => pipe.buildStage(stage));
  const { lossFn = (output: Output): Tensor => sumOf(output), target } = options;
  const runtime = new PipelineRuntime<readonly Value[], Target, Output>(stages, schedule, { lossFn, record: recorder });
  const argMbs = Array.from({ length: plan.microbatches }, () => mbArgs);
  const targetMbs = target === undefined ? {} : { targetMbs: argMbs.map(() => target) };
  try {
    for (let step = 0; step <= steps; step++)
      scope(() => void runtime.step({ argMbs, ...targetMbs, returnOutputs: false }));
    const recording = recorder.gather();
    const found = recording === null ? null : refitPlan(plan, usualSteps(recording));
    if (group === null) return found as PipelinePlan;
    return group.broadcastObject<distributed.Json>(found as distributed.Json, 0) as unknown as PipelinePlan;
  } finally {
    runtime.dispose();
    for (const parameter of pipe.parameters()) parameter.grad = null;
  }
}

/** The steps of usual length. */
function usualSteps(recording: Recording): Recording {
  const steady = steadySteps(recording);
  const first = recording.steps.length - steady.length;
  const kept = usual(steady.map((_, i) => recordedSimulation(recording, first + i).makespan));
  return { ...recording, steps: steady.filter((_, i) => kept.includes(i)) };
}
