/** @file Data: datasets, samplers, and the loader. */
export { defaultCollate } from './collate.ts';
export {
  ConcatDataset,
  Dataset,
  type DatasetModule,
  IterableDataset,
  Subset,
  TensorDataset,
} from './dataset.ts';
export { JsonLinesDataset } from './json-lines.ts';
export { DataLoader, type DataLoaderOptions, type DataLoaderState } from './loader.ts';
export { ParquetDataset, type ParquetOptions, type ParquetRow } from './parquet.ts';
export type { CollateFn } from './reader.ts';
export {
  BatchSampler,
  DistributedSampler,
  type DistributedSamplerOptions,
  RandomSampler,
  type RandomSamplerOptions,
  Sampler,
  SequentialSampler,
  type Sized,
  SubsetRandomSampler,
  WeightedRandomSampler,
} from './sampler.ts';
export { TokenDataset, type TokenDatasetOptions, type TokenType, writeTokens } from './tokens.ts';
