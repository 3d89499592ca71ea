/**
 * @file A tensor: a handle of libtorch's, its description and its memory. Operators are added to the class by
 * `op/install.ts` (their types are in `generated/`), indexing, printing and conversion by `functions/`.
 */

import { native } from '../addon/addon.ts';
import {
  META_DEVICE_INDEX,
  META_DEVICE_TYPE,
  META_DIMS,
  META_DTYPE,
  META_IS_CONTIGUOUS,
  META_IS_INFERENCE,
  META_IS_LEAF,
  META_ITEM_SIZE,
  META_LAYOUT,
  META_NUMEL,
  META_REQUIRES_GRAD,
  META_SIZES,
  META_STORAGE_OFFSET,
  META_STRIDES,
} from '../addon/generated/border.ts';
import { checkGiven, show } from '../base/checks.ts';
import { TorchError } from '../base/errors.ts';
import { type FloatScalar } from '../base/float-scalar.ts';
import { type Device, deviceText } from './device.ts';
import { bool, type DType, type DTypeName, dtypeOfCode, float32, type TypedArray } from './dtype.ts';
import { recorder } from './recorder.ts';
import { disposeOwned, markOwned, type Owned, own, type Scope } from './scope.ts';

/** A complex number. */
export interface Complex {
  readonly re: number;
  readonly im: number;
}

/** What an operator takes as a number: whole numbers are integers, others floats, `float(2)` is 2.0, BigInt is int64. */
export type Scalar = number | bigint | boolean | Complex | FloatScalar;

/** What a tensor's element is in JavaScript: int64 beyond 2^53 comes out as a BigInt. */
export type Element = number | bigint | boolean | Complex;

/** Arrays in arrays, as deep as the tensor has dimensions. */
export type NestedArray = Element | readonly NestedArray[];

const meta = native.metaArray;

/**
 * An n-dimensional array on a device, with gradients.
 *
 * @example const x = tensor([[1, 2], [3, 4]]); x.matmul(x).toArray() // [[7, 10], [15, 22]]
 */
export class Tensor implements Owned {
  /** libtorch's handle; zero once disposed of. */
  h: number;
  /** The scope that frees it, if any. */
  owner: Scope | null = null;

  /** Use `tensor(...)` and the other creation functions, or `Tensor.adopt`. */
  protected constructor(handle: number) {
    this.h = handle;
  }

  /** Wraps a handle that the addon gave out: the innermost scope takes charge of it. */
  static adopt(handle: number): Tensor {
    const made = new Tensor(handle);
    own(made);
    return made;
  }

  /** The handle, or an error when the tensor was disposed of. */
  get handle(): number {
    if (this.h === 0) throw disposedError();
    return this.h;
  }

  /** Sizes of the dimensions. @example zeros([2, 3]).shape // [2, 3] */
  get shape(): number[] {
    native.meta(this.handle);
    const sizes = new Array<number>(meta[META_DIMS]!);
    for (let i = 0; i < sizes.length; i++) sizes[i] = meta[META_SIZES + i]!;
    return sizes;
  }

  /** Steps in elements between neighbours along each dimension. */
  stride(): number[];
  stride(dim: number): number;
  stride(dim?: number): number | number[] {
    native.meta(this.handle);
    const steps = Array.from({ length: meta[META_DIMS]! }, (_, i) => meta[META_STRIDES + i]!);
    return dim === undefined ? steps : steps[this.wrapDim(dim)]!;
  }

  /** Size of one dimension, or all of them. @example x.size(-1) */
  size(): number[];
  size(dim: number): number;
  size(dim?: number): number | number[] {
    const sizes = this.shape;
    return dim === undefined ? sizes : sizes[this.wrapDim(dim)]!;
  }

  /** Number of dimensions. */
  dim(): number {
    native.meta(this.handle);
    return meta[META_DIMS]!;
  }

  /** Number of dimensions, as in `x.ndim`. */
  get ndim(): number {
    return this.dim();
  }

  /** Number of elements. */
  numel(): number {
    native.meta(this.handle);
    return meta[META_NUMEL]!;
  }

  /** The type of the elements. */
  get dtype(): DType {
    native.meta(this.handle);
    return dtypeOfCode(meta[META_DTYPE]!);
  }

  /** Where the tensor lives. */
  get device(): Device {
    if (recorder !== null) return recorder.deviceOf(this);
    native.meta(this.handle);
    return deviceText(meta[META_DEVICE_TYPE]!, meta[META_DEVICE_INDEX]!);
  }

  /** `strided` for ordinary tensors. */
  get layout(): string {
    native.meta(this.handle);
    return layouts[meta[META_LAYOUT]!] ?? `layout${meta[META_LAYOUT]}`;
  }

  /** Bytes of all elements. */
  get nbytes(): number {
    native.meta(this.handle);
    return meta[META_NUMEL]! * meta[META_ITEM_SIZE]!;
  }

  /** Bytes of one element. */
  elementSize(): number {
    native.meta(this.handle);
    return meta[META_ITEM_SIZE]!;
  }

  /** Where the tensor begins in its storage, in elements. */
  storageOffset(): number {
    native.meta(this.handle);
    return meta[META_STORAGE_OFFSET]!;
  }

  /** Whether elements lie in order without holes. */
  isContiguous(): boolean {
    native.meta(this.handle);
    return meta[META_IS_CONTIGUOUS] === 1;
  }

  isFloatingPoint(): boolean {
    return this.dtype.isFloatingPoint;
  }

  isComplex(): boolean {
    return this.dtype.isComplex;
  }

  /** Whether it was made in inference mode. */
  isInference(): boolean {
    native.meta(this.handle);
    return meta[META_IS_INFERENCE] === 1;
  }

  get isCuda(): boolean {
    return this.device.startsWith('cuda');
  }

  get isMeta(): boolean {
    return this.device === 'meta';
  }

  /** Whether gradients are wanted. Assign to switch. */
  get requiresGrad(): boolean {
    native.meta(this.handle);
    return meta[META_REQUIRES_GRAD] === 1;
  }

  set requiresGrad(on: boolean) {
    native.setRequiresGrad(this.handle, on);
  }

  /** Switches gradients on or off and returns this tensor. */
  requiresGrad_(on = true): this {
    native.setRequiresGrad(this.handle, on);
    return this;
  }

  /** Whether it was made by the user rather than by an operator that records gradients. */
  get isLeaf(): boolean {
    native.meta(this.handle);
    if (meta[META_IS_LEAF] !== 1 || meta[META_REQUIRES_GRAD] !== 1) return meta[META_IS_LEAF] === 1;
    // A view whose base was changed in place since gets its node when somebody asks for it.
    native.releaseNode(native.gradFn(this.handle));
    native.meta(this.handle);
    return meta[META_IS_LEAF] === 1;
  }

  /** The accumulated gradient. Each read gives a new handle of the same memory. */
  get grad(): Tensor | null {
    const handle = native.grad(this.handle);
    return handle === 0 ? null : Tensor.adopt(handle);
  }

  set grad(value: Tensor | null) {
    native.setGrad(this.handle, value === null ? null : value.handle);
  }

  /** Keeps the gradient of a tensor that is not a leaf. */
  retainGrad(): this {
    native.retainGrad(this.handle);
    return this;
  }

  /** Counts the in-place changes. */
  get version(): number {
    return native.version(this.handle);
  }

  /** Address of the first element. */
  dataPtr(): bigint {
    recorder?.beforeAccess(this, 'dataPtr()');
    return native.dataPointer(this.handle);
  }

  /** Whether both are the same tensor of libtorch (two handles of one). */
  isSame(other: Tensor): boolean {
    return native.isSame(this.handle, checkedHandle('isSame', other));
  }

  /** A second handle of the same tensor, with a life of its own. */
  alias(): Tensor {
    return recorder === null ? Tensor.adopt(native.duplicate(this.handle)) : recorder.alias(this);
  }

  /** Makes this tensor be `source` in place; shape, type and device may change. Gradients do not flow. */
  setData(source: Tensor): this {
    recorder?.beforeAccess(this, 'setData()');
    native.setData(this.handle, checkedHandle('setData', source));
    return this;
  }

  /** The only element. int64 beyond 2^53 comes out as a BigInt. @example loss.item() */
  item(): number {
    recorder?.beforeAccess(this, 'item()');
    return native.item(this.handle) as number;
  }

  /** The only element of any type. */
  itemValue(): Element {
    recorder?.beforeAccess(this, 'itemValue()');
    return native.item(this.handle);
  }

  /** A copy of the elements, in order. 16- and 8-bit floats are widened to float32; complex ones are pairs. */
  toTypedArray(): TypedArray {
    recorder?.beforeAccess(this, 'toTypedArray()');
    return typedArray(this.toBufferOfPlainType());
  }

  /**
   * The tensor's own memory as a typed array: no copy, CPU and contiguous only. Writes go through. The memory lives as
   * long as the array, and the tensor cannot be resized beyond it meanwhile; after `setData` or a conversion of its module
   * the tensor has other memory, and the array shows the old values.
   */
  sharedArray(): TypedArray {
    recorder?.beforeAccess(this, 'sharedArray()');
    return typedArray([this.dtype, native.shareBuffer(this.handle)]);
  }

  /** Nested arrays of numbers, booleans (BigInt for int64 beyond 2^53) or complex pairs. */
  toArray(): NestedArray {
    recorder?.beforeAccess(this, 'toArray()');
    const [dtype, buffer] = this.toBufferOfPlainType();
    const flat = typedArray([dtype, buffer]);
    const element = elementReader(dtype, flat);
    const sizes = this.shape;
    let next = 0;
    const build = (level: number): NestedArray => {
      if (level === sizes.length) return element(next++);
      return Array.from({ length: sizes[level]! }, () => build(level + 1));
    };
    return build(0);
  }

  /** Same as `toArray`, PyTorch's name. */
  tolist(): NestedArray {
    return this.toArray();
  }

  /**
   * Text for `${x}`; a tensor is no number, so comparing or calculating with JavaScript's operators is an error: `x > 0` would be
   * false whatever x is.
   */
  [Symbol.toPrimitive](hint: string): string {
    if (hint !== 'number') return this.toString();
    throw new TorchError(
      'BAD_ARGUMENT',
      `Tensor: JavaScript's operators (>, <, -, *) and Number() do not work on tensors, got one of shape [${this.shape.join(', ')}]; use methods (x.gt(0), x.mul(2)), or read its one element first: x.item() > 0`,
    );
  }

  /** Frees the memory now; using the tensor afterwards is an error. */
  dispose(): void {
    disposeOwned(this);
  }

  [Symbol.dispose](): void {
    disposeOwned(this);
  }

  /** Whether `dispose` or the end of a scope has freed it. */
  get isDisposed(): boolean {
    return this.h === 0;
  }

  private wrapDim(dim: number): number {
    const dims = this.dim();
    const index = Number.isInteger(dim) && dim < 0 ? dim + dims : dim;
    if (Number.isInteger(index) && index >= 0 && index < dims) return index;
    throw new TorchError(
      'INDEX',
      `dimension ${show(dim)} does not exist: the tensor has ${dims}, so -${dims} to ${dims - 1} are allowed`,
    );
  }

  private toBufferOfPlainType(): [DType, ArrayBuffer] {
    const dtype = this.dtype;
    if (wideNames.has(dtype.name)) {
      const wide = native.toDtype(this.handle, dtype.isComplex ? 9 : float32.code);
      try {
        return [dtype.isComplex ? dtypeOfCode(9) : float32, native.toBuffer(wide)];
      } finally {
        native.release(wide);
      }
    }
    return [dtype, native.toBuffer(this.handle)];
  }
}

markOwned(Tensor);

const layouts = ['strided', 'sparse_coo', 'sparse_csr', 'mkldnn', 'sparse_csc', 'sparse_bsr', 'sparse_bsc', 'jagged'];

const wideNames = new Set<DTypeName>([
  'float16',
  'bfloat16',
  'complex32',
  'float8_e5m2',
  'float8_e4m3fn',
  'float8_e5m2fnuz',
  'float8_e4m3fnuz',
  'float8_e8m0fnu',
]);

/** The error of using a tensor after its end. */
export function disposedError(): TorchError {
  return new TorchError(
    'DISPOSED',
    'this tensor was disposed of (by dispose(), using, or the end of a scope); keep() it, or return it from the scope',
  );
}

function typedArray([dtype, buffer]: [DType, ArrayBuffer]): TypedArray {
  switch (dtype.name) {
    case 'float32':
    case 'complex64':
      return new Float32Array(buffer);
    case 'float64':
    case 'complex128':
      return new Float64Array(buffer);
    case 'int64':
      return new BigInt64Array(buffer);
    case 'uint64':
      return new BigUint64Array(buffer);
    case 'int32':
      return new Int32Array(buffer);
    case 'uint32':
      return new Uint32Array(buffer);
    case 'int16':
      return new Int16Array(buffer);
    case 'uint16':
    case 'float16':
    case 'bfloat16':
      return new Uint16Array(buffer);
    case 'int8':
      return new Int8Array(buffer);
    default:
      return new Uint8Array(buffer);
  }
}

function elementReader(dtype: DType, flat: TypedArray): (index: number) => Element {
  if (dtype.isComplex) return (i) => ({ re: flat[2 * i] as number, im: flat[2 * i + 1] as number });
  if (dtype === bool) return (i) => flat[i] === 1;
  if (flat instanceof BigInt64Array || flat instanceof BigUint64Array) {
    return (i) => {
      const whole = flat[i]!;
      return whole >= BigInt(Number.MIN_SAFE_INTEGER) && whole <= BigInt(Number.MAX_SAFE_INTEGER)
        ? Number(whole)
        : whole;
    };
  }
  return (i) => flat[i]!;
}

/** The handle of what a method takes, which must be a tensor. */
function checkedHandle(where: string, value: unknown): number {
  checkGiven(where, value instanceof Tensor, ['the argument', value], 'a tensor');
  return (value as Tensor).handle;
}
