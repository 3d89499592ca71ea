/**
 * @file The runtime: one interpreter of lowered schedules for all of them. A rank walks its row; every action is one of a
 * dozen kinds, and all that differs between schedules is the row.
 */
import type { Action, PipelinePlan, Schedule, ScheduleAlias, ScheduleData, ScheduleName } from '@pipewright/schedule';
import { distributed, isGradEnabled, noGrad, scope, type Tensor } from '@pipewright/torch';
import { show } from '../base/checks.ts';
import { PipelineError } from '../base/errors.ts';
import type { Value } from '../base/value.ts';
import { type DataParallel, dataParallelOf } from '../parallel/data-parallel.ts';
import type { ShardLevel } from '../parallel/unit-settings.ts';
import { isWatched } from '../recording/live-feed.ts';
import { Recorder } from '../recording/recorder.ts';
import type { PipelineStage } from '../stage/pipeline-stage.ts';
import { rankStatus } from '../status/rank-status.ts';
import { captureObstacle, inputKey, inputObstacle, StepCapture, type StepInput, type StepResult } from './capture.ts';
import { debugHook } from './debug.ts';
import type { ClipOptions } from './gradients/grad-norm.ts';
import type { AnyOptimizer, OptimizerStep, OptimizerStepOptions } from './gradients/optimizer-step.ts';
import { PipelineGradients } from './gradients/pipeline-gradients.ts';
import { Ties } from './gradients/ties.ts';
import { checkBackwards, resolveSchedule } from './lowering.ts';
import {
  type ActionHook,
  type AnyRuntimeOptions,
  type CustomFunction,
  callOptions,
  checkCustomFunction,
  checkHook,
  checkRuntimeOptions,
  checkStages,
  deviceOf,
  type Loss,
  type LossCaller,
  lossCaller,
  type RuntimeOptions,
  type StepArguments,
  splitInput,
} from './options.ts';
import { stepOutputs } from './outputs.ts';
import type { Overlap } from './overlap/overlap.ts';
import { StreamOverlap } from './overlap/stream.ts';
import { ThreadOverlap } from './overlap/thread.ts';
import { checkPlanned, placeOf } from './planned.ts';
import { namedRandom } from './random.ts';
import { LossGrads } from './row/loss-grads.ts';
import { walk } from './row/perform.ts';
import type { PlannedAction } from './row/planned-action.ts';
import { type RankRows, RankSchedule } from './row/rank-schedule.ts';
import { refuseRow } from './row/refusal.ts';
import { type RankContext, StepState } from './row/step-state.ts';
import { refusalReason, startWork } from './start-work.ts';
import { callKind } from './transport/call.ts';
import { openTransport } from './transport/open.ts';
import type { Agreement, Transport } from './transport/transport.ts';

/**
 * Runs a schedule on the stages of this rank. All ranks make one, with the same schedule, and call `step` together.
 *
 * @example const runtime = new PipelineRuntime(stage, '1F1B', { microbatches: 8, lossFn }); runtime.step(x, { target: y })
 */
export class PipelineRuntime<
  Inputs extends readonly Value[] = readonly Tensor[],
  Target extends Value = Tensor,
  Output extends Value = Tensor,
  LossOptions extends object | undefined = object | undefined,
> {
  readonly stages: readonly PipelineStage[];
  readonly group: distributed.ProcessGroup | null;
  readonly lossFn: Loss | undefined;
  /** The recorder of the steps; null without `record`. */
  readonly recorder: Recorder | null;
  private readonly options: AnyRuntimeOptions;
  private readonly given: Schedule;
  private readonly transport: Transport | null;
  private readonly overlap: Overlap;
  private readonly lossGrads = new LossGrads();
  private readonly hooks: ActionHook[] = [];
  private readonly customFunctions = new Map<Action['kind'], CustomFunction>();
  private readonly context: RankContext;
  private readonly loss: LossCaller | null;
  private readonly parallel: DataParallel | null;
  /** Null until all ranks have agreed on the schedule. */
  private prepared: RankSchedule | null = null;
  /** The rows of steps and evaluations; compiled again when hooks or custom functions change. */
  private rows: RankRows | null = null;
  private ties: Ties | null = null;
  private broken: Error | null = null;
  /** Whether the schedule was found to have a backward for every forward. */
  private hasBackwards = false;
  private capture: StepCapture | null = null;
  private steps = 0;
  /** How many of them were evaluations. */
  private evaluations = 0;
  private readonly gradients: PipelineGradients;

  constructor(
    stages: PipelineStage | readonly PipelineStage[],
    schedule: ScheduleName | ScheduleAlias | Schedule | ScheduleData | PipelinePlan,
    options: RuntimeOptions<Target, Output, LossOptions> = {},
  ) {
    checkRuntimeOptions(options);
    this.stages = checkStages(stages);
    this.options = options;
    this.lossFn = options.lossFn;
    this.loss = lossCaller(options.lossFn);
    const [first] = this.stages as readonly [PipelineStage];
    const group = options.group ?? first.group ?? (distributed.isInitialized() ? distributed.getDefaultGroup() : null);
    this.group = group !== null && group.size > 1 ? group : null;
    this.given = resolveSchedule(schedule, { ranks: this.group?.size ?? 1, stages: first.numStages, options });
    this.recorder = recorderOf(options.record);
    this.overlap = deviceOf(this.stages).startsWith('cuda') ? new StreamOverlap() : new ThreadOverlap();
    this.transport = openTransport(this.group, {
      device: deviceOf(this.stages),
      messageShapes: options.messageShapes,
      capture: options.capture === true,
    });
    this.parallel = checkPlanned(schedule, dataParallelOf(this.stages), this.stages);
    this.gradients = new PipelineGradients({
      stages: this.stages,
      group: this.group,
      parallel: this.parallel,
      scaler: options.scaler,
    });
    const { loss, transport, parallel, recorder, hooks, overlap } = this;
    const received = (): void => overlap.received?.();
    const mayRefuse =
      parallel !== null ? transport?.carriesRefusals !== false : transport !== null && transport.carriesRefusals;
    const random = namedRandom(options.random, this.stages, { microbatches: this.microbatches, parallel });
    this.context = {
      rank: this.rank,
      options,
      loss,
      transport,
      parallel,
      recorder,
      hooks,
      mayRefuse,
      random,
      received,
    };
    const debug = debugHook(this.rank);
    if (debug !== null) this.hooks.push(debug);
  }

  /** The rank in the group. */
  get rank(): number {
    return this.group?.rank ?? 0;
  }

  /** The rank for messages: among all ranks where there are replicas or shards. */
  private get globalRank(): number {
    return this.parallel === null ? this.rank : distributed.getRank();
  }

  /** Number of microbatches. */
  get microbatches(): number {
    return this.given.microbatches;
  }

  /** The lowered schedule that is run. */
  get schedule(): Schedule {
    return this.prepare().lowered;
  }

  /** Why steps are not captured, where `capture` was asked for; null while they are. */
  get captureProblem(): string | null {
    return this.options.capture === true ? this.captureSteps().problem : null;
  }

  /** The sharding level of the stages; null where they are whole. */
  private get level(): ShardLevel | null {
    const [first] = this.stages as readonly [PipelineStage];
    return this.parallel?.sharding(first.stageIndex)?.level ?? null;
  }

  /** Number of steps and evaluations that have ended. */
  get stepCount(): number {
    return this.steps;
  }

  /**
   * One training step on a whole batch: positional inputs, then an object of options. All ranks may be given all of it: inputs
   * are used where the first stage is, targets where the last one is. Gradients are added to those that are there. Returns the outputs where the last stage is (`returnOutputs`), else undefined.
   *
   * @example const losses: Tensor[] = []; runtime.step(x, { target: y, losses }); optimizer.step()
   */
  step(...input: StepArguments<Inputs, Target, Output, LossOptions>): Output | undefined {
    if (this.lossFn !== undefined && !isGradEnabled())
      throw new PipelineError(
        'NO_GRAD',
        'step: gradients are switched off here (noGrad or inferenceMode), so there is no backward; call eval, or step outside',
      );
    return this.execute('step', input, this.lossFn !== undefined);
  }

  /**
   * Forwards only, without recording anything for backward. The loss is computed where a target is given.
   *
   * @example const outputs = runtime.eval(x)
   */
  eval(...input: StepArguments<Inputs, Target, Output, LossOptions>): Output | undefined {
    return noGrad(() => this.execute('eval', input, false));
  }

  /** Replaces what the runtime does for a kind of action; `context.run()` does what it would have done. */
  registerCustomFunction(kind: Action['kind'], custom: CustomFunction): void {
    checkCustomFunction(kind, custom);
    this.customFunctions.set(kind, custom);
    this.rows = null;
  }

  /** Adds a hook that is called before and after every action, also the parts of overlapped ones; the result removes it. */
  addHook(hook: ActionHook): () => void {
    checkHook(hook);
    this.hooks.push(hook);
    this.rows = null;
    return () => {
      const at = this.hooks.indexOf(hook);
      if (at >= 0) this.hooks.splice(at, 1);
      this.rows = null;
    };
  }

  /**
   * Scales the gradients of the whole model so that their norm over all ranks is at most `maxNorm`; tied parameters count
   * once. All ranks call it together. Returns the norm before. Gradients of a loss that a `scaler` has scaled are unscaled
   * first, with `scaler.unscale_(optimizer)`; or give `maxNorm` to `stepOptimizer`, which does both.
   *
   * @example runtime.step(x, { target }); runtime.clipGradNorm_(1); optimizer.step()
   */
  clipGradNorm_(maxNorm: number, options?: ClipOptions): number {
    this.prepare();
    return this.gradients.clipNorm(this.ties, maxNorm, options);
  }

  /**
   * Clips the gradients where `maxNorm` is given and makes the step of an optimizer, or of several; but where a loss since the
   * last one (or since gradients were cleared) or the norm of all gradients is not finite, on whatever rank, all ranks leave
   * parameters and optimizers as they are. Where a `scaler` scales the losses, the gradients are unscaled first, those of other
   * optimizers count in the norm without the scale, and `scaler.update()` after all of them moves the scale alike on all ranks.
   * All ranks call it together.
   *
   * @example const { skipped, reason } = runtime.stepOptimizer(optimizer, { maxNorm: 1 })
   */
  stepOptimizer(optimizers: AnyOptimizer | readonly AnyOptimizer[], options?: OptimizerStepOptions): OptimizerStep {
    this.prepare();
    return this.gradients.stepOptimizers(this.ties, optimizers, options);
  }

  /** Number of optimizer steps that all ranks have skipped, because a loss or the norm of the gradients was not finite. */
  get skippedSteps(): number {
    return this.gradients.skipped;
  }

  /**
   * Frees what the runtime keeps between steps: what a failed step has left in the stages, losses, formats of messages, recorded
   * CUDA graphs. It closes nothing: a later step makes them anew. Stages and their parameters stay as they are. All ranks call
   * it between the same two steps, or none does.
   */
  dispose(): void {
    for (const stage of this.stages) stage.clearRuntimeStates();
    this.lossGrads.dispose();
    this.gradients.dispose();
    this.transport?.dispose?.();
    this.capture?.dispose();
  }

  [Symbol.dispose](): void {
    this.dispose();
  }

  // --- preparation ---------------------------------------------------------------------------------------------------

  /** Agrees with the other ranks on the schedule; once. */
  private prepare(): RankSchedule {
    if (this.prepared !== null) return this.prepared;
    const { group, rank, stages, options, transport, parallel } = this;
    const prepared = new RankSchedule(this.given, { group, stages, options, parallel, transport });
    const { lowered: schedule, descriptions, device, actionCount: actions } = prepared;
    try {
      const ties = new Ties({ rank, stages, descriptions, schedule, transport });
      parallel?.prepare(ties.parameters());
      this.recorder?.attach({ schedule, group, device, actions, stages, ...placeOf(parallel) });
      this.ties = ties;
    } catch (error) {
      if (group !== null) this.giveUp(error); // its other ranks may have begun the step
      throw error;
    }
    this.prepared = prepared;
    return prepared;
  }

  /** The rows of this rank for the current hooks and custom functions. */
  private compiledRows(): RankRows {
    if (this.rows !== null) return this.rows;
    const { overlap, customFunctions, hooks } = this;
    this.rows = this.prepare().rows({ runtime: this, overlap, customFunctions, hasHooks: hooks.length > 0 });
    return this.rows;
  }

  // --- one step ------------------------------------------------------------------------------------------------------

  private execute(where: 'step' | 'eval', input: readonly Value[], training: boolean): Output | undefined {
    this.checkWorking(where);
    const rows = this.compiledRows();
    if (training && !this.hasBackwards) checkBackwards(this.given);
    if (training) this.hasBackwards = true;
    const number = training ? this.steps - this.evaluations : this.evaluations;
    rankStatus.set({ action: `${where} begins`, step: number, evaluates: !training });
    const { args, options, wrong } = this.read(where, input);
    options.losses?.splice(0, options.losses.length);
    const kind = callKind(training, options, this.level !== null);
    const call: RowCall = { where, training, row: training ? rows.training : rows.forward, kind, wrong };
    const run = (given: StepInput): StepResult => scope(() => this.runRow(call, given));
    const capture = training && this.options.capture === true ? this.captureSteps() : null;
    const state = capture?.stateKey() ?? '';
    const agreement = this.agree({ args, options }, call, state);
    if (training) this.gradients.beginStep();
    try {
      const { outputs, losses, lossValues, failure } =
        capture !== null ? capture.run({ args, options }, run, { state, agreement }) : run({ args, options });
      // Outside of the row, which may be captured: every replay has its own losses.
      if (training) this.gradients.endStep({ losses, lossValues }, options.sync !== false || this.level === null);
      options.losses?.splice(0, options.losses.length, ...losses);
      for (const loss of options.losses === undefined ? losses : []) loss.dispose();
      if (training && this.options.random !== undefined) this.options.random.step++;
      // Only the outputs are missing. Ranks without outputs have ended the step too and go on with the next one.
      if (failure !== null) throw failure;
      return outputs as Output | undefined;
    } finally {
      this.steps++;
      if (!training) this.evaluations++;
      // Where a step broke off stays told: the launcher may ask only now.
      if (this.broken === null) rankStatus.set({ action: `${where} ended` });
    }
  }

  private checkWorking(where: string): void {
    if (this.broken === null) return;
    throw new PipelineError(
      'BROKEN',
      `${where}: an earlier step failed in the middle (${this.broken.message}), and the other ranks wait for what it would have sent; start the ranks again`,
      {},
      { cause: this.broken },
    );
  }

  /** Walks the row of a step or an evaluation, or refuses it where this rank cannot begin. */
  private runRow(call: RowCall, input: StepInput): StepResult {
    const { where, training, row, kind } = call;
    const { step, refused: mine } = this.begin(input, call);
    let refused = mine;
    try {
      this.recorder?.beginStep(training);
      for (const hook of this.hooks) hook.beforeStep?.(where, this.steps);
      this.transport?.beginStep?.({ number: this.steps, kind });
      const sync = training && step.options.sync !== false;
      // The gradients of shards are known only once they are summed over the group.
      const ties = training && (sync || this.level === null) ? this.ties : null;
      if (training) this.parallel?.setAside();
      ties?.begin();
      // With other ranks a step that fails is the last one, so that nothing has to be undone.
      if (training && this.group === null && this.parallel === null) this.gradients.held.begin();
      this.parallel?.begin();
      if (refused === null) refused = walk(row, step);
      else refuseRow(row, 0, step, this.reasonOf(refused));
      const end = { training, sync: sync && refused === null, refused: refused !== null };
      this.parallel?.settle(end);
      ties?.reduce((parameter) => this.parallel?.owes(parameter) === true);
      this.parallel?.finish(end);
      if (sync && this.recorder !== null) this.recordReductions(row, this.recorder);
      this.transport?.endStep?.(false);
      for (const hook of this.hooks) hook.afterStep?.(where, this.steps);
      this.recorder?.endStep(() => step.meanLoss());
      this.gradients.held.end();
    } catch (error) {
      this.recorder?.failStep();
      this.giveUp(error);
      throw error;
    }
    return this.finish(where, step, refused);
  }

  /** Adds the time of reductions that ended after the row to their actions in the recording. */
  private recordReductions(row: readonly PlannedAction[], recorder: Recorder): void {
    for (const { kind, index, links } of row) {
      const late = kind === 'REDUCE_GRAD' ? this.parallel?.lateReductions.get(links.stage.stageIndex) : undefined;
      if (late !== undefined) recorder.prolong(index, late);
    }
  }

  /** The arguments of a call. In a group a wrong call does not throw here, because the other ranks must learn of it. */
  private read(where: string, input: readonly Value[]): StepInput & { readonly wrong: Error | null } {
    try {
      const [args, options] = splitInput(where, input);
      return { args, options, wrong: null };
    } catch (error) {
      if (!this.context.mayRefuse) throw error;
      return { args: [], options: callOptions(input.at(-1)), wrong: error as Error };
    }
  }

  /** Compares the inputs of the step with those of the other ranks, where the transport remembers earlier inputs. */
  private agree(input: StepInput, { training, kind: call }: RowCall, state: string): Agreement | null {
    const { transport } = this;
    if (transport?.agree === undefined) return null;
    const kind = JSON.stringify([
      training,
      input.options.sync !== false, // decides whether tied gradients of shards are summed
      this.stages.map(({ module }) => [
        module.training,
        // Decides whether copies of tied parameters are summed.
        module.parameters().map((parameter) => [parameter.requiresGrad, this.parallel?.owes(parameter) === true]),
      ]),
    ]);
    rankStatus.set({ action: 'comparing inputs', waitingFor: 'all' });
    try {
      const capture = training && this.options.capture === true ? this.captureProblemOf(input) : undefined;
      return transport.agree({ kind, call, inputs: `${inputKey(input)} ${state}`, capture });
    } catch (error) {
      this.giveUp(error);
      throw error;
    }
  }

  /** Why this rank would not capture a step; empty where it would. */
  private captureProblemOf(input: StepInput): string {
    if (input.options.returnOutputs === 'everywhere') return 'outputs are sent to all ranks';
    return inputObstacle(input) ?? this.captureSteps().problem ?? '';
  }

  private captureSteps(): StepCapture {
    const { stages, group, transport, options, hooks, customFunctions, parallel, recorder, lossGrads } = this;
    const hasHooks = hooks.length > 0 || customFunctions.size > 0;
    const isParallel = parallel !== null;
    const obstacle = captureObstacle({ group, transport, options, hasHooks, isParallel, recorder });
    this.capture ??= new StepCapture({ stages, transport, lossGrads }, obstacle);
    this.capture.problem ??= obstacle; // hooks may come later
    return this.capture;
  }

  private begin(
    input: StepInput,
    { where, training, wrong }: RowCall,
  ): { readonly step: StepState; readonly refused: Error | null } {
    for (const stage of this.stages) stage.clearRuntimeStates();
    this.overlap.reset?.();
    const { rank, globalRank, stages, microbatches, options, loss, parallel, ties } = this;
    const { clips } = this.gradients;
    const { work, refused } = startWork(input, {
      ...{ where, rank, globalRank, stages, microbatches, options, loss, parallel, clips, ties, training, wrong },
      mayRefuse: (error) => {
        if (this.transport?.carriesRefusals === false) this.giveUp(error);
        return this.broken === null && this.context.mayRefuse;
      },
      giveUp: (error) => this.giveUp(error),
    });
    const lossGrads = this.capture?.lossGrads ?? this.lossGrads;
    return { step: new StepState(this.context, work, lossGrads), refused };
  }

  /** The reason of a refusal, for the other ranks. */
  private reasonOf(error: Error): string {
    return refusalReason(this.globalRank, error);
  }

  /** After a failure in a step: frees what is held, and aborts the group so that no rank waits for this one. */
  private giveUp(error: unknown): void {
    const cause = error instanceof Error ? error : new Error(String(error));
    this.parallel?.abandon(cause.message);
    this.abandon();
    // The failed capture of a step has sent nothing, so that the other ranks are not affected.
    if (this.capture?.isRecording === true) return;
    if (this.group === null && this.parallel === null) return;
    this.broken = cause;
    this.group?.abort(cause.message);
  }

  /** Frees what a failed step has left. */
  private abandon(): void {
    for (const stage of this.stages) stage.clearRuntimeStates();
    this.gradients.held.undo();
    this.ties?.giveBack();
    this.transport?.endStep?.(true);
  }

  private finish(where: string, step: StepState, refused: Error | null): StepResult {
    const { schedule, rank, transport, options } = this;
    const losses = [...(step.options.losses ?? []), ...step.losses.filter((loss) => loss !== undefined)];
    const lossValues = step.lossValues?.length === losses.length ? step.lossValues : null;
    if (refused !== null) for (const stage of this.stages) stage.clearRuntimeStates();
    try {
      const outputs = stepOutputs(where, step, {
        ...{ schedule, rank, transport, spec: options.outputMergeSpec },
        refused: refused === null ? null : { error: refused, reason: this.reasonOf(refused) },
        giveUp: (error) => this.giveUp(error),
      });
      return { outputs, losses, lossValues, failure: null };
    } catch (failure) {
      if (refused !== null) throw failure;
      return { outputs: undefined, losses, lossValues, failure };
    }
  }
}

/** A call of `step` or `eval` on this rank. */
interface RowCall {
  readonly where: 'step' | 'eval';
  readonly training: boolean;
  readonly row: readonly PlannedAction[];
  /** Its kind in the tags of messages. */
  readonly kind: number;
  /** Why its arguments are refused; the other ranks learn of it in the row. */
  readonly wrong: Error | null;
}

/** The recorder that a user asked for. */
function recorderOf(record: RuntimeOptions['record']): Recorder | null {
  if (record === undefined || record === false) return isWatched() ? Recorder.forWatching() : null;
  if (record === true) return new Recorder();
  if (record instanceof Recorder) return record;
  throw new PipelineError('BAD_OPTION', `PipelineRuntime: record is ${show(record)}; give true or a Recorder`);
}
