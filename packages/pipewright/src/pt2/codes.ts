/** @file The numbers that a `.pt2` file has for element types, layouts and memory formats; they are not libtorch's own. */
import { type DType, toDType } from '@pipewright/torch';
import type { JsonCursor } from './json-cursor.ts';

const dtypes: Readonly<Record<number, DType['name']>> = {
  1: 'uint8',
  2: 'int8',
  3: 'int16',
  4: 'int32',
  5: 'int64',
  6: 'float16',
  7: 'float32',
  8: 'float64',
  9: 'complex32',
  10: 'complex64',
  11: 'complex128',
  12: 'bool',
  13: 'bfloat16',
  28: 'uint16',
  29: 'float8_e4m3fn',
  30: 'float8_e5m2',
  31: 'float8_e4m3fnuz',
  32: 'float8_e5m2fnuz',
  33: 'float8_e8m0fnu',
  34: 'uint32',
  35: 'uint64',
};

const layouts = ['', 'sparse_coo', 'sparse_csr', 'sparse_csc', 'sparse_bsr', 'sparse_bsc', 'mkldnn', 'strided'];
const memoryFormats = ['', 'contiguous_format', 'channels_last', 'channels_last_3d', 'preserve_format'];

/** The element type of a code. */
export function readDType(code: JsonCursor): DType {
  const name = dtypes[code.int()];
  if (name === undefined) throw code.wrong(`unknown element type ${code.int()}`);
  return toDType(name);
}

/** The name of a layout. */
export function readLayout(code: JsonCursor): string {
  return named(code, layouts, 'layout');
}

/** The name of a memory format. */
export function readMemoryFormat(code: JsonCursor): string {
  return named(code, memoryFormats, 'memory format');
}

function named(code: JsonCursor, names: readonly string[], what: string): string {
  const name = names[code.int()] ?? '';
  if (name === '') throw code.wrong(`unknown ${what} ${code.int()}`);
  return name;
}

/** A device as text: `cpu`, `cuda:1`. */
export function readDevice(device: JsonCursor): string {
  const type = device.get('type').text();
  const index = device.find('index')?.int();
  if (!/^[a-z]+$/.test(type)) throw device.wrong('a device type is a word such as cpu');
  return index === undefined || type === 'cpu' || type === 'meta' ? type : `${type}:${index}`;
}
