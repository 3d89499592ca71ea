/** @file The types of tensor elements, and which JavaScript array holds each. */
import { native } from '../addon/addon.ts';
import { show } from '../base/checks.ts';
import { didYouMean, TorchError } from '../base/errors.ts';

/** The name of an element type, as in PyTorch. */
export type DTypeName =
  | 'uint8'
  | 'int8'
  | 'int16'
  | 'int32'
  | 'int64'
  | 'float16'
  | 'float32'
  | 'float64'
  | 'complex32'
  | 'complex64'
  | 'complex128'
  | 'bool'
  | 'bfloat16'
  | 'float8_e5m2'
  | 'float8_e4m3fn'
  | 'float8_e5m2fnuz'
  | 'float8_e4m3fnuz'
  | 'float8_e8m0fnu'
  | 'uint16'
  | 'uint32'
  | 'uint64'
  | 'qint8'
  | 'quint8'
  | 'qint32';

/** A typed array that a tensor can be read into. 16- and 8-bit floats are widened to `Float32Array`. */
export type TypedArray =
  | Uint8Array
  | Int8Array
  | Int16Array
  | Int32Array
  | Uint16Array
  | Uint32Array
  | BigInt64Array
  | BigUint64Array
  | Float32Array
  | Float64Array;

/**
 * An element type. Compare by identity: there is one object per type.
 *
 * @example if (x.dtype === float32) console.log(x.dtype.itemSize) // 4
 */
export class DType {
  readonly name: DTypeName;
  /** The number libtorch knows it by. */
  readonly code: number;
  readonly itemSize: number;
  readonly isFloatingPoint: boolean;
  readonly isComplex: boolean;

  constructor(name: DTypeName, code: number, itemSize: number) {
    this.name = name;
    this.code = code;
    this.itemSize = itemSize;
    this.isFloatingPoint = name.startsWith('float') || name === 'bfloat16';
    this.isComplex = name.startsWith('complex');
  }

  /** `torch.float32`, as PyTorch prints it. */
  toString(): string {
    return `torch.${this.name}`;
  }
}

/** Integers from 0 to 255. */
export const uint8: DType = new DType('uint8', 0, 1);
/** Integers from -128 to 127. */
export const int8: DType = new DType('int8', 1, 1);
/** Integers of 16 bits. */
export const int16: DType = new DType('int16', 2, 2);
/** Integers of 32 bits. */
export const int32: DType = new DType('int32', 3, 4);
/** Integers of 64 bits: what indices and class numbers are. */
export const int64: DType = new DType('int64', 4, 8);
/** Floating point of 16 bits: 5 of the exponent, 10 of the fraction. */
export const float16: DType = new DType('float16', 5, 2);
/** Floating point of 32 bits: the default. */
export const float32: DType = new DType('float32', 6, 4);
/** Floating point of 64 bits: the numbers of JavaScript. */
export const float64: DType = new DType('float64', 7, 8);
/** Complex numbers of two float16. */
export const complex32: DType = new DType('complex32', 8, 4);
/** Complex numbers of two float32. */
export const complex64: DType = new DType('complex64', 9, 8);
/** Complex numbers of two float64. */
export const complex128: DType = new DType('complex128', 10, 16);
/** True or false, a byte each. */
export const bool: DType = new DType('bool', 11, 1);
/** Quantized integers of 8 bits, signed. */
export const qint8: DType = new DType('qint8', 12, 1);
/** Quantized integers of 8 bits, unsigned. */
export const quint8: DType = new DType('quint8', 13, 1);
/** Quantized integers of 32 bits. */
export const qint32: DType = new DType('qint32', 14, 4);
/** Floating point of 16 bits with the range of float32: 8 of the exponent, 7 of the fraction. */
export const bfloat16: DType = new DType('bfloat16', 15, 2);
/** Floating point of 8 bits: 5 of the exponent, 2 of the fraction. */
export const float8_e5m2: DType = new DType('float8_e5m2', 23, 1);
/** Floating point of 8 bits: 4 of the exponent, 3 of the fraction; no infinity. */
export const float8_e4m3fn: DType = new DType('float8_e4m3fn', 24, 1);
/** Floating point of 8 bits: 5 of the exponent, 2 of the fraction; no infinity, no negative zero. */
export const float8_e5m2fnuz: DType = new DType('float8_e5m2fnuz', 25, 1);
/** Floating point of 8 bits: 4 of the exponent, 3 of the fraction; no infinity, no negative zero. */
export const float8_e4m3fnuz: DType = new DType('float8_e4m3fnuz', 26, 1);
/** Integers of 16 bits from 0. */
export const uint16: DType = new DType('uint16', 27, 2);
/** Integers of 32 bits from 0. */
export const uint32: DType = new DType('uint32', 28, 4);
/** Integers of 64 bits from 0. */
export const uint64: DType = new DType('uint64', 29, 8);
/** Powers of two in 8 bits: the scales of blocks. */
export const float8_e8m0fnu: DType = new DType('float8_e8m0fnu', 44, 1);

/** Every element type by name. */
export const dtypes: ReadonlyMap<string, DType> = new Map(
  [
    uint8,
    int8,
    int16,
    int32,
    int64,
    float16,
    float32,
    float64,
    complex32,
    complex64,
    complex128,
    bool,
    qint8,
    quint8,
    qint32,
    bfloat16,
    float8_e5m2,
    float8_e4m3fn,
    float8_e5m2fnuz,
    float8_e4m3fnuz,
    float8_e8m0fnu,
    uint16,
    uint32,
    uint64,
  ].map((dtype) => [dtype.name, dtype]),
);

const byCode = new Map([...dtypes.values()].map((dtype) => [dtype.code, dtype]));

/** The element type with libtorch's number `code`. */
export function dtypeOfCode(code: number): DType {
  const found = byCode.get(code);
  if (found === undefined)
    throw new TorchError('DTYPE', `internal: libtorch gave an element type unknown here, number ${show(code)}`);
  return found;
}

/** An element type given as itself or by name. @example toDType('bfloat16') === bfloat16 */
export function toDType(value: DType | DTypeName): DType {
  if (value instanceof DType) return value;
  const found = typeof value === 'string' ? dtypes.get(value) : undefined;
  if (found === undefined) {
    const near = typeof value === 'string' ? didYouMean(value, dtypes.keys()) : '';
    throw new TorchError('DTYPE', `${show(value)} is not an element type${near}; use float32, int64, ...`);
  }
  return found;
}

/** The type that floating-point numbers get when nothing else is said. */
export function getDefaultDtype(): DType {
  return dtypeOfCode(native.getDefaultDtype());
}

/**
 * Sets the type that floating-point numbers get when nothing else is said, in every thread of the process.
 *
 * @example setDefaultDtype(float64)
 */
export function setDefaultDtype(value: DType | DTypeName): void {
  const dtype = toDType(value);
  if (!dtype.isFloatingPoint || dtype.itemSize < 2) {
    throw new TorchError(
      'DTYPE',
      `setDefaultDtype: ${dtype.name} cannot be the default; use float32, float64, float16 or bfloat16`,
    );
  }
  native.setDefaultDtype(dtype.code);
}
