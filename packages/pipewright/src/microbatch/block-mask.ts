/** @file A block mask of attention: which blocks of keys each block of queries sees, and how it is cut into microbatches. */
import { Tensor } from '@pipewright/torch';
import { checkArgument, checkOptions, show } from '../base/checks.ts';
import { PipelineError } from '../base/errors.ts';

/** Whether query `query` sees key `key`, for index tensors that broadcast against each other. */
export type MaskMod = (batch: Tensor, head: Tensor, query: Tensor, key: Tensor) => Tensor;

/** The parts of a block mask. */
export interface BlockMaskParts {
  /** `[batch, head, query blocks]`: how many partly visible key blocks. */
  readonly kvNumBlocks: Tensor;
  /** `[batch, head, query blocks, key blocks]`: which ones. */
  readonly kvIndices: Tensor;
  /** The same for wholly visible blocks, if they are kept apart. */
  readonly fullKvNumBlocks?: Tensor | null | undefined;
  readonly fullKvIndices?: Tensor | null | undefined;
  /** Queries and keys in a block. */
  readonly blockSize: readonly [queries: number, keys: number];
  /** Queries and keys in all. */
  readonly seqLengths: readonly [queries: number, keys: number];
  readonly maskMod: MaskMod;
}

/**
 * A block mask. A batch of one broadcasts: every microbatch gets the same mask.
 *
 * @example splitArgsKwargsIntoChunks([x], { mask: new BlockMask({ kvNumBlocks, kvIndices, blockSize, seqLengths, maskMod }) }, 4)
 */
export class BlockMask implements BlockMaskParts {
  readonly kvNumBlocks: Tensor;
  readonly kvIndices: Tensor;
  readonly fullKvNumBlocks: Tensor | null;
  readonly fullKvIndices: Tensor | null;
  readonly blockSize: readonly [queries: number, keys: number];
  readonly seqLengths: readonly [queries: number, keys: number];
  readonly maskMod: MaskMod;

  constructor(parts: BlockMaskParts) {
    checkOptions('BlockMask', parts, [
      ...['kvNumBlocks', 'kvIndices', 'fullKvNumBlocks', 'fullKvIndices'],
      ...['blockSize', 'seqLengths', 'maskMod'],
    ]);
    const isParts = parts?.kvNumBlocks instanceof Tensor && parts.kvIndices instanceof Tensor;
    checkArgument(
      'BlockMask',
      isParts,
      ['the argument', parts],
      'an object with kvNumBlocks and kvIndices, or use createBlockMask',
    );
    for (const name of ['blockSize', 'seqLengths'] as const)
      checkArgument(
        'BlockMask',
        Array.isArray(parts[name]) && parts[name].length === 2,
        [name, parts[name]],
        'two numbers',
      );
    this.kvNumBlocks = parts.kvNumBlocks;
    this.kvIndices = parts.kvIndices;
    this.fullKvNumBlocks = parts.fullKvNumBlocks ?? null;
    this.fullKvIndices = parts.fullKvIndices ?? null;
    this.blockSize = parts.blockSize;
    this.seqLengths = parts.seqLengths;
    this.maskMod = parts.maskMod;
    if (typeof this.maskMod !== 'function')
      throw badMask(`maskMod is ${show(this.maskMod)}; give a function of batch, head, query and key`);
    if ((this.fullKvNumBlocks === null) !== (this.fullKvIndices === null))
      throw badMask('fullKvNumBlocks and fullKvIndices belong together; give both or neither');
    const sizes = this.tensors().map((part) => part?.shape[0] ?? this.batchSize);
    if (sizes.some((size) => size !== this.batchSize))
      throw badMask(`its tensors have batches of ${sizes.join(', ')}; all must be equally long`);
  }

  /** Entries of the batch. */
  get batchSize(): number {
    return this.kvNumBlocks.size(0);
  }

  /** One mask for each size, in order; their tensors are views. */
  split(sizes: readonly number[]): BlockMask[] {
    const areSizes = Array.isArray(sizes) && [...sizes].every((size) => Number.isSafeInteger(size) && size >= 0);
    checkArgument('BlockMask.split', areSizes, ['the sizes', sizes], 'an array of whole numbers');
    if (this.batchSize === 1) return sizes.map(() => this);
    let before = 0;
    return sizes.map((size) => {
      const offset = before;
      before += size;
      const [kvNumBlocks, kvIndices, fullKvNumBlocks, fullKvIndices] = this.tensors().map(
        (part) => part?.narrow(0, offset, size) ?? null,
      );
      return new BlockMask({
        kvNumBlocks: kvNumBlocks!,
        kvIndices: kvIndices!,
        fullKvNumBlocks,
        fullKvIndices,
        blockSize: this.blockSize,
        seqLengths: this.seqLengths,
        maskMod: (batch, head, query, key) => this.maskMod(batch.add(offset), head, query, key),
      });
    });
  }

  private tensors(): (Tensor | null)[] {
    return [this.kvNumBlocks, this.kvIndices, this.fullKvNumBlocks, this.fullKvIndices];
  }
}

function badMask(what: string): PipelineError {
  return new PipelineError('BAD_MASK', `BlockMask: ${what}`);
}
