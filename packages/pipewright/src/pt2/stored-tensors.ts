/** @file Where the tensors of a `.pt2` file lie: which bytes, and in which shape. Nothing is read here. */
import type { DType } from '@pipewright/torch';
import type { Pt2Archive } from './archive.ts';
import { readDType, readLayout } from './codes.ts';
import type { JsonCursor } from './json-cursor.ts';
import { shown } from './pt2-error.ts';
import type { ZipEntry } from './zip-file.ts';

/** One tensor: a view of an entry's bytes. */
export interface StoredTensor {
  readonly name: string;
  readonly entry: ZipEntry;
  readonly dtype: DType;
  readonly shape: readonly number[];
  readonly stride: readonly number[];
  /** In elements. */
  readonly storageOffset: number;
  readonly isParameter: boolean;
  readonly requiresGrad: boolean;
}

/** A row that cannot be read, and why; an error only where the program needs it. */
export interface UnreadableTensor {
  readonly name: string;
  readonly problem: Error;
}

const mostDims = 64;

/** The tensors of one table, by qualified name. */
export function readTable(
  archive: Pt2Archive,
  kind: 'weights' | 'constants',
): Map<string, StoredTensor | UnreadableTensor> {
  const table = archive.table(kind);
  const found = new Map<string, StoredTensor | UnreadableTensor>();
  for (const [name, row] of table?.entries() ?? []) {
    if (row.get('use_pickle').bool() || row.get('tensor_meta').value === null) {
      found.set(name, {
        name,
        problem: row.wrong(`${shown(name)} is stored as a Python pickle, which is never opened`),
      });
      continue;
    }
    found.set(name, readRow(archive, kind, name, row));
  }
  return found;
}

function readRow(archive: Pt2Archive, kind: string, name: string, row: JsonCursor): StoredTensor {
  const file = row.get('path_name').text();
  if (!/^\w+$/.test(file)) throw row.wrong(`${shown(name)} lies in ${shown(file)}, which is no plain name`);
  const entry = archive.zip.entries.get(`${archive.root}data/${kind}/${file}`);
  if (entry === undefined) throw row.wrong(`${shown(name)} lies in ${shown(file)}, which the file does not have`);
  const meta = row.get('tensor_meta');
  const dtype = readDType(meta.get('dtype'));
  const layout = readLayout(meta.get('layout'));
  if (layout !== 'strided') throw meta.wrong(`${shown(name)} is ${layout}; only strided tensors are read`);
  const tensor: StoredTensor = {
    name,
    entry,
    dtype,
    shape: meta.get('sizes').list().map(fixedSize),
    stride: meta.get('strides').list().map(fixedSize),
    storageOffset: fixedSize(meta.get('storage_offset')),
    isParameter: row.get('is_param').bool(),
    requiresGrad: meta.get('requires_grad').bool(),
  };
  checkInside(tensor, meta);
  return tensor;
}

function fixedSize(size: JsonCursor): number {
  const [tag, value] = size.union();
  if (tag !== 'as_int') throw size.wrong('the size of a stored tensor is a number');
  const number = value.int();
  if (number < 0) throw value.wrong(`${number} is negative`);
  return number;
}

/** Every element lies inside the entry. */
function checkInside({ name, entry, dtype, shape, stride, storageOffset }: StoredTensor, meta: JsonCursor): void {
  if (shape.length !== stride.length || shape.length > mostDims)
    throw meta.wrong(`${shown(name)} has ${shape.length} sizes and ${stride.length} strides`);
  if (entry.size % dtype.itemSize !== 0)
    throw meta.wrong(
      `${shown(name)} is ${dtype.name}, but its ${entry.size} bytes are no multiple of ${dtype.itemSize}`,
    );
  if (!Number.isSafeInteger(shape.reduce((product, size) => product * Math.max(size, 1), 1)))
    throw meta.wrong(`${shown(name)} has more elements than can be: [${shape.join(', ')}]`);
  if (shape.includes(0)) return;
  if (entry.size === 0)
    throw meta.wrong(`the values of ${shown(name)} are not in the file: the model was exported without weights`);
  const last = shape.reduce((sum, size, i) => sum + (size - 1) * stride[i]!, storageOffset);
  const needed = (last + 1) * dtype.itemSize;
  if (!(needed <= entry.size))
    throw meta.wrong(
      `${shown(name)} of shape [${shape.join(', ')}], strides [${stride.join(', ')}] and offset ${storageOffset} needs ${needed} bytes, but ${shown(entry.name)} has ${entry.size}`,
    );
}
