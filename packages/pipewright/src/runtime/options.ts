/** @file The options of a runtime and of a step, and their checks. */
import type { Action, Costs, DataParallelPlan, LowerOptions } from '@pipewright/schedule';
import { type AutocastOptions, type distributed, GradScaler, nn, type Tensor } from '@pipewright/torch';
import { checkOptions, didYouMean, isGroup, show } from '../base/checks.ts';
import { PipelineError } from '../base/errors.ts';
import { isPlainObject } from '../base/tree.ts';
import type { Value } from '../base/value.ts';
import { type GivenMicrobatches, isCut } from '../microbatch/given.ts';
import type { SpecTree } from '../microbatch/index.ts';
import type { Recorder } from '../recording/recorder.ts';
import { type BackwardStart, PipelineStage } from '../stage/pipeline-stage.ts';
import type { PipelineRuntime } from './runtime.ts';

/** A loss as a function of one microbatch: of what the last stage returned, its target, and the step's `lossKwargs`. */
export type LossCall<Output = Tensor, Target = Tensor, LossOptions = object | undefined> = (
  output: Output,
  target: Target,
  options: LossOptions,
) => Tensor;

/** A loss as a module. */
export type LossModule<Output = Tensor, Target = Tensor> = nn.Module & {
  forward(output: Output, target: Target): Tensor;
};

/** The loss of one microbatch: a function or a module. @example const lossFn: LossFunction = new nn.MSELoss() */
export type LossFunction<Output = Tensor, Target = Tensor, LossOptions = object | undefined> =
  | LossCall<Output, Target, LossOptions>
  | LossModule<Output, Target>;

/** How a pipeline is run. */
export interface RuntimeOptions<Target = Tensor, Output = Tensor, LossOptions = object | undefined> {
  /** Number of microbatches; needed where the schedule is given by name. */
  readonly microbatches?: number | undefined;
  /** The loss of one microbatch: a function or a module, on all ranks or on none. Without it there is no backward. */
  readonly lossFn?: LossFunction<Output, Target, LossOptions> | undefined;
  /** The ranks. Default: the stages' group, or the default group. */
  readonly group?: distributed.ProcessGroup | undefined;
  /**
   * True (default), for losses that are means: each microbatch counts by its share of the batch, so that the gradients
   * are those of the mean over the batch. False, for losses that are sums.
   */
  readonly scaleGrads?: boolean | undefined;
  /** How positional inputs are cut. */
  readonly argsChunkSpec?: readonly SpecTree[] | undefined;
  /** How named inputs are cut. */
  readonly kwargsChunkSpec?: Readonly<Record<string, SpecTree>> | undefined;
  /** How targets are cut. */
  readonly targetChunkSpec?: SpecTree | undefined;
  /** How outputs are merged. */
  readonly outputMergeSpec?: SpecTree | undefined;
  /** Runs forwards and losses in a lower precision. */
  readonly autocast?: AutocastOptions | undefined;
  /** Scales the losses; the optimizer's gradients must be unscaled by the same scaler. */
  readonly scaler?: GradScaler | undefined;
  /** On CUDA: capture a whole step once for each shape and replay it. `captureProblem` says why steps are not captured. */
  readonly capture?: boolean | undefined;
  /**
   * Sends the gradients of a stage's inputs as soon as a backward has them, before it computes those of the weights, unless hooks or
   * custom functions watch. Default: where stages are on the CPU. On a GPU the host walks the graph twice for it, which pays where
   * kernels are long. False: after the whole backward.
   */
  readonly earlyGradients?: boolean | undefined;
  /**
   * On GPUs over NCCL. `remembered` (default): the shapes of messages are learned in the first step with inputs of some shapes,
   * later ones exchange nothing but tensors. `announced`: they travel ahead of every message, for models whose shapes depend on
   * values. The same on all ranks.
   */
  readonly messageShapes?: 'remembered' | 'announced' | undefined;
  /** Records when every action ran and what it waited for: true, or a recorder of your own. */
  readonly record?: boolean | Recorder | undefined;
  /**
   * Random numbers of forwards by name: they depend on its seed, on the step, on the number of the microbatch in the whole batch
   * and on the layer's name in the whole model, not on stages, replicas or the schedule. Only steps that succeed are counted.
   */
  readonly random?: nn.NamedRandom | undefined;
  /** Costs of actions, for schedules that depend on them. */
  readonly costs?: Costs | undefined;
  /** How far ahead stages are unsharded; false (default): the row has no UNSHARD and RESHARD. Custom functions execute them. */
  readonly unshardWindow?: LowerOptions['unshardWindow'] | undefined;
  /**
   * How sharded stages are gathered: within a limit of bytes for each rank, as costs say, or as many whole stages at once as
   * PyTorch's `max_active_stages`. Default: every stage once in a step, one action ahead of its first use.
   */
  readonly dataParallel?: Pick<DataParallelPlan, 'memoryLimit' | 'costs' | 'maxActiveStages'> | undefined;
  /** `'any'`: inputs of different lengths are each cut by their own length; else they must be equally long. */
  readonly lengths?: 'any' | undefined;
}

/** A runtime of any types. */
export type AnyRuntime = PipelineRuntime<readonly Value[], Value, Value, object | undefined>;
/** The options of a runtime of any types. */
export type AnyRuntimeOptions = Omit<RuntimeOptions, 'lossFn'> & { readonly lossFn?: Loss | undefined };
/** A loss of unknown types, as the runtime calls it. */
export type Loss = LossCall<never, never, never> | (nn.Module & { forward(...inputs: never[]): Tensor });

/** A loss as the runtime calls it. */
export interface LossCaller {
  /** Whether it takes a target beside the output. */
  readonly needsTarget: boolean;
  call(output: unknown, target: unknown, options: unknown): unknown;
}

/** What `step` and `eval` are called with: positional inputs, which ranks without the first stage may leave out, then options. */
export type StepArguments<Inputs extends readonly Value[], Target, Output, LossOptions> =
  | readonly [...inputs: Inputs, options: StepOptions<Inputs, Target, Output, LossOptions>]
  | readonly [...inputs: Inputs]
  | readonly [options: StepOptions<Inputs, Target, Output, LossOptions>]
  | readonly [];

/** The options of a step; its positional inputs may also be given here, as microbatches that are cut already. */
export interface StepOptions<
  Inputs extends readonly Value[] = readonly Value[],
  Target = Value,
  Output = Value,
  LossOptions = object | undefined,
> extends GivenMicrobatches<Inputs[number], Target> {
  /** The target of the loss; used on the rank that holds the last stage. */
  readonly target?: Target | undefined;
  /** Named inputs of the stages of this rank, cut like the positional ones. */
  readonly kwargs?: Readonly<Record<string, Value>> | undefined;
  /** Filled with the losses of the microbatches, in order, on the rank that holds the last stage. */
  readonly losses?: Tensor[] | undefined;
  /**
   * Return the merged outputs: on the rank that holds the last stage (true, the default), nowhere, or on every rank
   * (`'everywhere'`; all ranks must say so).
   */
  readonly returnOutputs?: boolean | 'everywhere' | undefined;
  /** Called with each microbatch's output as soon as it is there, on the rank that holds the last stage. It is freed afterwards. */
  readonly onOutput?: ((output: Output, microbatch: number) => void) | undefined;
  /** The sum of the losses is divided by it, for a mean: for example the number of tokens of the batch. */
  readonly divisor?: number | undefined;
  /** The third argument of `lossFn`. */
  readonly lossKwargs?: LossOptions | undefined;
  /** Whether gradients are summed over replicas in this step (default), or in a later one; the same on all replicas. */
  readonly sync?: boolean | undefined;
}

/** The second argument of a custom function. */
export interface PipelineContext {
  readonly runtime: AnyRuntime;
  readonly args: readonly (readonly unknown[])[];
  readonly kwargs: readonly Record<string, unknown>[];
  readonly target: readonly unknown[] | undefined;
  /** The array of the step's option `losses`; losses added to it come before those of the runtime. */
  readonly losses: Tensor[] | undefined;
  /** The stage of the action; of an overlapped one the stage of its first part. */
  readonly stage: PipelineStage;
  readonly microbatch: number;
  /** Whether a backward will follow. */
  readonly training: boolean;
  /** Does what the runtime would have done. */
  run(): void;
  /** For F: the inputs of the module; waits until they have arrived. */
  inputs<Inputs extends readonly unknown[] = readonly Tensor[]>(): Inputs;
  /** For F: sets the output of the stage. On the last stage the loss is computed from it, unless `setLoss` was called. */
  setOutput(output: Value): void;
  /** For F on the last stage: sets the loss of the microbatch. */
  setLoss(loss: Tensor): void;
  /** For B and I: the tensors that the backward starts from, their gradients, and the tensors whose gradients are needed. */
  backward(): BackwardStart;
  /** For B and I: sets the gradients of `backward().inputs`; for I also the function that computes the weight half, called at W. */
  setInputGrads(grads: readonly (Tensor | null)[], weights?: () => void): void;
  /** For OVERLAP_F_B: performs one of its parts. */
  perform(part: Action): void;
}

/** A function that replaces what the runtime does for a kind of action. */
export type CustomFunction = (action: Action, context: PipelineContext) => void;

/** Functions that are called around every action, and around every step and evaluation. */
export interface ActionHook {
  before?(action: Action, slot: number): void;
  after?(action: Action, slot: number): void;
  beforeStep?(kind: 'step' | 'eval', step: number): void;
  afterStep?(kind: 'step' | 'eval', step: number): void;
}

const runtimeOptionNames: readonly string[] = [
  'microbatches',
  'lossFn',
  'group',
  'scaleGrads',
  'argsChunkSpec',
  'kwargsChunkSpec',
  'targetChunkSpec',
  'outputMergeSpec',
  'autocast',
  'scaler',
  'capture',
  'earlyGradients',
  'messageShapes',
  'record',
  'random',
  'costs',
  'unshardWindow',
  'dataParallel',
  'lengths',
];
const stepOptionNames = [
  'target',
  'kwargs',
  'argMbs',
  'kwargMbs',
  'targetMbs',
  'losses',
  'returnOutputs',
  'onOutput',
  'divisor',
  'lossKwargs',
  'sync',
];
const customKinds: readonly string[] = ['F', 'B', 'I', 'W', 'OVERLAP_F_B', 'UNSHARD', 'RESHARD', 'REDUCE_GRAD'];

/** How to call the loss that a user gave; null where there is none. */
export function lossCaller(lossFn: Loss | undefined): LossCaller | null {
  if (lossFn === undefined) return null;
  const call = (lossFn instanceof nn.Module ? lossFn.forward.bind(lossFn) : lossFn) as (
    ...inputs: unknown[]
  ) => unknown;
  if (typeof call !== 'function' || (lossFn as { prototype?: unknown }).prototype instanceof nn.Module)
    throw new PipelineError(
      'BAD_OPTION',
      `PipelineRuntime: lossFn is ${show(lossFn)}; give a function (output, target) => loss, or a module such as new nn.MSELoss()`,
    );
  return {
    needsTarget: call.length > 1,
    call: (output, target, options) => (options === undefined ? call(output, target) : call(output, target, options)),
  };
}

/** Refuses options of a runtime that are of the wrong kinds. */
export function checkRuntimeOptions(options: AnyRuntimeOptions): void {
  checkOptions('PipelineRuntime', options, runtimeOptionNames);
  const refuse = (name: string, value: unknown, wanted: string): never => {
    throw new PipelineError('BAD_OPTION', `PipelineRuntime: ${name} is ${show(value)}; give ${wanted}`, {
      option: name,
      value,
    });
  };
  const { scaleGrads, capture, earlyGradients, group, scaler, autocast, costs, dataParallel } = options;
  for (const [name, value] of Object.entries({ scaleGrads, capture, earlyGradients }))
    if (value !== undefined && typeof value !== 'boolean') refuse(name, value, 'true or false');
  for (const [name, value] of Object.entries({
    autocast,
    costs,
    dataParallel,
    kwargsChunkSpec: options.kwargsChunkSpec,
  }))
    if (value !== undefined && !isPlainObject(value)) refuse(name, value, 'an object');
  if (group !== undefined && !isGroup(group))
    refuse('group', group, 'a process group, as distributed.initProcessGroup() returns it');
  if (scaler !== undefined && !(scaler instanceof GradScaler)) refuse('scaler', scaler, 'new GradScaler()');
}

const hookNames = ['before', 'after', 'beforeStep', 'afterStep'];

/** Refuses what is no custom function, and kinds that cannot have one. */
export function checkCustomFunction(kind: Action['kind'], custom: CustomFunction): void {
  if (!customKinds.includes(kind))
    throw new PipelineError(
      'BAD_OPTION',
      `registerCustomFunction: ${show(kind)} cannot be replaced; give one of ${customKinds.join(', ')}`,
    );
  if (typeof custom !== 'function')
    throw new PipelineError(
      'BAD_OPTION',
      `registerCustomFunction: the function for ${kind} is ${show(custom)}; give a function (action, context) => …`,
    );
}

/** Refuses what is no hook. */
export function checkHook(hook: ActionHook): void {
  if (typeof hook !== 'object' || hook === null || Array.isArray(hook))
    throw new PipelineError(
      'BAD_OPTION',
      `addHook: the hook is ${show(hook)}; give an object with ${hookNames.join(', ')}`,
    );
  if (isPlainObject(hook)) checkOptions('addHook', hook, hookNames); // an object of a class may have more
  for (const name of hookNames) {
    const value: unknown = Reflect.get(hook, name);
    if (value !== undefined && typeof value !== 'function')
      throw new PipelineError('BAD_OPTION', `addHook: ${name} is ${show(value)}; give a function`);
  }
}

/** The stages of a rank as a list. */
export function checkStages(stages: PipelineStage | readonly PipelineStage[]): readonly PipelineStage[] {
  const list: readonly PipelineStage[] = stages instanceof PipelineStage ? [stages] : stages;
  if (!Array.isArray(list) || list.length === 0 || !Array.from(list).every((stage) => stage instanceof PipelineStage))
    throw new PipelineError('BAD_INPUT', 'PipelineRuntime: the first argument is a PipelineStage or an array of them');
  const first = list[0] as PipelineStage;
  for (const { stageIndex, numStages } of list)
    if (numStages !== first.numStages)
      throw new PipelineError(
        'BAD_INPUT',
        `PipelineRuntime: stage ${stageIndex} says there are ${numStages} stages, stage ${first.stageIndex} says ${first.numStages}`,
      );
  if (new Set(list.map((stage) => stage.stageIndex)).size !== list.length)
    throw new PipelineError('BAD_INPUT', 'PipelineRuntime: a stage was given twice');
  return list;
}

/** Whether a divisor is valid: a number above 0, or none. */
export function isDivisor(value: unknown): value is number | undefined {
  return value === undefined || (typeof value === 'number' && value > 0 && Number.isFinite(value));
}

/** Positional inputs and options: the last argument is the options where it is a plain object. */
export function splitInput(where: string, input: readonly Value[]): [readonly Value[], StepOptions] {
  const last = input.at(-1);
  if (!isPlainObject(last)) return [input, {}];
  const unknown = Object.keys(last).find((key) => !stepOptionNames.includes(key));
  if (unknown !== undefined)
    throw new PipelineError(
      'UNKNOWN_OPTION',
      `${where}: the last argument is the options, and '${unknown}' is not one of ${stepOptionNames.join(', ')}${didYouMean(unknown, stepOptionNames)}; where it is an input of the model, add {} after it`,
    );
  const options: StepOptions = last;
  if (options.losses !== undefined && !Array.isArray(options.losses))
    throw new PipelineError('BAD_INPUT', `${where}: losses is ${show(options.losses)}; give an array to be filled`);
  for (const name of ['kwargs', 'lossKwargs'] as const)
    if (options[name] !== undefined && !isPlainObject(options[name]))
      throw new PipelineError('BAD_INPUT', `${where}: ${name} is ${show(options[name])}; give an object`);
  if (![undefined, true, false, 'everywhere'].includes(options.returnOutputs))
    throw new PipelineError(
      'BAD_INPUT',
      `${where}: returnOutputs is ${show(options.returnOutputs)}; give true, false or 'everywhere'`,
    );
  if (options.sync !== undefined && typeof options.sync !== 'boolean')
    throw new PipelineError('BAD_INPUT', `${where}: sync is ${show(options.sync)}; give true or false`);
  if (options.onOutput !== undefined && typeof options.onOutput !== 'function')
    throw new PipelineError('BAD_INPUT', `${where}: onOutput is ${show(options.onOutput)}; give a function`);
  const args = input.slice(0, -1);
  if (isCut(options) && (args.length > 0 || options.kwargs !== undefined || options.target !== undefined))
    throw new PipelineError(
      'BAD_INPUT',
      `${where}: was given both a batch (${[...(args.length > 0 ? ['positional inputs'] : []), ...['kwargs', 'target'].filter((name) => Reflect.get(options, name) !== undefined)].join(', ')}) and microbatches that are cut already; give all of one kind: argMbs, kwargMbs and targetMbs`,
    );
  return [args, options];
}

/** The options that decide which messages a step sends, as far as wrong options allow: the other ranks expect these messages. */
export function callOptions(given: unknown): StepOptions {
  const { returnOutputs, sync } = isPlainObject(given) ? (given as StepOptions) : {};
  return { ...(returnOutputs === 'everywhere' && { returnOutputs }), ...(sync === false && { sync }) };
}

/** The device of stages: the GPU of their parameters, if they are on one. */
export function deviceOf(stages: readonly PipelineStage[]): string {
  return stages.map(({ device }) => device).find((device) => device.startsWith('cuda')) ?? 'cpu';
}
