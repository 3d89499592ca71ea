/**
 * @file The kind of an argument, as one letter: what overloads are chosen by. Two calls whose arguments are of the same
 * kinds always take the same overload, so the choice is made once and remembered.
 */

import { types } from 'node:util';
import { FloatScalar } from '../base/float-scalar.ts';
import { DType, dtypes } from '../tensor/dtype.ts';
import { Generator } from '../tensor/random.ts';
import { Tensor } from '../tensor/tensor.ts';

/**
 * `T` tensor, `i` whole number, `f` other number, `g` BigInt, `b` boolean, `z` float() or complex, `n` null, `u`
 * undefined, `D` dtype, `G` generator; strings: `d` name of a dtype, `v` device, `l` layout, `m` memory format, `s`
 * other; arrays: `E` empty, `I` whole numbers, `F` numbers, `B` booleans, `Z` scalars of several kinds, `A` tensors,
 * `H` tensors and nulls, `X` anything else; `x` a value no operator takes.
 */
export type Kind = string;

/** The kind of one argument. */
export function kindOf(value: unknown): Kind {
  switch (typeof value) {
    case 'number':
      return Number.isInteger(value) ? 'i' : 'f';
    case 'boolean':
      return 'b';
    case 'bigint':
      return 'g';
    case 'string':
      return kindOfString(value);
    case 'undefined':
      return 'u';
    case 'object':
      break;
    default:
      return 'x';
  }
  if (value === null) return 'n';
  if (value instanceof Tensor) return 'T';
  if (Array.isArray(value)) return kindOfArray(value);
  if (value instanceof DType) return 'D';
  if (value instanceof Generator) return 'G';
  if (isScalarObject(value as object)) return 'z';
  if (types.isTypedArray(value)) return types.isFloat32Array(value) || types.isFloat64Array(value) ? 'F' : 'I';
  return 'x';
}

const words = new Map<string, Kind>([
  ...[...dtypes.keys()].map((name): [string, Kind] => [name, 'd']),
  ...['cpu', 'cuda', 'meta', 'mps', 'xpu', 'hpu', 'xla', 'ipu', 'mtia', 'vulkan'].map((name): [string, Kind] => [
    name,
    'v',
  ]),
  ...['strided', 'sparse_coo', 'sparse_csr', 'sparse_csc', 'sparse_bsr', 'sparse_bsc', 'mkldnn', 'jagged'].map(
    (name): [string, Kind] => [name, 'l'],
  ),
  ...['contiguous_format', 'preserve_format', 'channels_last', 'channels_last_3d'].map((name): [string, Kind] => [
    name,
    'm',
  ]),
  ...['contiguousFormat', 'preserveFormat', 'channelsLast', 'channelsLast3d'].map((name): [string, Kind] => [
    name,
    'm',
  ]),
]);

function kindOfString(value: string): Kind {
  return words.get(value) ?? (/^(cpu|cuda|mps|xpu):\d+$/.test(value) ? 'v' : 's');
}

function kindOfArray(values: readonly unknown[]): Kind {
  const { length } = values;
  if (length === 0) return 'E';
  let kind = '';
  for (let i = 0; i < length; i++) {
    const next = kindOfElement(values[i]);
    kind = kind === '' || kind === next ? next : joined(kind, next);
    if (kind === 'X') break;
  }
  return kind;
}

function kindOfElement(value: unknown): Kind {
  switch (typeof value) {
    case 'number':
      return Number.isInteger(value) ? 'I' : 'F';
    case 'bigint':
      return 'I';
    case 'boolean':
      return 'B';
    case 'object':
      if (value === null) return 'H';
      if (value instanceof Tensor) return 'A';
      return isScalarObject(value) ? 'Z' : 'X';
    default:
      return 'X';
  }
}

/** The kind of an array that has elements of two kinds. */
function joined(a: Kind, b: Kind): Kind {
  const both = a + b;
  if (both === 'AH' || both === 'HA') return 'H';
  if (both === 'IF' || both === 'FI') return 'F';
  return /^[IFBZ]{2}$/.test(both) ? 'Z' : 'X';
}

/** `float(2)`, or a complex number `{ re, im }`. */
export function isScalarObject(value: object): boolean {
  return value instanceof FloatScalar || ('re' in value && 'im' in value);
}

/** Whether the last argument of a call is the object of its keyword arguments. */
export function isOptions(value: unknown): value is Record<string, unknown> {
  if (typeof value !== 'object' || value === null) return false;
  const prototype: unknown = Object.getPrototypeOf(value);
  return (prototype === Object.prototype || prototype === null) && !isScalarObject(value);
}

/** What a kind is called in an error message. */
export function kindText(kind: Kind): string {
  return texts[kind] ?? kind;
}

const texts: Readonly<Record<string, string>> = {
  T: 'Tensor',
  i: 'whole number',
  f: 'number',
  g: 'BigInt',
  b: 'boolean',
  z: 'float or complex number',
  n: 'null',
  u: 'undefined',
  D: 'dtype',
  G: 'Generator',
  d: 'string',
  v: 'string',
  l: 'string',
  m: 'string',
  s: 'string',
  E: 'empty array',
  I: 'array of whole numbers',
  F: 'array of numbers',
  B: 'array of booleans',
  Z: 'array of scalars',
  A: 'array of tensors',
  H: 'array of tensors and nulls',
  X: 'array of other things',
  x: 'something else',
};
