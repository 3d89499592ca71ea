/** @file Everything `@pipewright/schedule` offers. */

export type { CostTable } from './costs/cost-table.ts';
export type {
  CollectiveCosts,
  CoreCosts,
  Costs,
  LinkCosts,
  MessageCosts,
  OverheadCosts,
  OverlapCosts,
  PerStage,
  Sharding,
} from './costs/costs.ts';
export type { ChromeTrace, ChromeTraceOptions, TraceEvent } from './draw/chrome-trace.ts';
export { dumpChromeTrace, toChromeTrace } from './draw/chrome-trace.ts';
export type { ComputationTypeVisual } from './draw/palette.ts';
export { computationVisuals, inkOn, toneOf, visualOrder } from './draw/palette.ts';
export type { BarFace, Bars, Drawable, MemoryCurve, Picture } from './draw/picture.ts';
export { FaceReader, pictureOf, pictureOfRows } from './draw/picture.ts';
export { percent, plural, quantity } from './draw/quantity.ts';
export type { SvgOptions } from './draw/svg/svg.ts';
export { renderSvg } from './draw/svg/svg.ts';
export type { TableMark, TableOptions } from './draw/table.ts';
export { formatPipelineOrder, renderTable } from './draw/table.ts';
export type { TimelineOptions } from './draw/timeline.ts';
export { renderTimeline } from './draw/timeline.ts';
export { alignSlots } from './generate/align.ts';
export type { BuildScheduleOptions } from './generate/build-schedule.ts';
export { buildSchedule } from './generate/build-schedule.ts';
export { findSchedule, scheduleDefinitions, scheduleNames } from './generate/registry.ts';
export type {
  ScheduleAlias,
  ScheduleDefinition,
  ScheduleName,
  ScheduleShape,
} from './generate/schedules/definition.ts';
export type { ReduceGradPlacement, UnshardWindow } from './lower/local-actions.ts';
export { addReduceGrad, addUnshardReshard } from './lower/local-actions.ts';
export type { DataParallelPlan, LowerOptions } from './lower/lower.ts';
export { lower } from './lower/lower.ts';
export { mergeBackward } from './lower/merge-backward.ts';
export { addSendRecv } from './lower/torch-send-recv.ts';
export type { Action, ActionKind, ParseActionOptions } from './model/action.ts';
export {
  action,
  actionKinds,
  actionsEqual,
  ComputationType,
  formatAction,
  isComputeOp,
  overlap,
  parseAction,
  parseComputationType,
  profilerRangeName,
} from './model/action.ts';
export type { CsvFormat, FormatCsvOptions, ParseCsvOptions } from './model/csv.ts';
export { formatCsv, parseCsv } from './model/csv.ts';
export type { ScheduleErrorCode } from './model/errors.ts';
export { ScheduleError } from './model/errors.ts';
export type { PlacementOptions, PlacementStyle } from './model/placement.ts';
export { rankToStages, stageToRank } from './model/placement.ts';
export type {
  Cell,
  Leaf,
  ScheduleColumns,
  ScheduleData,
  ScheduleDifference,
  ScheduleJson,
  ScheduleOrder,
  StageEdge,
} from './model/schedule.ts';
export { Schedule } from './model/schedule.ts';
export { StageGraph } from './model/stage-graph.ts';
export type { DataParallelRules, Residency, ShardingLevel } from './parallel/data-parallel.ts';
export { shardingLevels } from './parallel/data-parallel.ts';
export type { Compared, PlanComparison } from './plan/compare.ts';
export { comparePlan, formatComparison } from './plan/compare.ts';
export type {
  HeldValues,
  PipelinePlan,
  PlanMachine,
  PlanParallel,
  Prediction,
  StageCosts,
  StageInputMemory,
  StageMemory,
} from './plan/plan.ts';
export { isPlan, readPlan } from './plan/plan.ts';
export { planCosts, planSchedule, planSimulation } from './plan/plan-simulation.ts';
export { predictPlan, refitPlan } from './plan/refit.ts';
export type {
  ActivationGranularity,
  ActivationLivenessOptions,
  PipelineActivationLiveness,
} from './pytorch/activation-liveness.ts';
export { analyzePipelineActivationLiveness } from './pytorch/activation-liveness.ts';
export { simulateSteps } from './pytorch/dry-run.ts';
export type { ScheduleOpsOptions } from './pytorch/visualizer.ts';
export { addScheduleOpSpacing, getScheduleOps, visualizeSchedule } from './pytorch/visualizer.ts';
export type {
  LiveLine,
  LivePlace,
  LiveRun,
  LiveStatus,
  LiveStep,
  LiveSteps,
} from './recording/live-line.ts';
export { liveFileOf, liveRankOf, parseLiveLine } from './recording/live-line.ts';
export type { LiveProgress } from './recording/live-progress.ts';
export { LiveRunReader } from './recording/live-run.ts';
export type { LiveStepSummary } from './recording/live-series.ts';
export { meanCosts } from './recording/mean-costs.ts';
export type {
  RankRecord,
  RecordedAction,
  RecordedMachine,
  RecordedRank,
  RecordedStep,
  Recording,
} from './recording/recording.ts';
export { recordedActions } from './recording/recording.ts';
export type { RecordingSummary, ReportOptions } from './recording/report.ts';
export { recordingReport, recordingSummary, typicalStep } from './recording/report.ts';
export { recordedSimulation } from './recording/simulation.ts';
export { recordingTrace } from './recording/trace.ts';
export type { Improvement, SearchOptions } from './search/improve-schedule.ts';
export { improveSchedule } from './search/improve-schedule.ts';
export { lowerBound } from './search/lower-bound.ts';
export type { OptimalOptions, Optimum } from './search/optimal-schedule.ts';
export { optimalSchedule } from './search/optimal-schedule.ts';
export type { Objective } from './search/order-search.ts';
export type { SearchResult, SearchScheduleOptions, SearchStart } from './search/search-schedule.ts';
export { searchSchedule } from './search/search-schedule.ts';
export type { RankMemory } from './simulate/rank-memory.ts';
export { simulate } from './simulate/simulate.ts';
export type { BubbleRates, CriticalStep, SimulatedAction, SimulatedMessage } from './simulate/simulation.ts';
export { Simulation } from './simulate/simulation.ts';
export type { ChannelModel } from './validate/channels.ts';
export { findDeadlock } from './validate/channels.ts';
export type { ValidateOptions } from './validate/validate.ts';
export { validate } from './validate/validate.ts';
export type { CycleStep, ValidationRule, Violation } from './validate/violation.ts';
export { validationRules } from './validate/violation.ts';
