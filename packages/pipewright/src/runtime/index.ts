/** @file Running schedules. */

export { Recorder, type RecorderOptions, type StepTimes } from '../recording/recorder.ts';
export { StepError } from './errors.ts';
export type { ClipOptions } from './grad-norm.ts';
export {
  type ActionHook,
  type CustomFunction,
  type LossFunction,
  type PipelineContext,
  type RuntimeOptions,
  type StepOptions,
} from './options.ts';
export { PipelineRuntime } from './runtime.ts';
export {
  getScheduleClass,
  Schedule1F1B,
  ScheduleDualPipeV,
  ScheduleForwardOnly,
  ScheduleGPipe,
  ScheduleInterleaved1F1B,
  ScheduleInterleavedZeroBubble,
  ScheduleLoopedBFS,
  ScheduleZBVZeroBubble,
} from './torch-names.ts';
