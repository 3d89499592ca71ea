/** @file Running schedules. */

export type { Value } from '../base/value.ts';
export { Recorder, type RecorderOptions, type StepTimes } from '../recording/recorder.ts';
export { StepError } from './errors.ts';
export type { ClipOptions } from './gradients/grad-norm.ts';
export type { AnyOptimizer, OptimizerStep, OptimizerStepOptions } from './gradients/optimizer-step.ts';
export {
  type ActionHook,
  type AnyRuntime,
  type CustomFunction,
  type LossCall,
  type LossFunction,
  type LossModule,
  type PipelineContext,
  type RuntimeOptions,
  type StepArguments,
  type StepOptions,
} from './options.ts';
export { PipelineRuntime } from './runtime.ts';
export {
  getScheduleClass,
  Schedule1F1B,
  type ScheduleClass,
  ScheduleDualPipeV,
  ScheduleForwardOnly,
  ScheduleGPipe,
  ScheduleInterleaved1F1B,
  ScheduleInterleavedZeroBubble,
  ScheduleLoopedBFS,
  ScheduleZBVZeroBubble,
} from './torch-names.ts';
