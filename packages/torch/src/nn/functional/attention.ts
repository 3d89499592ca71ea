/** @file Attention of several heads, step by step as PyTorch computes it. */
import { checkObject, checkText } from '../../base/checks.ts';
import {
  baddbmm,
  bmm,
  cat,
  constantPadNd,
  dropout,
  linear,
  scaledDotProductAttention as sdpa,
  zeros,
  zerosLike,
} from '../../generated/functions.ts';
import '../../generated/methods.ts';
import { checkOptions, TorchError } from '../../base/errors.ts';
import { checkTensors } from '../../tensor/check-tensors.ts';
import { bool, type DType } from '../../tensor/dtype.ts';
import type { Tensor } from '../../tensor/tensor.ts';

export { scaledDotProductAttention } from '../../generated/functions.ts';

/** The weights of an attention. */
export interface AttentionWeights {
  /** Query, key and value projections in one, or null where they are separate. */
  inProjWeight: Tensor | null;
  inProjBias: Tensor | null;
  /** Separate projections, where keys or values have another width. */
  qProjWeight?: Tensor | null | undefined;
  kProjWeight?: Tensor | null | undefined;
  vProjWeight?: Tensor | null | undefined;
  biasK?: Tensor | null | undefined;
  biasV?: Tensor | null | undefined;
  outProjWeight: Tensor;
  outProjBias: Tensor | null;
}

/** How an attention attends. */
export interface AttentionOptions extends AttentionWeights {
  numHeads: number;
  addZeroAttn?: boolean | undefined;
  dropoutP?: number | undefined;
  training?: boolean | undefined;
  /** Keys that are left out: true, or what is added to the scores. */
  keyPaddingMask?: Tensor | null | undefined;
  /** Pairs that are left out: true, or what is added to the scores. */
  attnMask?: Tensor | null | undefined;
  needWeights?: boolean | undefined;
  averageAttnWeights?: boolean | undefined;
  /** A promise that `attnMask` is the causal one. */
  isCausal?: boolean | undefined;
}

const known = [
  'inProjWeight',
  'inProjBias',
  'qProjWeight',
  'kProjWeight',
  'vProjWeight',
  'biasK',
  'biasV',
  'outProjWeight',
  'outProjBias',
  'numHeads',
  'addZeroAttn',
  'dropoutP',
  'training',
  'keyPaddingMask',
  'attnMask',
  'needWeights',
  'averageAttnWeights',
  'isCausal',
];

/** A mask as numbers to add: minus infinity where a boolean mask is true. */
export function additiveMask(name: string, mask: Tensor | null | undefined, dtype: DType): Tensor | null {
  checkText('additiveMask', 'the name', name);
  checkTensors('additiveMask', {}, { mask });
  if (mask === undefined || mask === null) return null;
  if (mask.isFloatingPoint()) return mask;
  if (mask.dtype !== bool)
    throw new TorchError('DTYPE', `${name} is a boolean or floating-point tensor, got ${mask.dtype.name}`);
  return zerosLike(mask, { dtype }).maskedFill_(mask, -Infinity);
}

/** Queries, keys and values from their inputs; one product where two or three inputs are the same. */
function project(query: Tensor, key: Tensor, value: Tensor, weights: AttentionOptions): [Tensor, Tensor, Tensor] {
  const { inProjWeight: weight, inProjBias: bias } = weights;
  const width = query.size(-1);
  if (weight === null) {
    const { qProjWeight, kProjWeight, vProjWeight } = weights;
    if (!qProjWeight || !kProjWeight || !vProjWeight)
      throw new TorchError(
        'MISSING_ARGUMENT',
        'multiHeadAttentionForward: without inProjWeight, give qProjWeight, kProjWeight and vProjWeight',
      );
    const [q, k, v] = bias === null ? [null, null, null] : (bias.chunk(3) as Triple);
    return [linear(query, qProjWeight, q), linear(key, kProjWeight, k), linear(value, vProjWeight, v)];
  }
  const parts = (projected: Tensor, count: number): Tensor =>
    projected.unflatten(-1, [count, width]).unsqueeze(0).transpose(0, -2).squeeze(-2).contiguous();
  if (key === value && query === key) {
    return parts(linear(query, weight, bias), 3).unbind() as Triple;
  }
  if (key === value) {
    const [wq, wkv] = weight.splitWithSizes([width, 2 * width]) as [Tensor, Tensor];
    const [bq, bkv] = bias === null ? [null, null] : (bias.splitWithSizes([width, 2 * width]) as [Tensor, Tensor]);
    const [k, v] = parts(linear(key, wkv, bkv), 2).unbind() as [Tensor, Tensor];
    return [linear(query, wq, bq), k, v];
  }
  const [wq, wk, wv] = weight.chunk(3) as Triple;
  const [bq, bk, bv] = bias === null ? [null, null, null] : (bias.chunk(3) as Triple);
  return [linear(query, wq, bq), linear(key, wk, bk), linear(value, wv, bv)];
}

type Triple = [Tensor, Tensor, Tensor];

function checkMask(mask: Tensor, batchHeads: number, targets: number, sources: number): Tensor {
  const dims = mask.dim();
  const wanted = dims === 3 ? [batchHeads, targets, sources] : [targets, sources];
  if ((dims !== 2 && dims !== 3) || wanted.some((size, i) => size !== mask.size(i))) {
    throw new TorchError(
      'SHAPE',
      `multiHeadAttentionForward: attnMask is [${targets}, ${sources}] or [${batchHeads}, ${targets}, ${sources}], got [${mask.shape.join(', ')}]`,
    );
  }
  return dims === 2 ? mask.unsqueeze(0) : mask;
}

/**
 * Attention of several heads: [length, batch, width] in and out, or [length, width] for one example; with the weights
 * of attention, averaged over heads unless told otherwise, where `needWeights` is not false.
 */
export function multiHeadAttentionForward(
  queryIn: Tensor,
  keyIn: Tensor,
  valueIn: Tensor,
  options: AttentionOptions,
): [Tensor, Tensor | null] {
  checkTensors('multiHeadAttentionForward', { queryIn, keyIn, valueIn });
  checkObject(
    'multiHeadAttentionForward',
    'the fourth argument',
    options,
    'an object with numHeads, inProjWeight and so on',
  );
  checkOptions('multiHeadAttentionForward', options, known);
  const { numHeads, needWeights = true, averageAttnWeights = true, addZeroAttn = false, training = true } = options;
  const dropoutP = training ? (options.dropoutP ?? 0) : 0;
  const isBatched = queryIn.dim() === 3;
  if (!isBatched && queryIn.dim() !== 2)
    throw new TorchError(
      'SHAPE',
      `multiHeadAttentionForward: the query must have 2 or 3 dimensions, this one has ${queryIn.dim()}`,
    );
  const query = isBatched ? queryIn : queryIn.unsqueeze(1);
  const key = isBatched ? keyIn : keyIn === queryIn ? query : keyIn.unsqueeze(1);
  const value = isBatched ? valueIn : valueIn === keyIn ? key : valueIn.unsqueeze(1);
  const [targets = 0, batch = 0, width = 0] = query.shape;
  const headDim = Math.floor(width / numHeads);
  if (headDim * numHeads !== width)
    throw new TorchError(
      'SHAPE',
      `multiHeadAttentionForward: the width (${width}) must be a multiple of numHeads (${numHeads})`,
    );
  const dtype = query.dtype;
  let padding = additiveMask('keyPaddingMask', options.keyPaddingMask, dtype);
  if (padding !== null && !isBatched) padding = padding.unsqueeze(0);
  let isCausal = options.isCausal ?? false;
  let mask: Tensor | null = null;
  if (isCausal && !options.attnMask)
    throw new TorchError(
      'MISSING_ARGUMENT',
      'multiHeadAttentionForward: isCausal is a hint about attnMask, so give that too (Transformer.generateSquareSubsequentMask)',
    );
  if (!(isCausal && padding === null && !needWeights)) {
    mask = additiveMask('attnMask', options.attnMask, dtype);
    if (padding !== null) isCausal = false;
  }
  let [q, k, v] = project(query, key, value, options);
  if (mask !== null) mask = checkMask(mask, batch * numHeads, targets, key.size(0));
  const widen = (more: Tensor | null): Tensor | null => (more === null ? null : constantPadNd(more, [0, 1]));
  const { biasK, biasV } = options;
  if (biasK && biasV) {
    k = cat([k, biasK.repeat([1, batch, 1])]);
    v = cat([v, biasV.repeat([1, batch, 1])]);
    [mask, padding] = [widen(mask), widen(padding)];
  }
  const heads = (x: Tensor): Tensor => x.view(x.size(0), batch * numHeads, headDim).transpose(0, 1);
  [q, k, v] = [heads(q), heads(k), heads(v)];
  if (addZeroAttn) {
    const nothing = zeros([batch * numHeads, 1, headDim], { dtype: k.dtype, device: k.device });
    k = cat([k, nothing], 1);
    v = cat([v, nothing], 1);
    [mask, padding] = [widen(mask), widen(padding)];
  }
  const sources = k.size(1);
  if (padding !== null) {
    const wide = padding
      .view(batch, 1, 1, sources)
      .expand([-1, numHeads, -1, -1])
      .reshape([batch * numHeads, 1, sources]);
    mask = mask === null ? wide : mask.add(wide);
  }
  const finish = (x: Tensor): Tensor => {
    const out = linear(x, options.outProjWeight, options.outProjBias);
    const shaped = out.view(targets, batch, out.size(1));
    return isBatched ? shaped : shaped.squeeze(1);
  };
  if (!needWeights) {
    if (mask !== null)
      mask = mask.size(0) === 1 && mask.dim() === 3 ? mask.unsqueeze(0) : mask.view(batch, numHeads, -1, sources);
    const split = (x: Tensor, length: number): Tensor => x.view(batch, numHeads, length, headDim);
    const attended = sdpa(split(q, targets), split(k, sources), split(v, sources), mask, dropoutP, isCausal);
    return [finish(attended.permute([2, 0, 1, 3]).reshape([batch * targets, width])), null];
  }
  const scaled = q.mul(Math.sqrt(1 / headDim));
  let weights = (mask === null ? bmm(scaled, k.transpose(-2, -1)) : baddbmm(mask, scaled, k.transpose(-2, -1))).softmax(
    -1,
  );
  if (dropoutP > 0) weights = dropout(weights, dropoutP, true);
  const output = finish(
    bmm(weights, v)
      .transpose(0, 1)
      .reshape([targets * batch, width]),
  );
  weights = weights.view(batch, numHeads, targets, sources);
  if (averageAttnWeights) weights = weights.mean([1]);
  return [output, isBatched ? weights : weights.squeeze(0)];
}
