/** @file Memory as bytes: tensors over parts of it, and a quick look through it. */
import { native } from '../addon/addon.ts';
import { TorchError } from '../base/errors.ts';
import { type DType, type DTypeName, toDType } from '../tensor/dtype.ts';
import { Tensor } from '../tensor/tensor.ts';
import type { MappedTensor } from './mapped-file.ts';

/** Part of a tensor of bytes. */
export interface BytesRange {
  /** Default 0. */
  readonly offset?: number | undefined;
  /** Default: up to the end. */
  readonly length?: number | undefined;
  /** The elements that lie there; where it is given, they are checked to be finite. */
  readonly dtype?: DType | DTypeName | undefined;
}

/** What was found in a range of bytes. */
export interface ScannedBytes {
  /** 16 hexadecimal digits; every change of a single word gives another hash. */
  readonly hash: string;
  /** Whether no element is infinite or not a number; true where no dtype was given. */
  readonly finite: boolean;
}

/**
 * The hash of bytes and whether the floats in them are finite, at about the speed of memory.
 *
 * @example scanBytes(tensor([1, 2, 3], { dtype: 'uint8' })).hash
 */
export function scanBytes(bytes: Tensor, range: BytesRange = {}): ScannedBytes {
  if (!(bytes instanceof Tensor)) throw new TorchError('BAD_ARGUMENT', 'scanBytes: expected a tensor of uint8');
  const { offset = 0, length = bytes.numel() - offset, dtype } = range;
  const code = dtype === undefined ? 0 : toDType(dtype).code;
  const text = native.scanBytes(bytes.handle, offset, length, code, dtype !== undefined);
  return { hash: text.slice(0, 16), finite: text.length === 16 };
}

/**
 * The hashes of parts of some bytes, as `scanBytes` gives them, by several threads. `portable` does it without instructions that
 * only some processors have; for tests.
 *
 * @example hashRanges(bytes, [{ offset: 0, length: 64 }])
 */
export function hashRanges(
  bytes: Tensor,
  ranges: readonly { readonly offset: number; readonly length: number }[],
  { portable = false }: { readonly portable?: boolean | undefined } = {},
): string[] {
  const text = native.hashRanges(
    bytes.handle,
    ranges.map(({ offset }) => offset),
    ranges.map(({ length }) => length),
    portable,
  );
  return ranges.map((_, i) => text.slice(16 * i, 16 * (i + 1)));
}

/**
 * Copies each source into its target, by several threads; autograd does not see it.
 *
 * @example copyTensors([target], [source])
 */
export function copyTensors(targets: readonly Tensor[], sources: readonly Tensor[]): void {
  native.copyTensors(
    targets.map(({ handle }) => handle),
    sources.map(({ handle }) => handle),
  );
}

/**
 * Asks the system to begin writing part of a file to the disk, so that a sync later has less to wait for. Does nothing where the
 * system cannot.
 *
 * @example startWriting(file, 0, 8 << 20)
 */
export function startWriting(file: number, offset: number, length: number): void {
  native.startWriting(file, offset, length);
}

/**
 * A tensor over part of a uint8 tensor's memory; a copy only where its place is not aligned for its type.
 *
 * @example viewBytes(bytes, { offset: 64, dtype: 'float32', shape: [2, 3] })
 */
export function viewBytes(bytes: Tensor, { offset, dtype, shape }: MappedTensor): Tensor {
  return Tensor.adopt(native.viewBytes(bytes.handle, offset, toDType(dtype).code, shape));
}
