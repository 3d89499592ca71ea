/**
 * @file Tensors in a file: eight bytes with the length of a JSON header, the header, the bytes. Reading maps the file, so
 * nothing is copied until it is used; writing goes to a temporary file that is synced and renamed.
 */

import { closeSync, fstatSync, openSync, readSync, statSync } from 'node:fs';
import { native } from '../addon/addon.ts';
import { checkObject, checkText } from '../base/checks.ts';
import { TorchError } from '../base/errors.ts';
import { type DType, toDType } from '../tensor/dtype.ts';
import { Tensor } from '../tensor/tensor.ts';
import { writeAll, writeFile } from './write-file.ts';

/** Where a tensor lies in a safetensors file. */
export interface SafetensorsEntry {
  readonly dtype: DType;
  readonly shape: readonly number[];
  /** Position in the file, in bytes. */
  readonly offset: number;
  readonly bytes: number;
}

/** What a safetensors file says before its data. */
export interface SafetensorsHeader {
  readonly metadata: Readonly<Record<string, string>>;
  readonly entries: ReadonlyMap<string, SafetensorsEntry>;
}

const dtypeNames: ReadonlyMap<string, DType> = new Map(
  (
    [
      ['BOOL', 'bool'],
      ['U8', 'uint8'],
      ['I8', 'int8'],
      ['U16', 'uint16'],
      ['I16', 'int16'],
      ['U32', 'uint32'],
      ['I32', 'int32'],
      ['U64', 'uint64'],
      ['I64', 'int64'],
      ['F16', 'float16'],
      ['BF16', 'bfloat16'],
      ['F32', 'float32'],
      ['F64', 'float64'],
      ['C64', 'complex64'],
      ['F8_E5M2', 'float8_e5m2'],
      ['F8_E4M3', 'float8_e4m3fn'],
      ['F8_E8M0', 'float8_e8m0fnu'],
    ] as const
  ).map(([name, dtype]) => [name, toDType(dtype)]),
);

const nameOfDtype = new Map([...dtypeNames].map(([name, dtype]) => [dtype, name]));
const headerLimit = 100_000_000;

/**
 * All tensors of a file by name, over the mapped file: nothing is read before it is used. Do not shorten the file while
 * its tensors live.
 *
 * @example const weights = loadSafetensors('model.safetensors'); weights.get('lm_head.weight')
 */
export function loadSafetensors(path: string): Map<string, Tensor> {
  const { entries } = readSafetensorsHeader(path);
  const file = native.mapFile(path);
  try {
    return new Map(
      [...entries].map(([name, entry]) => [
        name,
        Tensor.adopt(native.viewBytes(file, entry.offset, entry.dtype.code, entry.shape)),
      ]),
    );
  } finally {
    native.release(file);
  }
}

/** Names, shapes and metadata of a file, without its data. @example readSafetensorsHeader(path).metadata */
export function readSafetensorsHeader(path: string): SafetensorsHeader {
  checkText('readSafetensorsHeader', 'the path', path);
  const refuse = (why: string): TorchError =>
    new TorchError('SAFETENSORS', `${path}: not a sound safetensors file: ${why}`);
  const [text, start, size] = readHeaderText(path, refuse);
  let json: unknown;
  try {
    json = JSON.parse(text);
  } catch (error) {
    throw refuse(`the header is not JSON (${error instanceof Error ? error.message : String(error)})`);
  }
  if (!isRecord(json)) throw refuse('the header is not a JSON object');
  const metadata = readMetadata(json['__metadata__'], refuse);
  const entries = new Map<string, SafetensorsEntry>();
  for (const [name, value] of Object.entries(json)) {
    if (name !== '__metadata__') entries.set(name, readEntry(name, value, { start, room: size - start, refuse }));
  }
  checkCover(entries, { start, room: size - start, refuse });
  if (countColons(text) !== countKeys(json)) throw refuse('a name occurs twice in the header');
  return { metadata, entries };
}

function readHeaderText(
  path: string,
  refuse: (why: string) => TorchError,
): [text: string, start: number, size: number] {
  let file: number;
  try {
    if (!statSync(path).isFile()) throw refuse('it is not a file'); // opening a pipe would wait for its writer
    file = openSync(path, 'r');
  } catch (error) {
    if (error instanceof TorchError) throw error;
    throw new TorchError('FILE', `loadSafetensors: cannot open ${path} (${(error as NodeJS.ErrnoException).code})`, {
      cause: error,
    });
  }
  try {
    const size = fstatSync(file).size;
    const prefix = new Uint8Array(8);
    if (size < 8 || readSync(file, prefix, 0, 8, 0) !== 8)
      throw refuse(`it has ${size} bytes, fewer than the 8 of the header's length`);
    const length = Number(new DataView(prefix.buffer).getBigUint64(0, true));
    if (length > headerLimit || length > size - 8)
      throw refuse(`its header claims ${length} bytes, the file has ${size - 8} after the length`);
    const bytes = new Uint8Array(length);
    if (readSync(file, bytes, 0, length, 8) !== length) throw refuse('the header could not be read in full');
    try {
      return [new TextDecoder('utf-8', { fatal: true }).decode(bytes), 8 + length, size];
    } catch {
      throw refuse('the header is not UTF-8');
    }
  } finally {
    closeSync(file);
  }
}

interface Place {
  readonly start: number;
  readonly room: number;
  readonly refuse: (why: string) => TorchError;
}

function readEntry(fullName: string, value: unknown, { start, room, refuse }: Place): SafetensorsEntry {
  const name = short(fullName);
  if (!isRecord(value)) throw refuse(`'${name}' is not an object`);
  const { dtype: dtypeName, shape, data_offsets: offsets } = value;
  const dtype = typeof dtypeName === 'string' ? dtypeNames.get(dtypeName) : undefined;
  if (dtype === undefined)
    throw refuse(`'${name}' has type ${typeText(dtypeName)}; known are ${[...dtypeNames.keys()].join(', ')}`);
  if (!Array.isArray(shape) || shape.length > 64 || !shape.every(isCount))
    throw refuse(`the shape of '${name}' is not a list of sizes`);
  if (!Array.isArray(offsets) || offsets.length !== 2 || !offsets.every(isCount))
    throw refuse(`the offsets of '${name}' are not two positions`);
  const [begin, end] = offsets as [number, number];
  if (begin > end || end > room) throw refuse(`'${name}' lies at ${begin} to ${end}, the data has ${room} bytes`);
  const bytes = (shape as number[]).reduce((product, size) => product * size, dtype.itemSize);
  // Strides are products too, and those of an empty tensor need not be zero.
  const reach = (shape as number[]).reduce((product, size) => product * Math.max(size, 1), dtype.itemSize);
  if (!Number.isSafeInteger(reach)) throw refuse(`the shape of '${name}' is too large: [${shape.join(', ')}]`);
  if (bytes !== end - begin)
    throw refuse(`'${name}' has ${end - begin} bytes, its shape [${shape.join(', ')}] of ${dtype.name} needs ${bytes}`);
  return { dtype, shape: shape as number[], offset: start + begin, bytes };
}

/** The data is covered without holes or overlaps, as the format asks. */
function checkCover(entries: ReadonlyMap<string, SafetensorsEntry>, { start, room, refuse }: Place): void {
  let next = start;
  const sorted = [...entries].sort(([, a], [, b]) => a.offset - b.offset || a.bytes - b.bytes);
  for (const [name, entry] of sorted) {
    if (entry.offset !== next)
      throw refuse(
        `'${short(name)}' begins at byte ${entry.offset}, ${entry.offset < next ? 'inside another tensor' : 'after a hole'} (expected ${next})`,
      );
    next += entry.bytes;
  }
  if (next !== start + room) throw refuse(`${start + room - next} bytes at the end belong to no tensor`);
}

function readMetadata(value: unknown, refuse: (why: string) => TorchError): Record<string, string> {
  if (value === undefined) return {};
  if (!isRecord(value) || !Object.values(value).every((item) => typeof item === 'string'))
    throw refuse('__metadata__ is not an object of strings');
  return value as Record<string, string>;
}

/** Names and types come from the file: a message shows their beginning. */
function short(text: string): string {
  return text.length > 100 ? `${text.slice(0, 100)}...` : text;
}

function typeText(value: unknown): string {
  if (typeof value === 'string') return `'${short(value)}'`;
  return value === undefined ? 'none' : `no string but ${value === null ? 'null' : typeof value}`;
}

/** Colons of a JSON text, outside its strings: one per name, also where the parser kept only the last of two. */
function countColons(text: string): number {
  let count = 0;
  for (let i = 0; i < text.length; i++) {
    const letter = text[i];
    if (letter === ':') count++;
    if (letter !== '"') continue;
    for (i++; text[i] !== '"'; i++) if (text[i] === '\\') i++;
  }
  return count;
}

/** Names in all objects of a JSON value; not recursive, because it may be deep. */
function countKeys(value: unknown): number {
  let count = 0;
  const open = [value];
  while (open.length > 0) {
    const next = open.pop();
    if (typeof next !== 'object' || next === null) continue;
    const values: unknown[] = Object.values(next);
    if (!Array.isArray(next)) count += values.length;
    for (const each of values) open.push(each);
  }
  return count;
}

function isRecord(value: unknown): value is Record<string, unknown> {
  return typeof value === 'object' && value !== null && !Array.isArray(value);
}

function isCount(value: unknown): boolean {
  return typeof value === 'number' && Number.isSafeInteger(value) && value >= 0;
}

/**
 * Writes tensors to a file. It is written beside its place, synced and renamed, so a reader sees the old file or the
 * new one, never half of one; devices and pipes are written in place, links are followed.
 *
 * @example saveSafetensors('model.safetensors', model.stateDict(), { step: '100' })
 */
export function saveSafetensors(
  path: string,
  tensors: ReadonlyMap<string, Tensor> | Readonly<Record<string, Tensor>>,
  metadata?: Readonly<Record<string, string>>,
): void {
  checkText('saveSafetensors', 'the path', path);
  checkObject('saveSafetensors', 'the tensors', tensors, 'tensors by name');
  const named =
    tensors instanceof Map
      ? [...(tensors as ReadonlyMap<string, Tensor>)]
      : Object.entries(tensors as Readonly<Record<string, Tensor>>);
  const items = named.map(([name, tensor]) => planItem(name, tensor));
  items.sort((a, b) => b.dtype.itemSize - a.dtype.itemSize || (a.name < b.name ? -1 : 1)); // wide types first keeps all aligned
  const header = headerBytes(items, metadata);
  writeFile(path, (file) => {
    writeAll(file, header);
    for (const item of items) native.writeFile(file, item.tensor.handle);
  });
}

interface Item {
  readonly name: string;
  readonly tensor: Tensor;
  readonly dtype: DType;
  readonly shape: readonly number[];
  readonly bytes: number;
}

function planItem(name: string, tensor: Tensor): Item {
  if (!(tensor instanceof Tensor)) throw new TorchError('BAD_ARGUMENT', `saveSafetensors: '${name}' is not a tensor`);
  const { dtype, shape } = tensor;
  checkItem('saveSafetensors', name, dtype);
  if (tensor.isMeta) throw new TorchError('META', `saveSafetensors: '${name}' is a meta tensor and has no values`);
  return { name, tensor, dtype, shape, bytes: tensor.nbytes };
}

function checkItem(where: string, name: string, dtype: DType): void {
  if (name === '__metadata__')
    throw new TorchError(
      'BAD_ARGUMENT',
      `${where}: a tensor cannot be named '__metadata__'; that name is the format's own`,
    );
  if (!nameOfDtype.has(dtype))
    throw new TorchError(
      'DTYPE',
      `${where}: '${name}' has type ${dtype.name}, which the format does not know; convert it first`,
    );
}

/** What the header of a file says of one tensor. */
export interface SafetensorsItem {
  readonly name: string;
  readonly dtype: DType;
  readonly shape: readonly number[];
}

/** Bytes of a file before its data, and where each tensor begins in the data. */
export interface SafetensorsLayout {
  readonly header: Uint8Array;
  /** In bytes from the beginning of the data, in the order given. */
  readonly starts: readonly number[];
  /** Length of the data. */
  readonly bytes: number;
}

/**
 * How a file with these tensors looks, without their values: for writing one in pieces. They lie in the order given; put
 * wide types first, so that all are aligned.
 *
 * @example const { header, starts } = layoutSafetensors([{ name: 'w', dtype: float32, shape: [2, 3] }])
 */
export function layoutSafetensors(
  items: readonly SafetensorsItem[],
  metadata?: Readonly<Record<string, string>>,
): SafetensorsLayout {
  for (const { name, dtype } of items) checkItem('layoutSafetensors', name, dtype);
  const sized = items.map((item) => ({
    ...item,
    bytes: item.shape.reduce((product, size) => product * size, item.dtype.itemSize),
  }));
  let bytes = 0;
  const starts = sized.map((item) => (bytes += item.bytes) - item.bytes);
  return { header: headerBytes(sized, metadata), starts, bytes };
}

function headerBytes(
  items: readonly (SafetensorsItem & { readonly bytes: number })[],
  metadata: Readonly<Record<string, string>> | undefined,
): Uint8Array {
  const header: Record<string, unknown> = Object.create(null) as Record<string, unknown>;
  if (metadata !== undefined) {
    for (const [key, value] of Object.entries(metadata)) {
      if (typeof value !== 'string')
        throw new TorchError('BAD_ARGUMENT', `saveSafetensors: metadata '${key}' must be a string`);
    }
    header['__metadata__'] = metadata;
  }
  let position = 0;
  for (const item of items) {
    header[item.name] = {
      dtype: nameOfDtype.get(item.dtype),
      shape: item.shape,
      data_offsets: [position, position + item.bytes],
    };
    position += item.bytes;
  }
  const json = new TextEncoder().encode(JSON.stringify(header));
  const length = Math.ceil(json.length / 8) * 8;
  const bytes = new Uint8Array(8 + length).fill(0x20);
  new DataView(bytes.buffer).setBigUint64(0, BigInt(length), true);
  bytes.set(json, 8);
  return bytes;
}
