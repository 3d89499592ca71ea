/** @file Sequences of different lengths in one batch: packed for recurrent layers, or padded. */

import { checkGiven, checkIterable } from '../base/checks.ts';
import { arange, emptyLike, padSequence as padSequenceOp, sort } from '../generated/functions.ts';
import { checkTensors, tensorList } from '../tensor/check-tensors.ts';
import '../generated/methods.ts';
import { checkOptions, TorchError } from '../base/errors.ts';
import { tensor as makeTensor } from '../functions/creation.ts';
import { callOp } from '../op/call.ts';
import { int64 } from '../tensor/dtype.ts';
import { Tensor } from '../tensor/tensor.ts';

/** Sequences without padding: their elements step by step, the longest sequence first. Made by `packPaddedSequence`. */
export class PackedSequence {
  readonly data: Tensor;
  /** How many sequences still run at each step. */
  readonly batchSizes: Tensor;
  readonly sortedIndices: Tensor | null;
  readonly unsortedIndices: Tensor | null;

  constructor(
    data: Tensor,
    batchSizes: Tensor,
    sortedIndices: Tensor | null = null,
    unsortedIndices: Tensor | null = null,
  ) {
    checkTensors('PackedSequence', { data, batchSizes }, { sortedIndices, unsortedIndices });
    this.data = data;
    this.batchSizes = batchSizes;
    this.sortedIndices = sortedIndices;
    this.unsortedIndices = unsortedIndices ?? (sortedIndices === null ? null : invert(sortedIndices));
  }

  /** Number of sequences. */
  get numSequences(): number {
    return this.batchSizes.select(0, 0).item();
  }

  /** The same sequences with other elements. */
  withData(data: Tensor): PackedSequence {
    return new PackedSequence(data, this.batchSizes, this.sortedIndices, this.unsortedIndices);
  }

  /** A state in the order of the packed sequences. */
  sort(state: Tensor): Tensor {
    return this.sortedIndices === null ? state : state.indexSelect(1, this.sortedIndices);
  }

  /** A state in the order in which the sequences were given. */
  unsort(state: Tensor): Tensor {
    return this.unsortedIndices === null ? state : state.indexSelect(1, this.unsortedIndices);
  }
}

function invert(permutation: Tensor): Tensor {
  return emptyLike(permutation).scatter_(
    0,
    permutation,
    arange(0, permutation.numel(), { device: permutation.device }),
  );
}

/** How sequences lie, and whether they are sorted by length already. */
export interface PackOptions {
  batchFirst?: boolean | undefined;
  enforceSorted?: boolean | undefined;
}

/** Packs padded sequences, given their lengths. @example packPaddedSequence(x, [5, 3, 2]) */
export function packPaddedSequence(
  input: Tensor,
  lengths: Tensor | readonly number[],
  options?: PackOptions,
): PackedSequence {
  checkOptions('packPaddedSequence', options, ['batchFirst', 'enforceSorted']);
  checkTensors('packPaddedSequence', { input });
  if (!(lengths instanceof Tensor)) checkIterable('packPaddedSequence', 'lengths', lengths, 'a tensor or an array');
  const batchFirst = options?.batchFirst ?? false;
  const sizes = lengths instanceof Tensor ? lengths.to(int64) : makeTensor([...lengths], { dtype: int64 });
  if (options?.enforceSorted !== false) return packed(input, sizes, batchFirst, null);
  const [sorted, order] = sort(sizes, -1, true);
  const indices = order.to(input.device);
  return packed(input.indexSelect(batchFirst ? 0 : 1, indices), sorted, batchFirst, indices);
}

function packed(input: Tensor, lengths: Tensor, batchFirst: boolean, indices: Tensor | null): PackedSequence {
  const [data, batchSizes] = callOp('aten::_pack_padded_sequence', [input, lengths.to('cpu'), batchFirst]) as [
    Tensor,
    Tensor,
  ];
  return new PackedSequence(data, batchSizes, indices);
}

/** How packed sequences are unpacked. */
export interface UnpackOptions {
  batchFirst?: boolean | undefined;
  paddingValue?: number | undefined;
  totalLength?: number | undefined;
}

/** Unpacks to padded sequences and their lengths. */
export function padPackedSequence(sequence: PackedSequence, options?: UnpackOptions): [Tensor, Tensor] {
  checkOptions('padPackedSequence', options, ['batchFirst', 'paddingValue', 'totalLength']);
  checkGiven('padPackedSequence', sequence instanceof PackedSequence, ['sequence', sequence], 'a PackedSequence');
  const { batchFirst = false, paddingValue = 0 } = options ?? {};
  const longest = sequence.batchSizes.size(0);
  const total = options?.totalLength ?? longest;
  if (total < longest)
    throw new TorchError(
      'BAD_ARGUMENT',
      `padPackedSequence: totalLength (${total}) must be at least the longest sequence (${longest})`,
    );
  const [padded, lengths] = callOp('aten::_pad_packed_sequence', [
    sequence.data,
    sequence.batchSizes,
    batchFirst,
    paddingValue,
    total,
  ]) as [Tensor, Tensor];
  const order = sequence.unsortedIndices;
  return order === null
    ? [padded, lengths]
    : [padded.indexSelect(batchFirst ? 0 : 1, order), lengths.indexSelect(0, order.to('cpu'))];
}

/** How sequences are padded. */
export interface PadSequenceOptions {
  batchFirst?: boolean | undefined;
  paddingValue?: number | undefined;
  paddingSide?: 'right' | 'left' | undefined;
}

/** Pads sequences of different lengths to one tensor. */
export function padSequence(sequences: readonly Tensor[], options?: PadSequenceOptions): Tensor {
  checkOptions('padSequence', options, ['batchFirst', 'paddingValue', 'paddingSide']);
  return padSequenceOp(
    sequences,
    options?.batchFirst ?? false,
    options?.paddingValue ?? 0,
    options?.paddingSide ?? 'right',
  );
}

/** Packs sequences of different lengths. */
export function packSequence(
  sequences: readonly Tensor[],
  options?: Pick<PackOptions, 'enforceSorted'>,
): PackedSequence {
  const lengths = tensorList('packSequence', 'sequences', sequences).map((sequence) => sequence.size(0));
  return packPaddedSequence(padSequence(sequences), lengths, options);
}
