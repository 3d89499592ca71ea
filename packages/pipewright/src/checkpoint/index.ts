/** @file Checkpoints: a run saved while it goes on, and loaded at any layout. */

export { type ConvertOptions, convertCheckpoint, type ExportOptions, exportWeights } from './convert.ts';
export {
  type FoundCheckpoint,
  findCheckpoint,
  hasCheckpoint,
  listCheckpoints,
  readCheckpoint,
} from './format/folder.ts';
export type {
  Manifest,
  SavedLayout,
  StoredFile,
  StoredGroup,
  StoredPiece,
  StoredState,
  StoredTensor,
} from './format/manifest.ts';
export { type LoadedCheckpoint, type LoadOptions as LoadCheckpointOptions, loadCheckpoint } from './reading/load.ts';
export {
  type CheckpointProblem,
  type CheckpointSummary,
  summarizeCheckpoints,
  verifyCheckpoint,
} from './reading/verify.ts';
export type { SavedOptimizer } from './state/state-tensors.ts';
export type { SavedGenerator, TrainingState } from './state/training-state.ts';
export type { Rename, RenamedTensor } from './weights/rename.ts';
export { type SaveWeightsOptions, saveWeights } from './weights/save-weights.ts';
export {
  type LoadedWeights,
  type LoadWeightsOptions,
  loadWeights,
  type WeightsOptions,
} from './weights/weights.ts';
export { type CheckpointSave, type SaveOptions as SaveCheckpointOptions, saveCheckpoint } from './writing/save.ts';
