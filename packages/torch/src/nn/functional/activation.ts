/** @file Activation functions: the operators themselves, and the few that PyTorch composes. */
import { emptyLike, logSoftmax as logSoftmaxOp, softmax as softmaxOp, zerosLike } from '../../generated/functions.ts';
import '../../generated/methods.ts';
import { checkOptions } from '../../base/errors.ts';
import { checkTensors } from '../../tensor/check-tensors.ts';
import type { Tensor } from '../../tensor/tensor.ts';
import type { DTypeLike } from '../../tensor/types.ts';

export {
  celu,
  celu_,
  elu,
  elu_,
  gelu,
  glu,
  hardshrink,
  hardsigmoid,
  hardswish,
  hardtanh,
  hardtanh_,
  leakyRelu,
  leakyRelu_,
  logSigmoid as logsigmoid,
  mish,
  prelu,
  relu,
  relu_,
  relu6,
  rrelu,
  rrelu_,
  selu,
  selu_,
  sigmoid,
  silu,
  softplus,
  softshrink,
  tanh,
  threshold,
  threshold_,
} from '../../generated/functions.ts';

/** Along which dimension, and in which type. */
export interface SoftmaxOptions {
  dim?: number | null | undefined;
  dtype?: DTypeLike | undefined;
}

/** PyTorch's choice where no dimension is given: 0 for scalars, vectors and 3 dimensions, otherwise 1. */
function softmaxDim(input: Tensor, options: number | SoftmaxOptions | undefined): number {
  const given = typeof options === 'object' && options !== null ? options.dim : options;
  if (given !== undefined && given !== null) return given;
  const dims = input.dim();
  return dims === 0 || dims === 1 || dims === 3 ? 0 : 1;
}

function typeOf(options: number | SoftmaxOptions | undefined): DTypeLike | null {
  return (typeof options === 'object' && options !== null ? options.dtype : undefined) ?? null;
}

/** Positive numbers that add up to one along a dimension. @example F.softmax(x, -1) */
export function softmax(input: Tensor, options?: number | SoftmaxOptions): Tensor {
  checkTensors('softmax', { input });
  return softmaxOp(input, softmaxDim(input, options), typeOf(options));
}

/** The logarithm of softmax. @example F.logSoftmax(x, -1) */
export function logSoftmax(input: Tensor, options?: number | SoftmaxOptions): Tensor {
  checkTensors('logSoftmax', { input });
  return logSoftmaxOp(input, softmaxDim(input, options), typeOf(options));
}

/** Softmax of the negated input. */
export function softmin(input: Tensor, options?: number | SoftmaxOptions): Tensor {
  checkTensors('softmin', { input });
  return softmaxOp(input.neg(), softmaxDim(input, options), typeOf(options));
}

/** `x / (1 + |x|)` */
export function softsign(input: Tensor): Tensor {
  checkTensors('softsign', { input });
  return input.div(input.abs().add(1));
}

/** `x - tanh(x)` */
export function tanhshrink(input: Tensor): Tensor {
  checkTensors('tanhshrink', { input });
  return input.sub(input.tanh());
}

/** What `gumbelSoftmax` can be told. */
export interface GumbelSoftmaxOptions {
  tau?: number | undefined;
  hard?: boolean | undefined;
  dim?: number | undefined;
}

/** Samples from the Gumbel-Softmax distribution, with gradients; one-hot with `hard`. */
export function gumbelSoftmax(logits: Tensor, options?: GumbelSoftmaxOptions): Tensor {
  checkTensors('gumbelSoftmax', { logits });
  checkOptions('gumbelSoftmax', options, ['tau', 'hard', 'dim']);
  const { tau = 1, hard = false, dim = -1 } = options ?? {};
  const noise = emptyLike(logits, { memoryFormat: 'contiguous_format' }).exponential_().log().neg();
  const soft = softmaxOp(logits.add(noise).div(tau), dim);
  if (!hard) return soft;
  const [, index] = soft.max(dim, true);
  return zerosLike(logits).scatter_(dim, index, 1).sub(soft.detach()).add(soft);
}
