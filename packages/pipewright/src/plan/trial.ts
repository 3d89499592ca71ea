/** @file Plans tried out: some steps of each are run, in turns, and what these took is what is predicted. */
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

/** A plan that is tried, and what with. */
export interface PlanTrial<Target extends Value = Tensor> {
  /** What `pipeline(program, { plan })` returned. */
  readonly pipe: Pipe;
  readonly plan: PipelinePlan;
  /** The arguments of one microbatch, which serve for all of them. */
  readonly mbArgs: readonly Value[];
  /** The target of a microbatch. */
  readonly target?: Target | undefined;
}

/** How plans are tried. */
export interface TryPlansOptions<Output extends Value = Tensor, Target extends Value = Tensor> {
  /** The loss of a microbatch. Default: the sum of the outputs. */
  readonly lossFn?: ((output: Output, target: Target) => Tensor) | undefined;
  /** Steps that are run of each, at most; one more comes first to warm up, and plans that are nearly as fast as the best run more. Default: 12 to 48, for some seconds. */
  readonly steps?: number | undefined;
}

/** How one plan is tried. */
export interface TryPlanOptions<Output extends Value = Tensor, Target extends Value = Tensor>
  extends TryPlansOptions<Output, Target> {
  /** The target of a microbatch. */
  readonly target?: Target;
}

/** Steps of one plan before the next one has its turn: the speed of a machine changes in the course of minutes. */
const stepsOfTurn = 4;
/** Plans that are at most so much longer than the best are tried again with it, so many in all, so many times. */
const nearly = 0.06;
const mostNear = 4;
const mostPasses = 3;
/** Steps where no number is asked for: as many as make a pass of some seconds, because a machine has slow moments of tenths of a second. */
const usualSteps = { least: 12, most: 48, seconds: 10 };
/** Seconds after which a pass is over, but for the least number of steps. */
const mostSeconds = 20;
const leastSteps = 3;

/**
 * Runs some steps of a plan on the ranks of the default group, and predicts the step as long as those of usual length were. All ranks call
 * it with the arguments of one microbatch, which serve for all of them; all get the same plan, with the costs that its actions had.
 *
 * @example const tried = tryPlan(pipeline(program, { plan }), plan, [x], { lossFn, target }); console.log(tried.predicted.step)
 */
export function tryPlan<Output extends Value = Tensor, Target extends Value = Tensor>(
  pipe: Pipe,
  plan: PipelinePlan,
  mbArgs: readonly Value[],
  options: TryPlanOptions<Output, Target> = {},
): PipelinePlan {
  checkOptions('tryPlan', options, ['lossFn', 'target', 'steps']);
  const { target, ...rest } = options;
  return runTrials('tryPlan', [{ pipe, plan, mbArgs, target }], rest)[0]!;
}

/**
 * Tries several plans like `tryPlan`, in turns, so that a change of the machine's speed meets all of them; those that are nearly as fast as
 * the best one run more steps. Returns the plans in the order given.
 *
 * @example const [best] = rankPlans(tryPlans(plans.map((plan) => ({ pipe: pipeline(program, { plan }), plan, mbArgs: [x], target })), { lossFn }))
 */
export function tryPlans<Output extends Value = Tensor, Target extends Value = Tensor>(
  trials: readonly PlanTrial<Target>[],
  options: TryPlansOptions<Output, Target> = {},
): PipelinePlan[] {
  checkOptions('tryPlans', options, ['lossFn', 'steps']);
  checkArgument(
    'tryPlans',
    Array.isArray(trials),
    ['the trials', trials],
    'an array of { pipe, plan, mbArgs, target }',
  );
  return runTrials('tryPlans', trials, options);
}

function runTrials<Output extends Value, Target extends Value>(
  caller: string,
  trials: readonly PlanTrial<Target>[],
  { lossFn = (output: Output): Tensor => sumOf(output), steps: given }: TryPlansOptions<Output, Target>,
): PipelinePlan[] {
  const most = checkCount(caller, 'steps', given ?? usualSteps.most);
  const group = distributed.isInitialized() ? distributed.getDefaultGroup() : null;
  for (const trial of trials) checkTrial(caller, trial, group?.size ?? 1);
  const running: Running[] = [];
  try {
    for (const trial of trials)
      running.push(new Running(trial, lossFn as LossFn, { group, kept: mostPasses * most + 1 }));
    const steps = stepsOf(given, warmUp(running, group));
    let plans = trials.map(({ plan }) => plan);
    let chosen = running.map((_, i) => i);
    for (let pass = 0; pass < mostPasses && chosen.length > (pass === 0 ? 0 : 1); pass++) {
      for (let done = 0; done < steps; done += stepsOfTurn)
        for (const i of chosen) running[i]!.run(Math.min(stepsOfTurn, steps - done));
      const tried = chosen.map((i) => running[i]!.result());
      plans = plans.map((plan, i) => (chosen.includes(i) ? tried[chosen.indexOf(i)]! : plan));
      chosen = nearest(plans, chosen);
    }
    return plans;
  } finally {
    for (const one of running) one.dispose();
  }
}

/** A step of each; the seconds that all of them took on the slowest rank. */
function warmUp(running: readonly Running[], group: distributed.ProcessGroup | null): number {
  const begin = performance.now();
  for (const one of running) one.run(1);
  const seconds = Math.max(1e-6, (performance.now() - begin) / 1000);
  return group === null ? seconds : Math.max(...group.allGatherObject<number>(seconds));
}

/** Steps of each plan in a pass, where one step of each takes so many seconds together. */
function stepsOf(given: number | undefined, seconds: number): number {
  const { least, most, seconds: usually } = usualSteps;
  const wanted = given ?? Math.min(most, Math.max(least, Math.floor(usually / seconds)));
  return Math.min(wanted, Math.max(leastSteps, Math.floor(mostSeconds / seconds)));
}

/** Of the plans that were tried last, those that are nearly as fast as the best. */
function nearest(plans: readonly PipelinePlan[], tried: readonly number[]): number[] {
  const step = (i: number): number => plans[i]!.predicted.step;
  const least = Math.min(...tried.map(step));
  return tried
    .filter((i) => step(i) <= (1 + nearly) * least)
    .toSorted((a, b) => step(a) - step(b))
    .slice(0, mostNear);
}

function checkTrial(caller: string, trial: PlanTrial<Value>, ranks: number): void {
  const { pipe, plan, mbArgs } = (trial as PlanTrial<Value> | null) ?? ({} as PlanTrial<Value>);
  checkArgument(caller, pipe instanceof Pipe, ['the pipe', pipe], 'what pipeline(model, { plan }) returns');
  checkPlan(caller, plan);
  checkArgument(caller, Array.isArray(mbArgs), ['mbArgs', mbArgs], 'the arguments of one microbatch: [x]');
  const fits = plan.ranks === ranks;
  checkArgument(caller, fits, ['plan.ranks', plan.ranks], `a plan for the ${ranks} ranks that there are`);
}

type LossFn = (output: Value, target: Value) => Tensor;

/** One plan while it is tried. */
class Running {
  private readonly trial: PlanTrial<Value>;
  private readonly group: distributed.ProcessGroup | null;
  private readonly recorder: Recorder;
  private readonly runtime: PipelineRuntime<readonly Value[], Value, Value>;

  constructor(
    trial: PlanTrial<Value>,
    lossFn: LossFn,
    { group, kept }: { readonly group: distributed.ProcessGroup | null; readonly kept: number },
  ) {
    this.trial = trial;
    this.group = group;
    const { pipe, plan } = trial;
    const schedule = planSchedule(plan);
    this.recorder = new Recorder({ steps: kept });
    const stages = schedule.stagesOf(group?.rank ?? 0).map((stage) => pipe.buildStage(stage));
    this.runtime = new PipelineRuntime(stages, schedule, { lossFn, record: this.recorder });
  }

  run(steps: number): void {
    const { plan, mbArgs, target } = this.trial;
    const argMbs = Array.from({ length: plan.microbatches }, () => mbArgs);
    const targetMbs = target === undefined ? {} : { targetMbs: argMbs.map(() => target) };
    for (let step = 0; step < steps; step++)
      scope(() => void this.runtime.step({ argMbs, ...targetMbs, returnOutputs: false }));
  }

  /** The plan with the costs of its actions and the step that was seen; the same on all ranks, which all call it. */
  result(): PipelinePlan {
    const { trial, group } = this;
    const recording = this.recorder.gather();
    const found = recording === null ? null : seen(trial.plan, recording);
    if (group === null) return found!;
    return group.broadcastObject<distributed.Json>(found as distributed.Json, 0) as unknown as PipelinePlan;
  }

  dispose(): void {
    this.runtime.dispose();
    for (const parameter of this.trial.pipe.parameters()) parameter.grad = null;
  }
}

/**
 * The plan as it ran. Its step is the mean of those of usual length: simulated from mean costs it would lack what passes between actions,
 * and the waits that arise because no action takes equally long twice.
 */
function seen(plan: PipelinePlan, recording: Recording): PipelinePlan {
  const steady = steadySteps(recording);
  const first = recording.steps.length - steady.length;
  const simulations = steady.map((_, i) => recordedSimulation(recording, first + i));
  const kept = usual(simulations.map(({ makespan }) => makespan));
  const refitted = refitPlan(plan, { ...recording, steps: steady.filter((_, i) => kept.includes(i)) });
  const mean = (values: readonly number[]): number => values.reduce((sum, each) => sum + each, 0) / values.length;
  const step = mean(kept.map((i) => simulations[i]!.makespan)) / 1000;
  const bubble = mean(kept.map((i) => simulations[i]!.bubble.makespan));
  const { predicted } = refitted;
  const rowsPerSecond = step > 0 ? (predicted.rowsPerSecond * predicted.step) / step : 0;
  return { ...refitted, predicted: { ...predicted, step, bubble, rowsPerSecond } };
}
