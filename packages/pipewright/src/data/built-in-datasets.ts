/** @file The datasets of this folder, made again in a worker thread. */
import type { Dataset } from './dataset.ts';
import { JsonLinesDataset } from './json-lines.ts';
import { ParquetDataset, type ParquetOptions } from './parquet.ts';
import { TokenDataset, type TokenDatasetOptions } from './tokens.ts';

/** The description of a dataset for a worker. Plain data. */
type BuiltIn =
  | { readonly kind: 'tokens'; readonly path: string; readonly options: TokenDatasetOptions }
  | { readonly kind: 'lines'; readonly path: string }
  | { readonly kind: 'parquet'; readonly path: string; readonly options: ParquetOptions };

/** Makes the dataset. */
export function dataset(given: BuiltIn): Dataset | Promise<Dataset> {
  switch (given.kind) {
    case 'tokens':
      return new TokenDataset(given.path, given.options);
    case 'lines':
      return new JsonLinesDataset(given.path);
    case 'parquet':
      return ParquetDataset.open(given.path, given.options);
  }
}
