/** @file Stages: pieces of the model. */
export { debugInfo } from '../base/describe.ts';
export { type BackwardOptions, PipelineStage, type PipelineStageOptions } from './pipeline-stage.ts';
export type { StageInput } from './wiring.ts';
