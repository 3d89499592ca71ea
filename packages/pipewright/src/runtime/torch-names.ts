/**
 * @file The schedules under PyTorch's class names: runtimes whose schedule is in the name. Any other schedule is given to
 * `PipelineRuntime` by name or as data.
 */
import { findSchedule } from '@pipewright/schedule';
import type { PipelineStage } from '../stage/pipeline-stage.ts';
import type { RuntimeOptions } from './options.ts';
import { PipelineRuntime } from './runtime.ts';

type Stages = PipelineStage | readonly PipelineStage[];

/** Forwards only: `step` returns the outputs. @example new ScheduleForwardOnly(stage, { microbatches: 8 }) */
export class ScheduleForwardOnly extends PipelineRuntime {
  constructor(stages: Stages, options: RuntimeOptions) {
    super(stages, 'ForwardOnly', options);
  }
}

/** All forwards, then all backwards. @example new ScheduleGPipe(stage, { microbatches: 8, lossFn }) */
export class ScheduleGPipe extends PipelineRuntime {
  constructor(stages: Stages, options: RuntimeOptions) {
    super(stages, 'GPipe', options);
  }
}

/** One forward, one backward. @example new Schedule1F1B(stage, { microbatches: 8, lossFn }) */
export class Schedule1F1B extends PipelineRuntime {
  constructor(stages: Stages, options: RuntimeOptions) {
    super(stages, '1F1B', options);
  }
}

/** Several stages per rank, breadth first. @example new ScheduleLoopedBFS([first, second], { microbatches: 8, lossFn }) */
export class ScheduleLoopedBFS extends PipelineRuntime {
  constructor(stages: Stages, options: RuntimeOptions) {
    super(stages, 'LoopedBFS', options);
  }
}

/** Several stages per rank, one forward, one backward. @example new ScheduleInterleaved1F1B([first, second], { microbatches: 8, lossFn }) */
export class ScheduleInterleaved1F1B extends PipelineRuntime {
  constructor(stages: Stages, options: RuntimeOptions) {
    super(stages, 'Interleaved1F1B', options);
  }
}

/** Several stages per rank, the backward in two halves. @example new ScheduleInterleavedZeroBubble([first, second], { microbatches: 8, lossFn }) */
export class ScheduleInterleavedZeroBubble extends PipelineRuntime {
  constructor(stages: Stages, options: RuntimeOptions) {
    super(stages, 'InterleavedZeroBubble', options);
  }
}

/** Two stages per rank in a V, the backward in two halves. @example new ScheduleZBVZeroBubble([first, second], { microbatches: 8, lossFn }) */
export class ScheduleZBVZeroBubble extends PipelineRuntime {
  constructor(stages: Stages, options: RuntimeOptions) {
    super(stages, 'ZBVZeroBubble', options);
  }
}

/** Two stages per rank in a V, forwards and backwards paired. @example new ScheduleDualPipeV([first, second], { microbatches: 8, lossFn }) */
export class ScheduleDualPipeV extends PipelineRuntime {
  constructor(stages: Stages, options: RuntimeOptions) {
    super(stages, 'DualPipeV', options);
  }
}

const classes: Readonly<Record<string, new (stages: Stages, options: RuntimeOptions) => PipelineRuntime>> = {
  ForwardOnly: ScheduleForwardOnly,
  GPipe: ScheduleGPipe,
  '1F1B': Schedule1F1B,
  LoopedBFS: ScheduleLoopedBFS,
  Interleaved1F1B: ScheduleInterleaved1F1B,
  InterleavedZeroBubble: ScheduleInterleavedZeroBubble,
  ZBVZeroBubble: ScheduleZBVZeroBubble,
  DualPipeV: ScheduleDualPipeV,
};

/**
 * The class of a schedule by its name, in any case; a runtime of that schedule where PyTorch has no such class.
 *
 * @example const runtime = new (getScheduleClass('1f1b'))(stage, { microbatches: 8, lossFn })
 */
export function getScheduleClass(name: string): new (stages: Stages, options: RuntimeOptions) => PipelineRuntime {
  const found = findSchedule(name).name;
  return (
    classes[found] ??
    class extends PipelineRuntime {
      constructor(stages: Stages, options: RuntimeOptions) {
        super(stages, found, options);
      }
    }
  );
}
