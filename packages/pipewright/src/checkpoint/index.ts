/** @file Checkpoints: a run saved while it goes on, and loaded at any layout. */

export { type ConvertOptions, convertCheckpoint, type ExportOptions, exportWeights } from './convert.ts';
export { type FoundCheckpoint, findCheckpoint, hasCheckpoint, listCheckpoints, readCheckpoint } from './folder.ts';
export { type LoadedCheckpoint, type LoadOptions as LoadCheckpointOptions, loadCheckpoint } from './load.ts';
export type {
  Manifest,
  SavedLayout,
  StoredFile,
  StoredGroup,
  StoredPiece,
  StoredState,
  StoredTensor,
} from './manifest.ts';
export type { Rename, RenamedTensor } from './rename.ts';
export { type CheckpointSave, type SaveOptions as SaveCheckpointOptions, saveCheckpoint } from './save.ts';
export type { SavedOptimizer } from './state-tensors.ts';
export type { SavedGenerator, TrainingState } from './training-state.ts';
export { type CheckpointProblem, type CheckpointSummary, summarizeCheckpoints, verifyCheckpoint } from './verify.ts';
export {
  type LoadedWeights,
  type LoadWeightsOptions,
  loadWeights,
  type SaveWeightsOptions,
  saveWeights,
  type WeightsOptions,
} from './weights.ts';
