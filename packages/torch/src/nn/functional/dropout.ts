/** @file Dropout: elements or whole channels set to zero at random. */
import { show } from '../../base/checks.ts';
import {
  alphaDropout_,
  alphaDropout as alphaDropoutOp,
  dropout_,
  dropout as dropoutOp,
  featureAlphaDropout_,
  featureAlphaDropout as featureAlphaDropoutOp,
  featureDropout,
  featureDropout_,
} from '../../generated/functions.ts';
import '../../generated/methods.ts';
import { checkOptions, TorchError } from '../../base/errors.ts';
import { checkTensors } from '../../tensor/check-tensors.ts';
import type { Tensor } from '../../tensor/tensor.ts';

/** How much is dropped, and whether at all. */
export interface DropoutOptions {
  p?: number | undefined;
  training?: boolean | undefined;
  inplace?: boolean | undefined;
}

/** Refuses what is not a probability. */
export function checkProbability(where: string, p: number): void {
  if (!(typeof p === 'number' && p >= 0 && p <= 1))
    throw new TorchError(
      'BAD_ARGUMENT',
      `${typeof where === 'string' ? where : 'dropout'}: the probability p must be between 0 and 1, got ${show(p)}`,
    );
}

type Drop = (input: Tensor, p: number, training: boolean) => Tensor;

function drop(where: string, ops: [Drop, Drop], input: Tensor, options: DropoutOptions | undefined): Tensor {
  checkOptions(where, options, ['p', 'training', 'inplace']);
  const { p = 0.5, training = !where.includes('lpha'), inplace = false } = options ?? {};
  checkProbability(where, p);
  return ops[inplace ? 1 : 0](input, p, training);
}

/** Elements are zero with probability `p`, the others grow by 1 / (1 - p). @example F.dropout(x, { p: 0.1, training: this.training }) */
export function dropout(input: Tensor, options?: DropoutOptions): Tensor {
  return drop('dropout', [dropoutOp, dropout_], input, options);
}

/** Drops channels of sequences. */
export function dropout1d(input: Tensor, options?: DropoutOptions): Tensor {
  checkTensors('dropout1d', { input });
  const dims = input.dim();
  if (dims !== 2 && dims !== 3)
    throw new TorchError('SHAPE', `dropout1d: the input must have 2 or 3 dimensions, this one has ${dims}`);
  if (dims === 3) return drop('dropout1d', [featureDropout, featureDropout_], input, options);
  return drop('dropout1d', [featureDropout, featureDropout_], input.unsqueeze(0), options).squeeze(0);
}

/** Drops channels of images. */
export function dropout2d(input: Tensor, options?: DropoutOptions): Tensor {
  checkTensors('dropout2d', { input });
  return drop('dropout2d', [featureDropout, featureDropout_], input, options);
}

/** Drops channels of volumes. */
export function dropout3d(input: Tensor, options?: DropoutOptions): Tensor {
  checkTensors('dropout3d', { input });
  const dims = input.dim();
  if (dims !== 4) return drop('dropout3d', [featureDropout, featureDropout_], input, options);
  return drop('dropout3d', [featureDropout, featureDropout_], input.unsqueeze(0), options).squeeze(0);
}

/** Drops so that mean and variance stay as SELU wants them. */
export function alphaDropout(input: Tensor, options?: DropoutOptions): Tensor {
  return drop('alphaDropout', [alphaDropoutOp, alphaDropout_], input, options);
}

/** `alphaDropout` of whole channels. */
export function featureAlphaDropout(input: Tensor, options?: DropoutOptions): Tensor {
  checkTensors('featureAlphaDropout', { input });
  return drop('featureAlphaDropout', [featureAlphaDropoutOp, featureAlphaDropout_], input, options);
}
