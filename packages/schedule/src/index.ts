/** @file Everything `@pipewright/schedule` offers. */
export { ComputationType, action, actionKinds, actionsEqual, formatAction, isComputeOp, overlap, parseAction, parseComputationType, profilerRangeName } from './action.ts';
export type { Action, ActionKind, ParseActionOptions } from './action.ts';
export { ScheduleError } from './errors.ts';
export type { ScheduleErrorCode } from './errors.ts';
export { Code, CompositeTable, Layout, codeOf, kindOf, unpack } from './packed.ts';
export { Schedule } from './schedule.ts';
export type { Cell, Leaf, ScheduleColumns, ScheduleData, ScheduleDifference, ScheduleJson, ScheduleOrder, StageEdge } from './schedule.ts';
export { RowBuilder, ScheduleBuilder } from './schedule-builder.ts';
export type { ScheduleHead } from './schedule-builder.ts';
export { alignSlots } from './align.ts';
export { buildSchedule } from './build-schedule.ts';
export type { BuildScheduleOptions } from './build-schedule.ts';
export { mergeBackward } from './merge-backward.ts';
export { rankToStages, stageToRank } from './placement.ts';
export type { PlacementOptions, PlacementStyle } from './placement.ts';
export { findSchedule, scheduleDefinitions, scheduleNames } from './registry.ts';
export type { ScheduleDefinition, ScheduleShape } from './schedule-definition.ts';
export { StageGraph } from './stage-graph.ts';
