/** @file Microbatches: cutting a batch, and merging results. */
export { BlockMask, type BlockMaskParts, type MaskMod } from './block-mask.ts';
export {
  type ChunkSpec,
  CustomReducer,
  DEFAULT_CHUNK_DIM,
  type DimTree,
  LossReducer,
  Replicate,
  type SpecTree,
  sumReducer,
  TensorChunkSpec,
} from './chunk-spec.ts';
export {
  type BlockMaskSizes,
  createBlockMask,
  type FlexAttentionOptions,
  flexAttention,
  type ScoreMod,
  type ScorePlace,
} from './flex-attention.ts';
export type { GivenMicrobatches } from './given.ts';
export { type MergeOptions, mergeChunks } from './merge.ts';
export {
  type Args,
  type Batch,
  chunkSizes,
  type Kwargs,
  type Microbatches,
  type SplitBatchOptions,
  type SplitOptions,
  splitArgsKwargsIntoChunks,
  splitBatch,
} from './split.ts';
