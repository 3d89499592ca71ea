/** @file Converts checkpoints: to whole tensors in a chosen number of files, or to plain weights for other programs. */
import { randomUUID } from 'node:crypto';
import { readFileSync } from 'node:fs';
import { basename, dirname, join, resolve } from 'node:path';
import { type DType, dtypes, noGrad, saveSafetensors, scope, type Tensor } from '@pipewright/torch';
import { makeFolder, writeFile } from '@pipewright/torch/files';
import { layoutSafetensors } from '@pipewright/torch/internal';
import { checkCount, checkOptions, checkPath, show } from '../base/checks.ts';
import { PipelineError } from '../base/errors.ts';
import { INDEX } from './format/file-names.ts';
import { findCheckpoint, freeName } from './format/folder.ts';
import type { StoredTensor } from './format/manifest.ts';
import { elementsOf } from './format/piece.ts';
import { CheckpointReader } from './reading/reader.ts';
import { type Rename, renamed } from './weights/rename.ts';
import { hiddenBy } from './weights/weights-folder.ts';
import { writeCheckpoint } from './writing/commit.ts';
import { realFileSystem } from './writing/file-system.ts';
import { SnapshotMemory } from './writing/snapshot-memory.ts';
import type { FileJob } from './writing/write-job.ts';

/** How a checkpoint is converted. */
export interface ConvertOptions {
  /** Number of files of weights, and of optimizer state; default 1. */
  readonly files?: number | undefined;
}

/**
 * Writes a checkpoint anew with whole tensors, whatever shards it was saved from, into the folder `to`; returns where it is. Everything
 * else stays as it was saved.
 *
 * @example convertCheckpoint('runs/gpt', 'runs/whole', { files: 4 })
 */
export function convertCheckpoint(from: string, to: string, options: ConvertOptions = {}): string {
  checkPath('convertCheckpoint', 'the folder to read', from);
  checkPath('convertCheckpoint', 'the folder to write', to);
  checkOptions('convertCheckpoint', options, ['files']);
  const count = checkCount('convertCheckpoint', 'files', options.files ?? 1);
  using reader = new CheckpointReader(findCheckpoint(from));
  const { manifest } = reader;
  makeFolder(to);
  const name = freeName(to, manifest.step);
  const texts: Record<string, string> = {};
  for (const file of Object.keys(manifest.files)) {
    if (file.endsWith('.safetensors') || file === INDEX) continue;
    reader.checkText(file);
    texts[file] = readFileSync(join(reader.path, file), 'utf8');
  }
  const all = Object.entries(manifest.tensors);
  const files = [
    ...filesOf(
      'model',
      all.filter(([, { kind }]) => kind !== 'optimizer'),
      { reader, count },
    ),
    ...filesOf(
      'optimizer',
      all.filter(([, { kind }]) => kind === 'optimizer'),
      { reader, count },
    ),
  ];
  const { step, layout, schedule, aliases, groups, states } = manifest;
  writeCheckpoint(
    {
      ...{ folder: to, name, attempt: randomUUID(), rank: 0, ranks: 1, step, files, groups, layout, schedule, aliases },
      ...{ states: {}, merged: states, isWhole: true, texts, keep: null, timeoutMs: 1 },
    },
    realFileSystem,
  );
  return join(to, name);
}

type Named = readonly [string, StoredTensor];

interface Source {
  readonly reader: CheckpointReader;
  readonly count: number;
}

/** Writes tensors to a number of files of about equal size, with memory for one file's chunks at a time. */
function filesOf(kind: string, tensors: readonly Named[], { reader, count }: Source): FileJob[] {
  const bytesOf = ([, { dtype, shape }]: Named): number => typeOf(dtype).itemSize * elementsOf(shape);
  const parts = divide(tensors, Math.min(count, Math.max(1, tensors.length)), bytesOf).filter(
    (part) => part.length > 0,
  );
  const pad = (value: number): string => String(value).padStart(5, '0');
  return parts.map((part, i) => {
    const items = [...part].sort(
      ([a, first], [b, second]) => typeOf(second.dtype).itemSize - typeOf(first.dtype).itemSize || (a < b ? -1 : 1),
    );
    const { header } = layoutSafetensors(
      items.map(([name, { dtype, shape }]) => ({ name, dtype: typeOf(dtype), shape })),
      { format: 'pt' },
    );
    return {
      name: `${kind}-${pad(i + 1)}-of-${pad(parts.length)}.safetensors`,
      header,
      chunks: chunksOf(items, reader),
      tensors: items.map((item) => {
        const [key, { kind: what, dtype, shape }] = item;
        return { key, kind: what, dtype, bytes: bytesOf(item), shape, box: null };
      }),
    };
  });
}

function* chunksOf(
  items: readonly Named[],
  reader: CheckpointReader,
): Generator<ReturnType<SnapshotMemory['copy']>[0]> {
  const memory = new SnapshotMemory();
  try {
    for (const [key, { shape, dtype }] of items) {
      const chunks = noGrad(() =>
        scope(() => {
          const tensor = checked(reader, key, shape);
          return memory.copy([{ tensor, dtype: typeOf(dtype), bytes: tensor.nbytes }]);
        }),
      );
      yield* chunks;
      memory.release();
    }
  } finally {
    memory.dispose();
  }
}

/** Reads a whole tensor and compares its bytes with their hashes. */
function checked(reader: CheckpointReader, key: string, shape: readonly number[]): Tensor {
  const part = { shape, local: shape, offset: null };
  reader.check(key, part);
  return reader.read(key, part);
}

function typeOf(name: string): DType {
  const type = dtypes.get(name);
  if (type === undefined) throw new PipelineError('BAD_CHECKPOINT', `checkpoint: unknown type ${show(name)}`);
  return type;
}

/** Consecutive parts of about equal size. */
function divide<T>(items: readonly T[], count: number, sizeOf: (item: T) => number): T[][] {
  const total = items.reduce((sum, item) => sum + sizeOf(item), 0);
  const parts = Array.from({ length: count }, (): T[] => []);
  let done = 0;
  for (const item of items) {
    const at = total === 0 ? 0 : Math.min(count - 1, Math.floor((done / total) * count));
    parts[at]?.push(item);
    done += sizeOf(item);
  }
  return parts;
}

/** How weights are written for other programs. */
export interface ExportOptions {
  /** From names of the model to names in the files. */
  readonly rename?: Rename | undefined;
  /** Floating-point weights in this type; default: as they are. */
  readonly dtype?: string | undefined;
  /** The largest file in bytes; default 5 GB. */
  readonly maxBytes?: number | undefined;
}

/**
 * Writes the weights of a checkpoint as Hugging Face tools read them: whole, in safetensors files with an index, with the text files
 * that were saved beside them (config.json).
 *
 * @example exportWeights('runs/gpt', 'models/gpt', { dtype: 'bfloat16' })
 */
export function exportWeights(from: string, to: string, options: ExportOptions = {}): void {
  const where = 'exportWeights';
  checkOptions(where, options, ['rename', 'dtype', 'maxBytes']);
  const { rename, maxBytes = 5e9 } = options;
  checkCount(where, 'maxBytes', maxBytes);
  const type = options.dtype === undefined ? undefined : dtypes.get(options.dtype);
  if (options.dtype !== undefined && type?.isFloatingPoint !== true)
    throw new PipelineError(
      'BAD_OPTION',
      `${where}: dtype is ${show(options.dtype)}; give float32, bfloat16 or float16`,
    );
  using reader = new CheckpointReader(findCheckpoint(from));
  if (resolve(to) === resolve(reader.path) || resolve(to) === resolve(dirname(reader.path)))
    throw new PipelineError('BAD_ARGUMENT', `${where}: ${to} is the checkpoint itself; give another folder`);
  const hidden = hiddenBy(to);
  if (hidden !== null) throw new PipelineError('CANNOT_SAVE', `${where}: ${hidden}`);
  const files: { readonly names: [string, string, boolean][]; bytes: number }[] = [];
  for (const [key, { kind, dtype, shape }] of Object.entries(reader.manifest.tensors)) {
    const other = kind === 'optimizer' ? null : renamed(where, rename, key);
    if (other === null) continue;
    const own = typeOf(dtype);
    const bytes = (own.isFloatingPoint ? (type ?? own) : own).itemSize * elementsOf(shape);
    let last = files.at(-1);
    if (last === undefined || last.bytes + bytes > maxBytes) files.push((last = { names: [], bytes: 0 }));
    last.names.push([key, other.name, other.transpose === true]);
    last.bytes += bytes;
  }
  makeFolder(to);
  const pad = (value: number): string => String(value).padStart(5, '0');
  const map: Record<string, string> = {};
  files.forEach(({ names }, i) => {
    const file = `model-${pad(i + 1)}-of-${pad(files.length)}.safetensors`;
    noGrad(() =>
      scope(() => {
        const tensors = names.map(([key, name, transpose]): [string, Tensor] => {
          const { shape, dtype } = reader.stored(key);
          const tensor = checked(reader, key, shape);
          const typed = type !== undefined && typeOf(dtype).isFloatingPoint ? tensor.to(type) : tensor;
          map[name] = file;
          return [name, transpose ? typed.t() : typed];
        });
        saveSafetensors(join(to, file), new Map(tensors), { format: 'pt' });
      }),
    );
  });
  const total_size = files.reduce((sum, { bytes }) => sum + bytes, 0);
  writeFile(join(to, INDEX), `${JSON.stringify({ metadata: { total_size }, weight_map: map }, null, 2)}\n`);
  for (const file of Object.keys(reader.manifest.files)) {
    if (file.endsWith('.safetensors') || file === INDEX) continue;
    reader.checkText(file);
    writeFile(join(to, basename(file)), readFileSync(join(reader.path, file)));
  }
}
