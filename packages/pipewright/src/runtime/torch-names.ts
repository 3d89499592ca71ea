/**
 * @file The schedules under PyTorch's class names: runtimes whose schedule is in the name. Any other schedule is given to
 * `PipelineRuntime` by name or as data.
 */
import { findSchedule } from '@pipewright/schedule';
import type { PipelineStage } from '../stage/pipeline-stage.ts';
import type { RuntimeOptions } from './options.ts';
import { PipelineRuntime } from './runtime.ts';

type Stages = PipelineStage | readonly PipelineStage[];

/** Runs the schedule that its class names. */
abstract class NamedRuntime extends PipelineRuntime {
  static readonly scheduleName: string;

  constructor(stages: Stages, options: RuntimeOptions) {
    super(stages, new.target.scheduleName, options);
  }
}

/** Forwards only: `step` returns the outputs. @example new ScheduleForwardOnly(stage, { microbatches: 8 }) */
export class ScheduleForwardOnly extends NamedRuntime {
  static override readonly scheduleName: string = 'ForwardOnly';
}

/** All forwards, then all backwards. @example new ScheduleGPipe(stage, { microbatches: 8, lossFn }) */
export class ScheduleGPipe extends NamedRuntime {
  static override readonly scheduleName: string = 'GPipe';
}

/** One forward, one backward. @example new Schedule1F1B(stage, { microbatches: 8, lossFn }) */
export class Schedule1F1B extends NamedRuntime {
  static override readonly scheduleName: string = '1F1B';
}

/** Several stages per rank, breadth first. @example new ScheduleLoopedBFS([first, second], { microbatches: 8, lossFn }) */
export class ScheduleLoopedBFS extends NamedRuntime {
  static override readonly scheduleName: string = 'LoopedBFS';
}

/** Several stages per rank, one forward, one backward. @example new ScheduleInterleaved1F1B([first, second], { microbatches: 8, lossFn }) */
export class ScheduleInterleaved1F1B extends NamedRuntime {
  static override readonly scheduleName: string = 'Interleaved1F1B';
}

/** Several stages per rank, the backward in two halves. @example new ScheduleInterleavedZeroBubble([first, second], { microbatches: 8, lossFn }) */
export class ScheduleInterleavedZeroBubble extends NamedRuntime {
  static override readonly scheduleName: string = 'InterleavedZeroBubble';
}

/** Two stages per rank in a V, the backward in two halves. @example new ScheduleZBVZeroBubble([first, second], { microbatches: 8, lossFn }) */
export class ScheduleZBVZeroBubble extends NamedRuntime {
  static override readonly scheduleName: string = 'ZBVZeroBubble';
}

/** Two stages per rank in a V, forwards and backwards paired. @example new ScheduleDualPipeV([first, second], { microbatches: 8, lossFn }) */
export class ScheduleDualPipeV extends NamedRuntime {
  static override readonly scheduleName: string = 'DualPipeV';
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

/**
 * The class of a schedule by its name, in any case; a runtime of that schedule where PyTorch has no such class.
 *
 * @example const runtime = new (getScheduleClass('1f1b'))(stage, { microbatches: 8, lossFn })
 */
export function getScheduleClass(name: string): new (stages: Stages, options: RuntimeOptions) => PipelineRuntime {
  const found = findSchedule(name).name;
  return (
    classes.find(({ scheduleName }) => scheduleName === found) ??
    class extends NamedRuntime {
      static override readonly scheduleName = found;
    }
  );
}
