/** @file Everything `@pipewright/schedule` offers. */

export type { Action, ActionKind, ParseActionOptions } from './action.ts';
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
} from './action.ts';
export { addSendRecv } from './add-send-recv.ts';
export { alignSlots } from './align.ts';
export type { BuildScheduleOptions } from './build-schedule.ts';
export { buildSchedule } from './build-schedule.ts';
export type { ChromeTrace, ChromeTraceOptions, TraceEvent } from './chrome-trace.ts';
export { dumpChromeTrace, toChromeTrace } from './chrome-trace.ts';
export type { ScheduleHead } from './column-builder.ts';
export { RowBuilder } from './column-builder.ts';
export type { Costs, CostTable, LinkCosts, MessageCosts, OverlapCosts, PerStage } from './costs.ts';
export type { CsvFormat, FormatCsvOptions, ParseCsvOptions } from './csv.ts';
export { formatCsv, parseCsv } from './csv.ts';
export type { ScheduleErrorCode } from './errors.ts';
export { nearest, ScheduleError } from './errors.ts';
export type { Improvement, SearchOptions } from './improve-schedule.ts';
export { improveSchedule } from './improve-schedule.ts';
export type { ReduceGradPlacement, UnshardWindow } from './local-actions.ts';
export { addReduceGrad, addUnshardReshard } from './local-actions.ts';
export type { LowerOptions } from './lower.ts';
export { lower } from './lower.ts';
export { lowerBound } from './lower-bound.ts';
export { mergeBackward } from './merge-backward.ts';
export type { OptimalOptions, Optimum } from './optimal-schedule.ts';
export { optimalSchedule } from './optimal-schedule.ts';
export type { Objective } from './order-search.ts';
export { Code, CompositeTable, codeOf, kindOf, Layout, unpack } from './packed.ts';
export type { ComputationTypeVisual } from './palette.ts';
export { computationVisuals, inkOn, toneOf, visualOrder } from './palette.ts';
export type { BarFace, Bars, Drawable, MemoryCurve, Picture } from './picture.ts';
export { FaceReader, pictureOf, pictureOfRows } from './picture.ts';
export type { PlacementOptions, PlacementStyle } from './placement.ts';
export { rankToStages, stageToRank } from './placement.ts';
export { percent, plural, quantity } from './quantity.ts';
export type { RankMemory } from './rank-memory.ts';
export { recordedSimulation } from './recorded-simulation.ts';
export type { RankRecord, RecordedAction, RecordedRank, RecordedStep, Recording } from './recording.ts';
export { meanCosts, recordedActions } from './recording.ts';
export type { RecordingSummary, ReportOptions } from './recording-report.ts';
export { recordingReport, recordingSummary, typicalStep } from './recording-report.ts';
export { recordingTrace } from './recording-trace.ts';
export { findSchedule, scheduleDefinitions, scheduleNames } from './registry.ts';
export type {
  Cell,
  Leaf,
  ScheduleColumns,
  ScheduleData,
  ScheduleDifference,
  ScheduleJson,
  ScheduleOrder,
  StageEdge,
} from './schedule.ts';
export { Schedule } from './schedule.ts';
export { ScheduleBuilder } from './schedule-builder.ts';
export type { ScheduleDefinition, ScheduleShape } from './schedule-definition.ts';
export type { SearchResult, SearchScheduleOptions, SearchStart } from './search-schedule.ts';
export { searchSchedule } from './search-schedule.ts';
export { simulate } from './simulate.ts';
export { simulateSteps } from './simulate-steps.ts';
export type { BubbleRates, CriticalStep, SimulatedAction, SimulatedMessage } from './simulation.ts';
export { Simulation } from './simulation.ts';
export { StageGraph } from './stage-graph.ts';
export type { SvgOptions } from './svg.ts';
export { renderSvg } from './svg.ts';
export type { TableMark, TableOptions } from './table.ts';
export { formatPipelineOrder, renderTable } from './table.ts';
export type { TimelineOptions } from './timeline.ts';
export { renderTimeline } from './timeline.ts';
export type { ScheduleClass } from './torch-names.ts';
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
export type { ValidateOptions } from './validate.ts';
export { validate } from './validate.ts';
export type { ChannelModel } from './validate-channels.ts';
export { findDeadlock } from './validate-channels.ts';
export type { CycleStep, ValidationRule, Violation } from './violation.ts';
export { validationRules } from './violation.ts';
export type { ScheduleOpsOptions } from './visualizer.ts';
export { addScheduleOpSpacing, getScheduleOps, visualizeSchedule } from './visualizer.ts';
