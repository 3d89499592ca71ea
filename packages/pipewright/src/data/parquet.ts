/** @file Rows of Parquet files, read with the optional package `hyparquet`. Row groups are kept in memory once they are read. */
import { resolve } from 'node:path';
import { checkArgument, checkCount, checkOptions, checkPath, show } from '../base/checks.ts';
import { PipelineError } from '../base/errors.ts';
import { builtInModule } from './built-in.ts';
import { Dataset, type DatasetModule } from './dataset.ts';

/** A row: values by column. */
export type ParquetRow = Readonly<Record<string, unknown>>;

/** The options of a Parquet dataset. */
export interface ParquetOptions {
  /** The columns of a sample. Default: all. */
  readonly columns?: readonly string[] | undefined;
  /** Row groups that are kept in memory. Default 4. */
  readonly keepGroups?: number | undefined;
}

/** The part of `hyparquet` that is used. */
interface Hyparquet {
  asyncBufferFromFile(path: string): Promise<ParquetFile>;
  parquetMetadataAsync(file: ParquetFile): Promise<ParquetMetadata>;
  parquetReadObjects(options: object): Promise<ParquetRow[]>;
}
interface ParquetFile {
  readonly byteLength: number;
}
interface ParquetMetadata {
  readonly num_rows: bigint;
  readonly row_groups: readonly { readonly num_rows: bigint }[];
  readonly schema: readonly { readonly name: string }[];
}

/** Loads an optional package; null where it is not installed. */
async function optional(name: string): Promise<unknown> {
  try {
    return await import(name);
  } catch (error) {
    if ((error as { code?: unknown }).code === 'ERR_MODULE_NOT_FOUND') return null;
    throw error;
  }
}

/** The parts that a dataset is made of. */
interface Opened {
  readonly path: string;
  readonly options: ParquetOptions;
  readonly library: Hyparquet;
  readonly compressors: unknown;
  readonly file: ParquetFile;
  readonly metadata: ParquetMetadata;
}

/**
 * Rows of a Parquet file. Samples are promises, so the loader needs workers, or `for await`.
 *
 * @example const rows = await ParquetDataset.open('train.parquet', { columns: ['text'] }); await rows.getItem(0)
 */
export class ParquetDataset extends Dataset<ParquetRow> {
  readonly length: number;
  private readonly opened: Opened;
  private readonly begins: number[] = [];
  private readonly groups = new Map<number, Promise<ParquetRow[]>>();
  private readonly keepGroups: number;

  private constructor(opened: Opened) {
    super();
    this.opened = opened;
    this.keepGroups = checkCount('ParquetDataset', 'keepGroups', opened.options.keepGroups ?? 4);
    let rows = 0;
    for (const group of opened.metadata.row_groups) {
      this.begins.push(rows);
      rows += Number(group.num_rows);
    }
    this.length = rows;
  }

  /** Opens a file and reads its metadata. */
  static async open(path: string, options: ParquetOptions = {}): Promise<ParquetDataset> {
    checkPath('ParquetDataset.open', 'the file', path);
    checkOptions('ParquetDataset.open', options, ['columns', 'keepGroups']);
    const { columns = [] } = options;
    const areNames = Array.isArray(columns) && columns.every((column) => typeof column === 'string');
    checkArgument('ParquetDataset.open', areNames, ['columns', columns], 'an array of names');
    const library = (await optional('hyparquet')) as Hyparquet | null;
    if (library === null)
      throw new PipelineError(
        'MISSING_PACKAGE',
        'ParquetDataset: Parquet files are read with hyparquet, which is not installed; run npm install hyparquet hyparquet-compressors',
      );
    const compressors = ((await optional('hyparquet-compressors')) as { readonly compressors: unknown } | null)
      ?.compressors;
    const full = resolve(path);
    try {
      const file = await library.asyncBufferFromFile(full);
      const metadata = await library.parquetMetadataAsync(file);
      const missing = options.columns?.find((column) => !metadata.schema.some(({ name }) => name === column));
      if (missing !== undefined)
        throw new Error(
          `there is no column '${missing}'; there are ${metadata.schema
            .slice(1)
            .map(({ name }) => name)
            .join(', ')}`,
        );
      return new ParquetDataset({ path: full, options, library, compressors, file, metadata });
    } catch (cause) {
      if (cause instanceof PipelineError) throw cause;
      throw new PipelineError(
        'BAD_DATASET',
        `ParquetDataset: ${path}: ${(cause as Error).message}`,
        { path },
        { cause },
      );
    }
  }

  override get source(): DatasetModule {
    return { module: builtInModule, data: { kind: 'parquet', path: this.opened.path, options: this.opened.options } };
  }

  async getItem(index: number): Promise<ParquetRow> {
    if (!Number.isInteger(index) || index < 0 || index >= this.length)
      throw new PipelineError('BAD_INPUT', `ParquetDataset: there is no row ${show(index)}; there are ${this.length}`);
    const group = this.begins.findLastIndex((begin) => begin <= index);
    const rows = await this.readGroup(group);
    return rows[index - this.begins[group]!]!;
  }

  private readGroup(group: number): Promise<ParquetRow[]> {
    const known = this.groups.get(group);
    if (known !== undefined) {
      this.groups.delete(group); // the one that was used last is kept longest
      this.groups.set(group, known);
      return known;
    }
    const { library, file, metadata, compressors, options } = this.opened;
    const { columns } = options;
    const rowStart = this.begins[group]!;
    const rowEnd = this.begins[group + 1] ?? this.length;
    const rows = library.parquetReadObjects({ file, metadata, rowStart, rowEnd, columns, compressors });
    this.groups.set(group, rows);
    for (const old of this.groups.keys()) {
      if (this.groups.size <= this.keepGroups) break;
      this.groups.delete(old);
    }
    return rows;
  }
}
