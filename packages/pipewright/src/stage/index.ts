/** @file Stages: pieces of the model. */
export { debugInfo } from '../base/describe.ts';
export { PipelineStage, type PipelineStageOptions, type StageBackwardOptions } from './pipeline-stage.ts';
export type { StageInput } from './wiring.ts';
