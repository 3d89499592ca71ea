/**
 * @file A file in memory without reading it: tensors over parts of it are read when they are first used, and writing to
 * one changes memory, never the file.
 */
import { native } from '../addon/addon.ts';
import { checkObject, show } from '../base/checks.ts';
import { TorchError } from '../base/errors.ts';
import { type DType, type DTypeName, toDType } from '../tensor/dtype.ts';
import { unscoped } from '../tensor/scope.ts';
import { Tensor } from '../tensor/tensor.ts';

/** Where a tensor lies in a file. */
export interface MappedTensor {
  /** In bytes, from the file's beginning. */
  readonly offset: number;
  readonly dtype: DType | DTypeName;
  readonly shape: readonly number[];
}

/**
 * A mapped file. Its tensors stay valid after `dispose`; do not shorten the file while they live.
 *
 * @example using file = MappedFile.open('weights.bin'); const w = file.tensor({ offset: 64, dtype: 'float32', shape: [2, 3] })
 */
export class MappedFile {
  private readonly bytes: Tensor;

  private constructor(bytes: Tensor) {
    this.bytes = bytes;
  }

  /** Maps a file. */
  static open(path: string): MappedFile {
    if (typeof path !== 'string' || path === '')
      throw new TorchError('BAD_ARGUMENT', `MappedFile.open: expected the path of a file, got ${show(path)}`);
    return new MappedFile(unscoped(() => Tensor.adopt(native.mapFile(path))));
  }

  /** The file's length in bytes. */
  get size(): number {
    return this.bytes.numel();
  }

  /** A tensor over part of the file; a copy only where its place is not aligned for its type. */
  tensor(place: MappedTensor): Tensor {
    checkObject('MappedFile.tensor', 'the argument', place, '{ offset, dtype, shape }');
    const { offset, dtype, shape } = place;
    return Tensor.adopt(native.viewBytes(this.bytes.handle, offset, toDType(dtype).code, shape));
  }

  /** Lets go of the file; tensors made of it keep it mapped. */
  dispose(): void {
    this.bytes.dispose();
  }

  [Symbol.dispose](): void {
    this.dispose();
  }
}
