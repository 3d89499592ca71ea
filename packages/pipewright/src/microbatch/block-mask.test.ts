/** @file Tests of block masks: cut along the batch, with a mask function that knows which rows it has. */
import { arange, type Tensor, tensor } from '@pipewright/torch';
import { describe, expect, test } from 'vitest';
import { BlockMask, splitArgsKwargsIntoChunks, TensorChunkSpec } from './index.ts';

/** Row b sees the keys below its own length: 8, 4, 12, 16 and 1 of 16, in blocks of 4. */
const lengths = tensor([8, 4, 12, 16, 1]);

function maskOf(batch: number, options: { readonly full?: boolean } = {}): BlockMask {
  const count = arange(batch * 4).reshape([batch, 1, 4]);
  const indices = arange(batch * 16).reshape([batch, 1, 4, 4]);
  return new BlockMask({
    kvNumBlocks: count,
    kvIndices: indices,
    ...(options.full === true ? { fullKvNumBlocks: count.add(100), fullKvIndices: indices.add(100) } : {}),
    blockSize: [4, 4],
    seqLengths: [16, 16],
    maskMod: (row, _head, query, key) => query.ge(key).logicalAnd(key.lt(lengths.indexSelect(0, row.reshape([1])))),
  });
}

const sees = (mask: BlockMask, row: number, key: number): boolean =>
  mask.maskMod(tensor(row), tensor(0), tensor(15), tensor(key)).toArray() as unknown as boolean;

describe('a block mask', () => {
  test('is cut like a tensor, and its function counts rows of the whole batch', () => {
    const mask = maskOf(5, { full: true });
    const [args] = splitArgsKwargsIntoChunks([mask, arange(5)], {}, 2);
    const [first, second] = args.map(([piece]) => piece as BlockMask) as [BlockMask, BlockMask];
    expect([first.batchSize, second.batchSize]).toEqual([3, 2]);
    expect(second.kvIndices.equal(mask.kvIndices.narrow(0, 3, 2))).toBe(true);
    expect(second.fullKvNumBlocks!.equal(mask.fullKvNumBlocks!.narrow(0, 3, 2))).toBe(true);
    expect([second.blockSize, second.seqLengths]).toEqual([
      [4, 4],
      [16, 16],
    ]);
    // Rows 0 and 1 of the second piece are rows 3 and 4 of the batch: PyTorch says true and false for key 12.
    expect([sees(second, 0, 12), sees(second, 1, 12)]).toEqual([[true], [false]]);
    for (const row of [0, 1, 2]) expect(sees(first, row, 7)).toEqual(sees(mask, row, 7));
  });

  test('without full blocks has none in its pieces; a batch of one is shared', () => {
    const [args] = splitArgsKwargsIntoChunks([maskOf(4)], {}, 4);
    expect(args.map(([piece]) => (piece as BlockMask).fullKvIndices)).toEqual([null, null, null, null]);
    const one = maskOf(1);
    const [shared] = splitArgsKwargsIntoChunks([one, arange(6)], {}, 3);
    expect(shared.map(([piece]) => piece === one)).toEqual([true, true, true]);
    expect(shared.map(([, x]) => (x as Tensor).toArray())).toEqual([
      [0, 1],
      [2, 3],
      [4, 5],
    ]);
  });

  test('is refused along other dimensions, and when its parts do not fit', () => {
    expect(() =>
      splitArgsKwargsIntoChunks([maskOf(4)], {}, 2, { argsChunkSpec: [new TensorChunkSpec(1)] }),
    ).toThrowErrorMatchingInlineSnapshot(
      `[PipelineError: splitArgsKwargsIntoChunks: args[0] is a block mask, which is cut along dimension 0 only, not 1]`,
    );
    const { kvNumBlocks, kvIndices, blockSize, seqLengths, maskMod } = maskOf(4);
    const parts = { kvNumBlocks, kvIndices, blockSize, seqLengths, maskMod };
    expect(() => new BlockMask({ ...parts, fullKvIndices: kvIndices })).toThrowErrorMatchingInlineSnapshot(
      `[PipelineError: BlockMask: fullKvNumBlocks and fullKvIndices belong together; give both or neither]`,
    );
    expect(() => new BlockMask({ ...parts, kvIndices: kvIndices.narrow(0, 0, 3) })).toThrowErrorMatchingInlineSnapshot(
      `[PipelineError: BlockMask: its tensors have batches of 4, 3, 4, 4; all must be equally long]`,
    );
    expect(() => new BlockMask({ ...parts, maskMod: 1 as never })).toThrowErrorMatchingInlineSnapshot(
      `[PipelineError: BlockMask: maskMod is 1; give a function of batch, head, query and key]`,
    );
  });
});
