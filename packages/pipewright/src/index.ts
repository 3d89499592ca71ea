/** @file Pipeline-parallel training and inference: microbatches, stages, the runtime, the graph front end, launching. */
/// <reference types="node" preserve="true" />
export * from './base/errors.ts';
export * as tree from './base/tree.ts';
export * from './checkpoint/index.ts';
export * from './data/index.ts';
export { GraphModule, type GraphModuleOptions } from './execute/graph-module.ts';
export * from './graph/builder.ts';
export { registerCustomFunction } from './graph/custom-functions.ts';
export { type Expression, evaluate, parseExpression } from './graph/expression.ts';
export * from './graph/graph.ts';
export type { GraphProgram, GraphState } from './graph/graph-program.ts';
export { pipeSplit } from './graph/mark.ts';
export * from './graph/print.ts';
export {
  annotateSplitPoints,
  PipeSequential,
  SplitPoint,
  type SplitSpec,
} from './graph/split-point.ts';
export * from './graph/validate.ts';
export { tensorBytes, type ValueMemory, valueMemory } from './graph/value-memory.ts';
export * from './launch/index.ts';
export * from './microbatch/index.ts';
export * from './parallel/index.ts';
export { DetachExecutor, nullCoalesceAdd, PipeExecutor, stageBackward } from './pipe/executor.ts';
export {
  findLossOutput,
  insertSymbolicBackward,
  type LossSpec,
  LossWrapper,
  TrivialLossWrapper,
} from './pipe/loss.ts';
export { drawPipe, formatBytes, formatFlops, type PictureOptions } from './pipe/picture.ts';
export {
  type BuildStageOptions,
  buildStage,
  Pipe,
  type PipeInfo,
  type PipeOptions,
  type StageWiring,
} from './pipe/pipe.ts';
export { type PipelineOptions, pipeline } from './pipe/pipeline.ts';
export { describePipe, type PipeReport, type ReportedValue, type StageReport } from './pipe/report.ts';
export type { ReplicatedParameter } from './pipe/state.ts';
export * from './plan/index.ts';
export {
  type DescribePt2Options,
  describePt2,
  type Pt2Description,
  type Pt2Tensor,
  type Pt2Tensors,
  type Pt2Value,
} from './pt2/describe-pt2.ts';
export { type LoadPt2Options, loadPt2 } from './pt2/load-pt2.ts';
export * from './recovery/index.ts';
export * from './runtime/index.ts';
export { type BalanceOptions, cutAtModules, cutBalanced, withoutMarks } from './split/cut.ts';
export { measureCosts } from './split/measure.ts';
export {
  MultiUseParameterConfig,
  type MultiUseParamSpec,
  type MultiUseRule,
} from './split/multi-use.ts';
export * from './split/parts.ts';
export type { SharedValues } from './split/recompute.ts';
export { type SplitGraphOptions, splitGraph } from './split/split.ts';
export * from './stage/index.ts';
export type { DynamicShapes, FreeDims } from './trace/inputs.ts';
export { type TracedProgram, type TraceOptions, traceModule } from './trace/trace.ts';
