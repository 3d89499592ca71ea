/** @file Tensors from JavaScript values. */

import { types } from 'node:util';
import { native } from '../addon/addon.ts';
import { checkGiven, show } from '../base/checks.ts';
import { checkOptions, TorchError } from '../base/errors.ts';
import { FloatScalar } from '../base/float-scalar.ts';
import { bindOp, callBound } from '../op/bind.ts';
import { type Device, toDevice } from '../tensor/device.ts';
import {
  bool,
  complex64,
  DType,
  type DTypeName,
  float32,
  float64,
  getDefaultDtype,
  int8,
  int16,
  int32,
  int64,
  type TypedArray,
  toDType,
  uint8,
  uint16,
  uint32,
  uint64,
} from '../tensor/dtype.ts';
import { type Complex, type Element, Tensor } from '../tensor/tensor.ts';
import { checkShareable, fixInPlace } from './fixed-buffer.ts';

/** What a new tensor is like. */
export interface TensorOptions {
  dtype?: DType | DTypeName | undefined;
  device?: Device | undefined;
  requiresGrad?: boolean | undefined;
}

/** Values a tensor is made of: a number, nested arrays of equal lengths, or a typed array. */
export type TensorData = TensorValues | TypedArray;
type TensorValues = Element | FloatScalar | readonly TensorValues[];

/**
 * A tensor of the values given. Whole numbers give int64, others float32, booleans bool, BigInts int64, as in PyTorch;
 * in JavaScript 1.0 is whole, so say `dtype` where it matters. Typed arrays keep their type and are copied.
 *
 * @example tensor([[1, 2], [3, 4]], { dtype: float32 })
 */
export function tensor(data: TensorData, options?: TensorOptions): Tensor {
  checkOptions('tensor', options, ['dtype', 'device', 'requiresGrad']);
  const made = isTypedArray(data)
    ? fromTypedArray(data, [data.length])
    : fromNested(data as TensorValues, options?.dtype);
  return finish(made, options);
}

/**
 * A tensor of a typed array's values: a copy, or with `share` its very memory, so that changes are seen on both sides.
 * A buffer that is shared can no longer be transferred; resizable buffers and those of WebAssembly are refused.
 *
 * @example const x = fromTypedArray(new Float32Array(6), [2, 3], { share: true })
 */
export function fromTypedArray(
  data: TypedArray | Uint8ClampedArray,
  shape: readonly number[] = [data?.length],
  options?: TensorOptions & { share?: boolean | undefined },
): Tensor {
  checkGiven('fromTypedArray', isTypedArray(data), ['the data', data], 'a typed array, as a Float32Array');
  checkGiven('fromTypedArray', Array.isArray(shape), ['the shape', shape], 'an array of sizes');
  checkOptions('fromTypedArray', options, ['dtype', 'device', 'requiresGrad', 'share']);
  const natural = dtypeOfArray(data);
  const wanted = options?.dtype === undefined ? natural : toDType(options.dtype);
  // A Uint16Array holds the bits of bfloat16 and float16 when asked for; the same for complex pairs and bool.
  const reinterpret = wanted !== natural && reinterprets(natural, wanted);
  const dtype = reinterpret ? wanted : natural;
  const share = options?.share === true;
  if (share) checkShareable(data.buffer);
  const isBool = dtype === bool && !share; // by value: a byte of a boolean is 0 or 1
  const made = Tensor.adopt(native.fromData(data, (isBool ? natural : dtype).code, shape, share, false));
  if (share) fixInPlace(data.buffer); // not before: a refused buffer stays as it was
  return finish(made, isBool ? { ...options, dtype } : options);
}

function reinterprets(natural: DType, wanted: DType): boolean {
  if (natural === uint16) return wanted.itemSize === 2 && wanted.isFloatingPoint;
  if (natural === uint8) return wanted === bool || (wanted.itemSize === 1 && wanted.isFloatingPoint);
  if (natural === float32) return wanted === complex64;
  return natural === float64 && wanted.name === 'complex128';
}

function finish(made: Tensor, options: TensorOptions | undefined): Tensor {
  let result = made;
  const dtype = options?.dtype === undefined ? result.dtype : toDType(options.dtype);
  const device = options?.device === undefined ? 'cpu' : toDevice(options.device);
  if (dtype !== result.dtype || device !== 'cpu') {
    const before = native.setGradEnabled(false);
    try {
      result = callBound(bindOp('aten::to.device'), [result, device, dtype]) as Tensor;
    } finally {
      native.setGradEnabled(before);
    }
    made.dispose();
  }
  if (options?.requiresGrad === true) result.requiresGrad_(true);
  return result;
}

function isTypedArray(value: unknown): value is TypedArray {
  return types.isTypedArray(value);
}

/** By what the array is, not by its class: arrays of another context of `node:vm` have classes of their own. */
function dtypeOfArray(data: ArrayBufferView): DType {
  if (types.isFloat32Array(data)) return float32;
  if (types.isFloat64Array(data)) return float64;
  if (types.isInt32Array(data)) return int32;
  if (types.isUint8Array(data) || types.isUint8ClampedArray(data)) return uint8;
  if (types.isBigInt64Array(data)) return int64;
  if (types.isBigUint64Array(data)) return uint64;
  if (types.isInt16Array(data)) return int16;
  if (types.isInt8Array(data)) return int8;
  if (types.isUint16Array(data)) return uint16;
  if (types.isUint32Array(data)) return uint32;
  throw new TorchError(
    'BAD_ARGUMENT',
    `a tensor cannot be made of a ${data.constructor.name}; use Float32Array.from(data)`,
  );
}

type Kind = 'bool' | 'int' | 'float' | 'complex';

function fromNested(data: TensorValues, wanted: DType | DTypeName | undefined): Tensor {
  const shape = shapeOf(data);
  const flat: (Element | FloatScalar)[] = [];
  flatten(data, shape, 0, flat);
  const kind = flat.reduce<Kind>((widest, value) => wider(widest, kindOf(value)), 'bool');
  const natural =
    flat.length === 0 || kind === 'float'
      ? getDefaultDtype()
      : kind === 'complex'
        ? complex64
        : kind === 'bool'
          ? bool
          : int64;
  const dtype = wanted === undefined ? natural : toDType(wanted);
  checkFits(flat, dtype);
  return Tensor.adopt(native.fromData(fill(flat, kind, dtype), carrier(kind, dtype).code, shape, false, false));
}

/** Refuses values that the type would turn into others: whole numbers beyond its range, NaN as an integer, complex ones as real. */
function checkFits(flat: readonly (Element | FloatScalar)[], dtype: DType): void {
  if (dtype.isComplex || dtype === bool) return;
  const isSigned = dtype.name.startsWith('int');
  const limit = 2 ** (dtype.itemSize * 8 - (isSigned ? 1 : 0));
  for (const value of flat) {
    const number = typeof value === 'bigint' ? value : plainNumber(value);
    if (dtype.isFloatingPoint) continue;
    const whole = typeof number === 'bigint' ? number : Math.trunc(number);
    // Negative numbers wrap around in unsigned types, as in PyTorch.
    if (whole < limit && (isSigned ? whole >= -limit : whole > -limit)) continue;
    throw new TorchError(
      'DTYPE',
      `tensor: ${number} does not fit into ${dtype.name}; use a wider type, or bring the values into its range`,
    );
  }
}

/** The type in which values travel: wide enough that converting to the wanted type loses nothing twice. */
function carrier(kind: Kind, dtype: DType): DType {
  if (kind === 'complex' || dtype.isComplex) return dtype.name === 'complex64' ? complex64 : toDType('complex128');
  if (dtype === float32) return float32;
  if (dtype === bool && kind === 'bool') return bool;
  if (kind === 'float' || dtype.isFloatingPoint) return float64;
  return dtype === uint64 ? uint64 : int64;
}

function fill(flat: (Element | FloatScalar)[], kind: Kind, dtype: DType): ArrayBufferView {
  const way = carrier(kind, dtype);
  if (way.isComplex) {
    const out = way === complex64 ? new Float32Array(flat.length * 2) : new Float64Array(flat.length * 2);
    flat.forEach((value, i) => {
      const number = typeof value === 'object' && 're' in value ? value : { re: plainNumber(value), im: 0 };
      out[2 * i] = number.re;
      out[2 * i + 1] = number.im;
    });
    return out;
  }
  if (way === bool) return Uint8Array.from(flat, (value) => (value === true ? 1 : 0));
  if (way === int64 || way === uint64) {
    const check = way === int64 ? BigInt.asIntN : BigInt.asUintN;
    const out = way === int64 ? new BigInt64Array(flat.length) : new BigUint64Array(flat.length);
    flat.forEach((value, i) => {
      const whole = typeof value === 'bigint' ? value : BigInt(plainNumber(value));
      if (check(64, whole) !== whole) throw new TorchError('DTYPE', `tensor: ${whole} does not fit into ${way.name}`);
      out[i] = whole;
    });
    return out;
  }
  return way === float32 ? Float32Array.from(flat, plainNumber) : Float64Array.from(flat, plainNumber);
}

function plainNumber(value: Element | FloatScalar): number {
  if (value instanceof FloatScalar) return value.float;
  if (typeof value === 'object') throw new TorchError('DTYPE', 'tensor: a complex number cannot become a real one');
  return Number(value);
}

function kindOf(value: Element | FloatScalar): Kind {
  if (typeof value === 'boolean') return 'bool';
  if (typeof value === 'bigint') return 'int';
  if (typeof value === 'number') return Number.isSafeInteger(value) && !Object.is(value, -0) ? 'int' : 'float';
  if (value instanceof FloatScalar) return 'float';
  if (typeof value === 'object' && value !== null && 're' in (value as Complex)) return 'complex';
  throw new TorchError(
    'BAD_ARGUMENT',
    `tensor: ${show(value)} is not a number; give numbers, booleans, BigInts or nested arrays of them`,
  );
}

const order: readonly Kind[] = ['bool', 'int', 'float', 'complex'];

function wider(a: Kind, b: Kind): Kind {
  return order.indexOf(a) >= order.indexOf(b) ? a : b;
}

function shapeOf(data: unknown): number[] {
  const shape: number[] = [];
  for (let level = data; Array.isArray(level) || isTypedArray(level); level = level[0]) {
    shape.push(level.length);
    if (level.length === 0 || shape.length > 64) break;
  }
  return shape;
}

function flatten(data: unknown, shape: readonly number[], level: number, out: (Element | FloatScalar)[]): void {
  if (level === shape.length) {
    if (Array.isArray(data) || isTypedArray(data)) throw ragged(level, 'a number', `an array of ${data.length}`);
    out.push(data as Element);
    return;
  }
  const size = shape[level]!;
  if (!Array.isArray(data) && !isTypedArray(data)) throw ragged(level, `an array of ${size}`, String(data));
  if (data.length !== size) throw ragged(level, `an array of ${size}`, `one of ${data.length}`);
  for (const item of data) flatten(item, shape, level + 1, out);
}

function ragged(level: number, wanted: string, got: string): TorchError {
  return new TorchError(
    'SHAPE',
    `tensor: nested arrays must be of equal lengths: at depth ${level} expected ${wanted}, got ${got}`,
  );
}
