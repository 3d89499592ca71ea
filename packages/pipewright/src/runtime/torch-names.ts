/**
 * @file The schedules under PyTorch's class names: runtimes whose schedule is in the name. Any other schedule is given to
 * `PipelineRuntime` by name or as data.
 */
import { findSchedule, type ScheduleName } from '@pipewright/schedule';
import type { Tensor } from '@pipewright/torch';
import { checkCount } from '../base/checks.ts';
import { PipelineError } from '../base/errors.ts';
import type { Value } from '../base/value.ts';
import type { PipelineStage } from '../stage/pipeline-stage.ts';
import type { RuntimeOptions } from './options.ts';
import { PipelineRuntime } from './runtime.ts';

type Stages = PipelineStage | readonly PipelineStage[];

/** Runs the schedule that its class names. */
abstract class NamedRuntime<
  Inputs extends readonly Value[] = readonly Tensor[],
  Target extends Value = Tensor,
  Output extends Value = Tensor,
  LossOptions extends object | undefined = object | undefined,
> extends PipelineRuntime<Inputs, Target, Output, LossOptions> {
  static readonly scheduleName: ScheduleName;

  /** The number of microbatches may stand by itself, as in PyTorch, or among the options. */
  constructor(
    stages: Stages,
    microbatches: number | RuntimeOptions<Target, Output, LossOptions>,
    options?: RuntimeOptions<Target, Output, LossOptions>,
  ) {
    super(stages, new.target.scheduleName, optionsOf(new.target.scheduleName, microbatches, options));
  }
}

/** The options of a runtime whose number of microbatches may stand before them. */
function optionsOf<Options extends { readonly microbatches?: number | undefined }>(
  name: string,
  microbatches: number | Options,
  options: Options | undefined,
): Options {
  if (typeof microbatches === 'object' && microbatches !== null && options === undefined) return microbatches;
  checkCount(`Schedule${name}`, 'the number of microbatches', microbatches);
  if (options?.microbatches !== undefined && options.microbatches !== microbatches)
    throw new PipelineError(
      'BAD_OPTION',
      `Schedule${name}: microbatches is ${String(microbatches)} before the options and ${options.microbatches} among them; give it once`,
    );
  return { ...options, microbatches } as Options;
}

/** Forwards only: `step` returns the outputs. @example new ScheduleForwardOnly(stage, { microbatches: 8 }) */
export class ScheduleForwardOnly<
  Inputs extends readonly Value[] = readonly Tensor[],
  Target extends Value = Tensor,
  Output extends Value = Tensor,
  LossOptions extends object | undefined = object | undefined,
> extends NamedRuntime<Inputs, Target, Output, LossOptions> {
  static override readonly scheduleName: ScheduleName = 'ForwardOnly';
}

/** All forwards, then all backwards. @example new ScheduleGPipe(stage, { microbatches: 8, lossFn }) */
export class ScheduleGPipe<
  Inputs extends readonly Value[] = readonly Tensor[],
  Target extends Value = Tensor,
  Output extends Value = Tensor,
  LossOptions extends object | undefined = object | undefined,
> extends NamedRuntime<Inputs, Target, Output, LossOptions> {
  static override readonly scheduleName: ScheduleName = 'GPipe';
}

/** One forward, one backward. @example new Schedule1F1B(stage, { microbatches: 8, lossFn }) */
export class Schedule1F1B<
  Inputs extends readonly Value[] = readonly Tensor[],
  Target extends Value = Tensor,
  Output extends Value = Tensor,
  LossOptions extends object | undefined = object | undefined,
> extends NamedRuntime<Inputs, Target, Output, LossOptions> {
  static override readonly scheduleName: ScheduleName = '1F1B';
}

/** Several stages per rank, breadth first. @example new ScheduleLoopedBFS([first, second], { microbatches: 8, lossFn }) */
export class ScheduleLoopedBFS<
  Inputs extends readonly Value[] = readonly Tensor[],
  Target extends Value = Tensor,
  Output extends Value = Tensor,
  LossOptions extends object | undefined = object | undefined,
> extends NamedRuntime<Inputs, Target, Output, LossOptions> {
  static override readonly scheduleName: ScheduleName = 'LoopedBFS';
}

/** Several stages per rank, one forward, one backward. @example new ScheduleInterleaved1F1B([first, second], { microbatches: 8, lossFn }) */
export class ScheduleInterleaved1F1B<
  Inputs extends readonly Value[] = readonly Tensor[],
  Target extends Value = Tensor,
  Output extends Value = Tensor,
  LossOptions extends object | undefined = object | undefined,
> extends NamedRuntime<Inputs, Target, Output, LossOptions> {
  static override readonly scheduleName: ScheduleName = 'Interleaved1F1B';
}

/** Several stages per rank, the backward in two halves. @example new ScheduleInterleavedZeroBubble([first, second], { microbatches: 8, lossFn }) */
export class ScheduleInterleavedZeroBubble<
  Inputs extends readonly Value[] = readonly Tensor[],
  Target extends Value = Tensor,
  Output extends Value = Tensor,
  LossOptions extends object | undefined = object | undefined,
> extends NamedRuntime<Inputs, Target, Output, LossOptions> {
  static override readonly scheduleName: ScheduleName = 'InterleavedZeroBubble';
}

/** Two stages per rank in a V, the backward in two halves. @example new ScheduleZBVZeroBubble([first, second], { microbatches: 8, lossFn }) */
export class ScheduleZBVZeroBubble<
  Inputs extends readonly Value[] = readonly Tensor[],
  Target extends Value = Tensor,
  Output extends Value = Tensor,
  LossOptions extends object | undefined = object | undefined,
> extends NamedRuntime<Inputs, Target, Output, LossOptions> {
  static override readonly scheduleName: ScheduleName = 'ZBVZeroBubble';
}

/** Two stages per rank in a V, forwards and backwards paired. @example new ScheduleDualPipeV([first, second], { microbatches: 8, lossFn }) */
export class ScheduleDualPipeV<
  Inputs extends readonly Value[] = readonly Tensor[],
  Target extends Value = Tensor,
  Output extends Value = Tensor,
  LossOptions extends object | undefined = object | undefined,
> extends NamedRuntime<Inputs, Target, Output, LossOptions> {
  static override readonly scheduleName: ScheduleName = 'DualPipeV';
}

const classes = [
  ScheduleForwardOnly,
  ScheduleGPipe,
  Schedule1F1B,
  ScheduleLoopedBFS,
  ScheduleInterleaved1F1B,
  ScheduleInterleavedZeroBubble,
  ScheduleZBVZeroBubble,
  ScheduleDualPipeV,
];

/** A class whose runtimes run one schedule. */
export type ScheduleClass = new <
  Inputs extends readonly Value[] = readonly Tensor[],
  Target extends Value = Tensor,
  Output extends Value = Tensor,
  LossOptions extends object | undefined = object | undefined,
>(
  stages: Stages,
  microbatches: number | RuntimeOptions<Target, Output, LossOptions>,
  options?: RuntimeOptions<Target, Output, LossOptions>,
) => PipelineRuntime<Inputs, Target, Output, LossOptions>;

/**
 * The class of a schedule by its name, in any case; a runtime of that schedule where PyTorch has no such class.
 *
 * @example const runtime = new (getScheduleClass('1f1b'))(stage, { microbatches: 8, lossFn })
 */
export function getScheduleClass(name: string): ScheduleClass {
  const found = findSchedule(name).name;
  return (
    classes.find(({ scheduleName }) => scheduleName === found) ??
    class<
      Inputs extends readonly Value[],
      Target extends Value,
      Output extends Value,
      LossOptions extends object | undefined,
    > extends NamedRuntime<Inputs, Target, Output, LossOptions> {
      static override readonly scheduleName = found;
    }
  );
}
