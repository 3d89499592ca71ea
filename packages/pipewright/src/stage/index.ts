/** @file Stages: pieces of the model. */
export { debugInfo } from '../base/describe.ts';
export type { StageNames } from './names.ts';
export { type BackwardStart, PipelineStage, type StageBackwardOptions } from './pipeline-stage.ts';
export type { PipelineStageOptions } from './stage-options.ts';
export type { StageInput } from './wiring.ts';
