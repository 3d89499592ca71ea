/**
 * @file Attention with scores and masks that are functions, computed eagerly: all scores are made, changed and masked.
 * It needs memory for the whole matrix of scores, but models with block masks run with it and can be split.
 */
import { arange, Tensor, where } from '@pipewright/torch';
import { checkArgument, checkCount, checkOptions } from '../base/checks.ts';
import { BlockMask, type MaskMod } from './block-mask.ts';

/** The positions of scores: index tensors that broadcast against each other and against the scores. */
export interface ScorePlace {
  readonly batch: Tensor;
  readonly head: Tensor;
  readonly query: Tensor;
  readonly key: Tensor;
}

/** Changes the scores. @example const alibi: ScoreMod = (score, { query, key }) => score.sub(query.sub(key).abs()) */
export type ScoreMod = (score: Tensor, at: ScorePlace) => Tensor;

/** How attention is computed. */
export interface FlexAttentionOptions {
  /** Changes the scaled scores before the softmax. */
  readonly scoreMod?: ScoreMod | null | undefined;
  /** Which queries see which keys; rows that see none give zeros. */
  readonly blockMask?: BlockMask | null | undefined;
  /** Default: one over the root of the queries' width. */
  readonly scale?: number | null | undefined;
  /** Lets several heads of queries share one of keys and values. Default false. */
  readonly enableGqa?: boolean | undefined;
}

/**
 * Attention of `[batch, heads, queries, width]` on `[batch, heads, keys, width]`.
 *
 * @example flexAttention(q, k, v, { scoreMod: (score, { query, key }) => score.sub(query.sub(key).abs()) })
 */
export function flexAttention(query: Tensor, key: Tensor, value: Tensor, options: FlexAttentionOptions = {}): Tensor {
  checkOptions('flexAttention', options, ['scoreMod', 'blockMask', 'scale', 'enableGqa']);
  for (const [name, each] of Object.entries({ query, key, value })) {
    const is4d = each instanceof Tensor && each.dim() === 4;
    checkArgument('flexAttention', is4d, [name, each], 'a tensor of [batch, heads, length, width]');
  }
  const { scoreMod = null, blockMask = null, scale = null, enableGqa = false } = options;
  const isMask = blockMask === null || blockMask instanceof BlockMask;
  checkArgument('flexAttention', isMask, ['blockMask', blockMask], 'a BlockMask, as createBlockMask makes it');
  const [heads, ownHeads] = [query.size(1), key.size(1)];
  const fits = heads === ownHeads || (enableGqa && heads % ownHeads === 0);
  const rule = `as many heads as keys (${ownHeads}), or a multiple of them with enableGqa: true`;
  checkArgument('flexAttention', fits, ['the number of heads of queries', heads], rule);
  const [k, v] = heads === ownHeads ? [key, value] : [key, value].map((each) => each.repeatInterleave(heads / ownHeads, { dim: 1 })); // biome-ignore format: one line
  let scores = query.matmul(k!.transpose(-2, -1)).mul(scale ?? 1 / Math.sqrt(query.size(3)));
  const at = indices(scores.shape);
  const [batch, head, row, column] = at;
  if (scoreMod !== null) scores = scoreMod(scores, { batch, head, query: row, key: column });
  if (blockMask === null) return scores.softmax(-1).matmul(v!);
  const seen = blockMask.maskMod(...at);
  const weights = where(seen, scores, Number.NEGATIVE_INFINITY).softmax(-1);
  // A row without any key has no softmax: it gives zeros.
  return where(seen.expand(scores.shape).any(-1, true), weights, 0).matmul(v!);
}

/** The sizes that a mask is made for; one for batch and heads where the mask does not depend on them. */
export interface BlockMaskSizes {
  readonly batch?: number | undefined;
  readonly heads?: number | undefined;
  readonly queries: number;
  readonly keys: number;
  /** Queries and keys in a block. Default 128. */
  readonly blockSize?: number | undefined;
}

/**
 * A block mask from a function that says which queries see which keys.
 *
 * @example createBlockMask((b, h, query, key) => query.ge(key), { queries: 256, keys: 256 })
 */
export function createBlockMask(maskMod: MaskMod, sizes: BlockMaskSizes): BlockMask {
  checkArgument('createBlockMask', typeof maskMod === 'function', ['maskMod', maskMod], 'a function of indices');
  const isSizes = typeof sizes === 'object' && sizes !== null;
  checkArgument('createBlockMask', isSizes, ['the sizes', sizes], '{ queries, keys }');
  checkOptions('createBlockMask', sizes, ['batch', 'heads', 'queries', 'keys', 'blockSize']);
  const count = (name: keyof BlockMaskSizes, otherwise?: number): number =>
    checkCount('createBlockMask', name, sizes[name] ?? otherwise);
  const [batch, heads, block] = [count('batch', 1), count('heads', 1), count('blockSize', 128)];
  const [queries, keys] = [count('queries'), count('keys')];
  const [rows, columns] = [Math.ceil(queries / block), Math.ceil(keys / block)];
  const shape = [batch, heads, rows * block, columns * block];
  const at = indices(shape);
  const inside = at[2].lt(queries).logicalAnd(at[3].lt(keys));
  const seen = maskMod(...at)
    .logicalAnd(inside)
    .expand(shape);
  const visible = seen.reshape([batch, heads, rows, block, columns, block]).sum([3, 5]);
  const partly = visible.gt(0).logicalAnd(visible.lt(block * block));
  const wholly = visible.eq(block * block);
  const [kvNumBlocks, kvIndices] = blocksOf(partly);
  const [fullKvNumBlocks, fullKvIndices] = blocksOf(wholly);
  const parts = { kvNumBlocks, kvIndices, fullKvNumBlocks, fullKvIndices };
  return new BlockMask({ ...parts, blockSize: [block, block], seqLengths: [queries, keys], maskMod });
}

/** How many blocks of each row are marked, and which: the marked ones first, in order. */
function blocksOf(marked: Tensor): [numBlocks: Tensor, indices: Tensor] {
  const order = marked.int().argsort({ stable: true, dim: -1, descending: true });
  return [marked.sum(-1).int(), order.int()];
}

/** Index tensors that broadcast to a shape of four dimensions. */
function indices(shape: readonly number[]): [batch: Tensor, head: Tensor, query: Tensor, key: Tensor] {
  const at = (dim: number): Tensor =>
    arange(shape[dim]!).view([0, 1, 2, 3].map((each) => (each === dim ? shape[dim]! : 1)));
  return [at(0), at(1), at(2), at(3)];
}
