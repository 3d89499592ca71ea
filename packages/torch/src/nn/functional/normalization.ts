/** @file Normalisation over batches, channels and features. */
import {
  avgPool2d,
  avgPool3d,
  batchNorm as batchNormOp,
  constantPadNd,
  groupNorm as groupNormOp,
  instanceNorm as instanceNormOp,
  layerNorm as layerNormOp,
  rmsNorm as rmsNormOp,
} from '../../generated/functions.ts';
import '../../generated/methods.ts';
import { checkOptions, TorchError } from '../../base/errors.ts';
import { checkWhole } from '../../base/options.ts';
import { checkTensors } from '../../tensor/check-tensors.ts';
import type { Tensor } from '../../tensor/tensor.ts';

/** A weight and a bias per channel or feature, and what is added to the variance. */
export interface AffineOptions {
  weight?: Tensor | null | undefined;
  bias?: Tensor | null | undefined;
  eps?: number | undefined;
}

/** Normalises the last dimensions. @example F.layerNorm(x, [64], { weight, bias }) */
export function layerNorm(input: Tensor, normalizedShape: readonly number[], options?: AffineOptions): Tensor {
  checkOptions('layerNorm', options, ['weight', 'bias', 'eps']);
  return layerNormOp(input, normalizedShape, options?.weight ?? null, options?.bias ?? null, options?.eps ?? 1e-5);
}

/** Divides by the root of the mean of squares of the last dimensions. */
export function rmsNorm(
  input: Tensor,
  normalizedShape: readonly number[],
  options?: { weight?: Tensor | null | undefined; eps?: number | null | undefined },
): Tensor {
  checkTensors('rmsNorm', { input });
  checkOptions('rmsNorm', options, ['weight', 'eps']);
  return rmsNormOp(input, normalizedShape, options?.weight ?? null, options?.eps ?? null);
}

/** Normalises groups of channels. */
export function groupNorm(input: Tensor, numGroups: number, options?: AffineOptions): Tensor {
  checkTensors('groupNorm', { input });
  checkOptions('groupNorm', options, ['weight', 'bias', 'eps']);
  checkWhole('groupNorm: numGroups', numGroups, 1);
  const [batch = 1, channels = 1, ...rest] = input.shape;
  if (input.dim() < 2)
    throw new TorchError('SHAPE', `groupNorm: the input must have at least 2 dimensions, this one has ${input.dim()}`);
  checkSeveral('groupNorm', [Math.floor((batch * channels) / numGroups), numGroups, ...rest]);
  return groupNormOp(input, numGroups, options?.weight ?? null, options?.bias ?? null, options?.eps ?? 1e-5);
}

/** One value per channel has no variance. */
function checkSeveral(where: string, shape: readonly number[]): void {
  const count = shape.reduce((product, size, i) => (i === 1 ? product : product * size), 1);
  if (count === 1)
    throw new TorchError(
      'SHAPE',
      `${where}: more than one value per channel is needed, the input is [${shape.join(', ')}]; use a larger batch, or eval()`,
    );
}

/** What normalisation with running statistics can be told. */
export interface RunningNormOptions extends AffineOptions {
  runningMean?: Tensor | null | undefined;
  runningVar?: Tensor | null | undefined;
  momentum?: number | undefined;
}

/** Normalises each channel over the batch. */
export function batchNorm(input: Tensor, options?: RunningNormOptions & { training?: boolean | undefined }): Tensor {
  checkTensors('batchNorm', { input });
  checkOptions('batchNorm', options, ['weight', 'bias', 'eps', 'runningMean', 'runningVar', 'momentum', 'training']);
  const {
    weight = null,
    bias = null,
    runningMean = null,
    runningVar = null,
    training = false,
    momentum = 0.1,
    eps = 1e-5,
  } = options ?? {};
  if (training) checkSeveral('batchNorm', input.shape);
  return batchNormOp(input, weight, bias, runningMean, runningVar, training, momentum, eps, true);
}

/** Normalises each channel of each example. */
export function instanceNorm(
  input: Tensor,
  options?: RunningNormOptions & { useInputStats?: boolean | undefined },
): Tensor {
  checkTensors('instanceNorm', { input });
  checkOptions('instanceNorm', options, [
    'weight',
    'bias',
    'eps',
    'runningMean',
    'runningVar',
    'momentum',
    'useInputStats',
  ]);
  const {
    weight = null,
    bias = null,
    runningMean = null,
    runningVar = null,
    useInputStats = true,
    momentum = 0.1,
    eps = 1e-5,
  } = options ?? {};
  if (useInputStats) checkSeveral('instanceNorm', [1, 1, ...input.shape.slice(2)]);
  return instanceNormOp(input, weight, bias, runningMean, runningVar, useInputStats, momentum, eps, true);
}

/** What `localResponseNorm` can be told. */
export interface LocalResponseNormOptions {
  alpha?: number | undefined;
  beta?: number | undefined;
  k?: number | undefined;
}

/** Divides by a sum of squares over neighbouring channels. */
export function localResponseNorm(input: Tensor, size: number, options?: LocalResponseNormOptions): Tensor {
  checkTensors('localResponseNorm', { input });
  checkOptions('localResponseNorm', options, ['alpha', 'beta', 'k']);
  const { alpha = 1e-4, beta = 0.75, k = 1 } = options ?? {};
  const { shape } = input;
  if (shape.length < 3)
    throw new TorchError(
      'SHAPE',
      `localResponseNorm: the input must have at least 3 dimensions, this one has ${shape.length}`,
    );
  if (input.numel() === 0) return input;
  const [before, after] = [Math.floor(size / 2), Math.floor((size - 1) / 2)];
  const squares = input.mul(input);
  const sums =
    shape.length === 3
      ? avgPool2d(constantPadNd(squares.unsqueeze(1), [0, 0, before, after]), [size, 1], 1).squeeze(1)
      : avgPool3d(
          constantPadNd(squares.view(shape[0]!, 1, shape[1]!, shape[2]!, -1), [0, 0, 0, 0, before, after]),
          [size, 1, 1],
          1,
        )
          .squeeze(1)
          .view(shape);
  return input.div(sums.mul(alpha).add(k).pow(beta));
}

/** Divides by the norm along a dimension. */
export function normalize(
  input: Tensor,
  options?: { p?: number | undefined; dim?: number | undefined; eps?: number | undefined },
): Tensor {
  checkTensors('normalize', { input });
  checkOptions('normalize', options, ['p', 'dim', 'eps']);
  const { p = 2, dim = 1, eps = 1e-12 } = options ?? {};
  return input.div(input.norm(p, [dim], true).clampMin(eps).expandAs(input));
}
