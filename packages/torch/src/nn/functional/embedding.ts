/** @file Rows of a table by number, and sums of them. */

import { checkText, show } from '../../base/checks.ts';
import { checkWhole } from '../../base/options.ts';
import {
  arange,
  embeddingBag as embeddingBagOp,
  embedding as embeddingOp,
  embeddingRenorm_,
} from '../../generated/functions.ts';
import '../../generated/methods.ts';
import { noGrad } from '../../autograd/modes.ts';
import { checkOptions, didYouMean, TorchError } from '../../base/errors.ts';
import { checkTensors } from '../../tensor/check-tensors.ts';
import { scope } from '../../tensor/scope.ts';
import type { Tensor } from '../../tensor/tensor.ts';

/** What an embedding can be told. */
export interface EmbeddingOptions {
  /** A row that gets no gradient. */
  paddingIdx?: number | null | undefined;
  /** Rows with a larger norm are shortened to it, in place. */
  maxNorm?: number | null | undefined;
  normType?: number | undefined;
  scaleGradByFreq?: boolean | undefined;
  sparse?: boolean | undefined;
}

/** Shortens the rows that are used, without gradients. */
function renorm(weight: Tensor, indices: Tensor, maxNorm: number, normType: number): void {
  noGrad(() => scope(() => void embeddingRenorm_(weight.detach(), indices, maxNorm, normType)));
}

/** A row number that may count from the end. */
export function checkPadding(where: string, paddingIdx: number | null | undefined, rows: number): number | null {
  checkText('checkPadding', 'where', where);
  checkWhole(`${where}: the number of rows`, rows);
  if (paddingIdx === undefined || paddingIdx === null) return null;
  if (!Number.isInteger(paddingIdx) || paddingIdx >= rows || paddingIdx < -rows)
    throw new TorchError('INDEX', `${where}: paddingIdx ${show(paddingIdx)} must be between ${-rows} and ${rows - 1}`);
  return paddingIdx < 0 ? paddingIdx + rows : paddingIdx;
}

/** The rows of `weight` that `input` names. @example F.embedding(tokens, table) */
export function embedding(input: Tensor, weight: Tensor, options?: EmbeddingOptions): Tensor {
  checkTensors('embedding', { input, weight });
  if (options === undefined) return embeddingOp(weight, input);
  checkOptions('embedding', options, ['paddingIdx', 'maxNorm', 'normType', 'scaleGradByFreq', 'sparse']);
  const { maxNorm, normType = 2, scaleGradByFreq = false, sparse = false } = options;
  const paddingIdx = checkPadding('embedding', options.paddingIdx, weight.size(0)) ?? -1;
  if (maxNorm === undefined || maxNorm === null) return embeddingOp(weight, input, paddingIdx, scaleGradByFreq, sparse);
  const indices = input.contiguous();
  renorm(weight, indices, maxNorm, normType);
  return embeddingOp(weight, indices, paddingIdx, scaleGradByFreq, sparse);
}

/** How the rows of a bag become one. */
export type BagMode = 'sum' | 'mean' | 'max';

/** What an embedding of bags can be told. */
export interface EmbeddingBagOptions extends EmbeddingOptions {
  /** Where each bag begins, for an input of one dimension. */
  offsets?: Tensor | null | undefined;
  mode?: BagMode | undefined;
  perSampleWeights?: Tensor | null | undefined;
  includeLastOffset?: boolean | undefined;
}

const modes: Readonly<Record<string, number>> = { sum: 0, mean: 1, max: 2 };

/** Sums, means or maxima of bags of rows: the rows of `input` are bags, or `offsets` says where bags begin. */
export function embeddingBag(input: Tensor, weight: Tensor, options?: EmbeddingBagOptions): Tensor {
  checkTensors('embeddingBag', { input, weight });
  checkOptions('embeddingBag', options, [
    'offsets',
    'paddingIdx',
    'maxNorm',
    'normType',
    'scaleGradByFreq',
    'mode',
    'sparse',
    'perSampleWeights',
    'includeLastOffset',
  ]);
  const { maxNorm, normType = 2, scaleGradByFreq = false, mode = 'mean', sparse = false } = options ?? {};
  const code = modes[mode];
  if (code === undefined)
    throw new TorchError(
      'BAD_ARGUMENT',
      `embeddingBag: mode is 'sum', 'mean' or 'max', got '${mode}'${didYouMean(mode, Object.keys(modes))}`,
    );
  if (mode === 'max' && (scaleGradByFreq || sparse))
    throw new TorchError('BAD_ARGUMENT', "embeddingBag: mode 'max' allows neither scaleGradByFreq nor sparse");
  if (options?.perSampleWeights && mode !== 'sum')
    throw new TorchError('BAD_ARGUMENT', `embeddingBag: perSampleWeights go with mode 'sum' only, not with '${mode}'`);
  const bags = bagsOf(input, options);
  if (maxNorm !== undefined && maxNorm !== null) renorm(weight, bags.indices, maxNorm, normType);
  const paddingIdx = checkPadding('embeddingBag', options?.paddingIdx, weight.size(0));
  return embeddingBagOp(
    weight,
    bags.indices,
    bags.offsets,
    scaleGradByFreq,
    code,
    sparse,
    bags.weights,
    bags.last,
    paddingIdx,
  )[0];
}

interface Bags {
  readonly indices: Tensor;
  readonly offsets: Tensor;
  readonly weights: Tensor | null;
  readonly last: boolean;
}

function bagsOf(input: Tensor, options: EmbeddingBagOptions | undefined): Bags {
  const weights = options?.perSampleWeights ?? null;
  const offsets = options?.offsets ?? null;
  if (weights !== null && weights.shape.join() !== input.shape.join()) {
    throw new TorchError(
      'SHAPE',
      `embeddingBag: perSampleWeights [${weights.shape.join(', ')}] must have the shape of the input, [${input.shape.join(', ')}]`,
    );
  }
  const dims = input.dim();
  if (dims === 2) {
    if (offsets !== null)
      throw new TorchError(
        'BAD_ARGUMENT',
        'embeddingBag: the rows of an input of 2 dimensions are the bags, so offsets must be left out',
      );
    const starts = arange(0, input.numel(), input.size(1), { dtype: input.dtype, device: input.device });
    return {
      indices: input.reshape(-1),
      offsets: starts,
      weights: weights === null ? null : weights.reshape(-1),
      last: false,
    };
  }
  if (dims !== 1)
    throw new TorchError('SHAPE', `embeddingBag: the input must have 1 or 2 dimensions, this one has ${dims}`);
  if (offsets === null || offsets.dim() !== 1)
    throw new TorchError(
      'MISSING_ARGUMENT',
      'embeddingBag: an input of 1 dimension needs offsets, a tensor of 1 dimension',
    );
  return { indices: input, offsets, weights, last: options?.includeLastOffset ?? false };
}
