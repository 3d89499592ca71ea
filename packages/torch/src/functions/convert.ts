/** @file `x.to(...)`: to another element type, device or both; and the views that PyTorch spells as properties. */

import { checkGiven, show } from '../base/checks.ts';
import { TorchError } from '../base/errors.ts';
import { bindOp, callBound } from '../op/bind.ts';
import { isOptions, kindOf } from '../op/kind.ts';
import type { Device } from '../tensor/device.ts';
import { DType } from '../tensor/dtype.ts';
import { Tensor } from '../tensor/tensor.ts';
import type { DTypeLike, MemoryFormat } from '../tensor/types.ts';

/** What `to` can change, and how. */
export interface ToOptions {
  dtype?: DTypeLike | null | undefined;
  device?: Device | null | undefined;
  nonBlocking?: boolean | undefined;
  copy?: boolean | undefined;
  memoryFormat?: MemoryFormat | null | undefined;
}

declare module '../tensor/tensor.ts' {
  interface Tensor {
    /** The tensor in another element type. Returns the tensor itself where nothing changes. @example x.to(float64) */
    to(dtype: DTypeLike, options?: ToOptions): Tensor;
    /** The tensor on another device. @example x.to('cuda') */
    to(device: Device, options?: ToOptions): Tensor;
    /** On another device and in another element type. @example x.to('cuda', bfloat16) */
    to(device: Device, dtype: DTypeLike, options?: ToOptions): Tensor;
    /** With the element type and device of another tensor. @example x.to(weight) */
    to(other: Tensor, options?: ToOptions): Tensor;
    /** @example x.to({ dtype: float16, device: 'cuda' }) */
    to(options: ToOptions): Tensor;
    /** In float64. */
    double(): Tensor;
    /** In float32. */
    float(): Tensor;
    /** In float16. */
    half(): Tensor;
    /** In bfloat16. */
    bfloat16(): Tensor;
    /** In int64. */
    long(): Tensor;
    /** In int32. */
    int(): Tensor;
    /** In int16. */
    short(): Tensor;
    /** In int8. */
    char(): Tensor;
    /** In uint8. */
    byte(): Tensor;
    /** In bool. */
    bool(): Tensor;
    /** On the CPU. */
    cpu(): Tensor;
    /** On a GPU: the current one, or that of the number given. */
    cuda(device?: number): Tensor;
    /** The transpose: dimensions in the reverse order. */
    readonly T: Tensor;
    /** The conjugate transpose of a matrix. */
    readonly H: Tensor;
    /** The last two dimensions exchanged. */
    readonly mT: Tensor;
    /** The last two dimensions exchanged, conjugated. */
    readonly mH: Tensor;
    /** The real part: a view. */
    readonly real: Tensor;
    /** The imaginary part: a view. */
    readonly imag: Tensor;
  }
}

const known = new Set(['dtype', 'device', 'nonBlocking', 'copy', 'memoryFormat']);

function to(this: Tensor, ...args: unknown[]): Tensor {
  const options: Record<string, unknown> = {};
  if (isOptions(args[args.length - 1])) Object.assign(options, args.pop());
  const unknownKey = Object.keys(options).find((key) => !known.has(key));
  if (unknownKey !== undefined) {
    throw new TorchError('UNKNOWN_OPTION', `to: unknown option '${unknownKey}'; it takes ${[...known].join(', ')}`);
  }
  const give = (key: 'dtype' | 'device', value: unknown): void => {
    if (options[key] !== undefined) throw new TorchError('ARGUMENT_COUNT', `to: ${key} is given twice`);
    options[key] = value;
  };
  for (const arg of args) {
    const kind = kindOf(arg);
    if (arg instanceof Tensor) {
      give('dtype', arg.dtype);
      give('device', arg.device);
    } else if (arg instanceof DType || kind === 'd') give('dtype', arg);
    else if (typeof arg === 'string') give('device', arg);
    else if (arg !== undefined) {
      throw new TorchError(
        'BAD_ARGUMENT',
        `to: expected a dtype, a device, a tensor or options, got ${show(arg)}; for example x.to(float64), x.to('cuda', bfloat16)`,
      );
    }
  }
  const { dtype, device, nonBlocking, copy, memoryFormat } = options;
  return callBound(bindOp('aten::to.dtype_layout'), [
    this,
    dtype,
    null,
    device,
    null,
    nonBlocking,
    copy,
    memoryFormat,
  ]) as Tensor;
}

const views: Readonly<Record<string, string>> = {
  T: 'aten::numpy_T',
  H: 'aten::matrix_H',
  mT: 'aten::mT',
  mH: 'aten::mH',
  real: 'aten::real',
  imag: 'aten::imag',
};

const typeMethods: Readonly<Record<string, DTypeLike>> = {
  double: 'float64',
  float: 'float32',
  half: 'float16',
  bfloat16: 'bfloat16',
  long: 'int64',
  int: 'int32',
  short: 'int16',
  char: 'int8',
  byte: 'uint8',
  bool: 'bool',
};

Object.assign(Tensor.prototype, {
  to,
  cpu(this: Tensor): Tensor {
    return this.to('cpu');
  },
  cuda(this: Tensor, device?: number): Tensor {
    const isNumber = device === undefined || (Number.isInteger(device) && device >= 0);
    checkGiven('cuda', isNumber, ['the device', device], 'the number of a GPU');
    return this.to(device === undefined ? 'cuda' : `cuda:${device}`);
  },
});
for (const [name, dtype] of Object.entries(typeMethods)) {
  Object.defineProperty(Tensor.prototype, name, {
    configurable: true,
    writable: true,
    value(this: Tensor): Tensor {
      return this.to(dtype);
    },
  });
}
for (const [key, name] of Object.entries(views)) {
  Object.defineProperty(Tensor.prototype, key, {
    configurable: true,
    get(this: Tensor) {
      return callBound(bindOp(name), [this]);
    },
  });
}
