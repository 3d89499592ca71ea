/** @file Models as graphs: data, rules, text, execution, `.pt2` files. */

export { type BalanceOptions, cutAtModules, cutBalanced, withoutMarks } from './cut.ts';
export { measureCosts } from './cut-measure.ts';
export { type Expression, evaluate, parseExpression } from './expression.ts';
export * from './graph.ts';
export * from './graph-builder.ts';
export { GraphModule, type GraphModuleOptions, type GraphState } from './graph-module.ts';
export {
  type BuildStageOptions,
  buildStage,
  type GraphProgram,
  Pipe,
  type PipeInfo,
  type PipeOptions,
  type StageWiring,
} from './pipe.ts';
export { DetachExecutor, nullCoalesceAdd, PipeExecutor, stageBackward } from './pipe-executor.ts';
export {
  findLossOutput,
  insertSymbolicBackward,
  type LossSpec,
  LossWrapper,
  TrivialLossWrapper,
} from './pipe-loss.ts';
export { drawPipe, formatBytes, formatFlops, type PictureOptions } from './pipe-picture.ts';
export { describePipe, type PipeReport, type ReportedValue, type StageReport } from './pipe-report.ts';
export type { ReplicatedParameter } from './pipe-state.ts';
export { type PipelineOptions, pipeline } from './pipeline.ts';
export * from './print-graph.ts';
export {
  type DescribePt2Options,
  describePt2,
  type Pt2Description,
  type Pt2Tensor,
  type Pt2Tensors,
  type Pt2Value,
} from './pt2/describe-pt2.ts';
export { type LoadPt2Options, loadPt2 } from './pt2/load-pt2.ts';
export { type SplitGraphOptions, splitGraph } from './split.ts';
export * from './split-parts.ts';
export {
  annotateSplitPoints,
  PipeSequential,
  pipeSplit,
  SplitPoint,
  type SplitSpec,
} from './split-point.ts';
export type { SharedValues } from './split-recompute.ts';
export { type TracedProgram, type TraceOptions, trace } from './trace.ts';
export { registerCustomFunction } from './trace-functions.ts';
export type { DynamicShapes, FreeDims } from './trace-inputs.ts';
export * from './validate-graph.ts';
export { tensorBytes, type ValueMemory, valueMemory } from './value-memory.ts';
