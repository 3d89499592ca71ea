/**
 * @file What other packages of this project may use beyond the public API: the packed columns, the way to build them, and parts of
 * plans. No part of it is stable.
 */

export type { ScheduleHead } from './model/column-builder.ts';
export { RowBuilder } from './model/column-builder.ts';
export { isRecord, nearest } from './model/errors.ts';
export {
  Code,
  CompositeTable,
  codeOf,
  isCollectiveCode,
  isComposite,
  isMessage,
  isSendCode,
  kindOf,
  Layout,
  samePair,
  unpack,
  withCode,
  wordCode,
} from './model/packed.ts';
export { ScheduleBuilder } from './model/schedule-builder.ts';
export { heldPeaks } from './plan/held-peaks.ts';
export { machineProblem } from './plan/machine.ts';
export { checkPlan } from './plan/plan.ts';
export { parallelOf, pipelineMachine, stateOf, withCollectives } from './plan/plan-parallel.ts';
export type { CostSource } from './plan/plan-simulation.ts';
export { stageCosts } from './plan/plan-simulation.ts';
export { predictionOf } from './plan/refit.ts';
export { rowPeak } from './plan/row-peak.ts';
export {
  PROGRESS_ENTRY,
  PROGRESS_HEAD,
  PROGRESS_VERSION,
  ProgressHead,
  progressFileOf,
  progressRankOf,
  readProgress,
} from './recording/live-progress.ts';
export type { RecordedPlace } from './recording/recording.ts';
export { actionsOfRank, recordedPlaces, steadySteps } from './recording/recording.ts';
