/** @file Images resized, sampled and rearranged. */

import { checkGiven, checkObject } from '../../base/checks.ts';
import { checkOptions, didYouMean, TorchError } from '../../base/errors.ts';
import type { Size } from '../../base/options.ts';
import { affineGridGenerator, gridSampler } from '../../generated/functions.ts';
import { callOp } from '../../op/call.ts';
import { checkTensors } from '../../tensor/check-tensors.ts';
import type { Tensor } from '../../tensor/tensor.ts';
import { adaptiveAvgPool1d, adaptiveAvgPool2d, adaptiveAvgPool3d } from './pooling.ts';

export { channelShuffle, pixelShuffle, pixelUnshuffle } from '../../generated/functions.ts';

/** How values between pixels are found. */
export type InterpolateMode =
  | 'nearest'
  | 'nearest-exact'
  | 'linear'
  | 'bilinear'
  | 'bicubic'
  | 'trilinear'
  | 'area'
  | 'lanczos';

/** The new size, or its ratio to the old one, and how. */
export interface InterpolateOptions {
  size?: Size | null | undefined;
  scaleFactor?: Size | null | undefined;
  mode?: InterpolateMode | undefined;
  alignCorners?: boolean | null | undefined;
  recomputeScaleFactor?: boolean | null | undefined;
  antialias?: boolean | undefined;
}

/** Operators by mode and number of spatial dimensions; those below `cornered` take alignCorners. */
const plain: Readonly<Record<string, string>> = {
  nearest1: 'upsample_nearest1d.vec',
  nearest2: 'upsample_nearest2d.vec',
  nearest3: 'upsample_nearest3d.vec',
  'nearest-exact1': '_upsample_nearest_exact1d.vec',
  'nearest-exact2': '_upsample_nearest_exact2d.vec',
  'nearest-exact3': '_upsample_nearest_exact3d.vec',
};
const cornered: Readonly<Record<string, string>> = {
  linear1: 'upsample_linear1d.vec',
  bilinear2: 'upsample_bilinear2d.vec',
  trilinear3: 'upsample_trilinear3d.vec',
  bicubic2: 'upsample_bicubic2d.vec',
};
const smoothed: Readonly<Record<string, string>> = {
  bilinear2: '_upsample_bilinear2d_aa.vec',
  bicubic2: '_upsample_bicubic2d_aa.vec',
  lanczos2: '_upsample_lanczos2d_aa.vec',
};
const modes: readonly string[] = [
  'nearest',
  'nearest-exact',
  'linear',
  'bilinear',
  'bicubic',
  'trilinear',
  'area',
  'lanczos',
];

function perDimension(what: string, value: Size, dims: number): number[] {
  if (typeof value === 'number') return new Array<number>(dims).fill(value);
  if (value.length === dims) return [...value];
  throw new TorchError(
    'SHAPE',
    `interpolate: ${what} has ${value.length} numbers, the input has ${dims} dimensions to resize (all but the first two)`,
  );
}

/** Resizes all dimensions but the first two. @example F.interpolate(images, { scaleFactor: 2, mode: 'bilinear' }) */
export function interpolate(input: Tensor, options: InterpolateOptions): Tensor {
  checkTensors('interpolate', { input });
  checkObject('interpolate', 'the options', options, '{ size } or { scaleFactor }');
  checkOptions('interpolate', options, [
    'size',
    'scaleFactor',
    'mode',
    'alignCorners',
    'recomputeScaleFactor',
    'antialias',
  ]);
  const { mode = 'nearest', antialias = false } = options;
  if (!modes.includes(mode))
    throw new TorchError(
      'BAD_ARGUMENT',
      `interpolate: mode is one of ${modes.join(', ')}, got '${mode}'${didYouMean(mode, modes)}`,
    );
  const size = options.size ?? null;
  const factor = options.scaleFactor ?? null;
  const takesCorners = !['nearest', 'nearest-exact', 'area'].includes(mode);
  if (!takesCorners && options.alignCorners !== undefined && options.alignCorners !== null)
    throw new TorchError(
      'BAD_ARGUMENT',
      `interpolate: alignCorners goes with linear, bilinear, bicubic and trilinear, not with '${mode}'`,
    );
  if ((size === null) === (factor === null))
    throw new TorchError('MISSING_ARGUMENT', 'interpolate: give one of size and scaleFactor');
  if (options.recomputeScaleFactor === true && size !== null)
    throw new TorchError('BAD_ARGUMENT', 'interpolate: recomputeScaleFactor means nothing with a size');
  const dims = input.dim() - 2;
  let target = size === null ? null : perDimension('size', size, dims);
  let factors = factor === null ? null : perDimension('scaleFactor', factor, dims);
  if (factors !== null && (options.recomputeScaleFactor === true || mode === 'area')) {
    const own = input.shape.slice(2);
    target = own.map((value, i) => Math.trunc(value * factors![i]!));
    factors = null;
  }
  if (mode === 'area') return area(input, target!);
  const name = (antialias ? smoothed : takesCorners ? cornered : plain)[mode + dims];
  if (name === undefined)
    throw new TorchError(
      'SHAPE',
      `interpolate: mode '${mode}'${antialias ? ' with antialias' : ''} does not resize ${dims} dimensions (an input of ${dims + 2})`,
    );
  const given = takesCorners ? [input, target, options.alignCorners ?? false, factors] : [input, target, factors];
  return callOp(`aten::${name}`, given) as Tensor;
}

function area(input: Tensor, size: number[]): Tensor {
  if (size.length === 1) return adaptiveAvgPool1d(input, size);
  if (size.length === 2) return adaptiveAvgPool2d(input, size);
  if (size.length === 3) return adaptiveAvgPool3d(input, size);
  throw new TorchError('SHAPE', `interpolate: mode 'area' resizes 1 to 3 dimensions, got ${size.length}`);
}

/** What `gridSample` can be told. */
export interface GridSampleOptions {
  mode?: 'bilinear' | 'nearest' | 'bicubic' | undefined;
  paddingMode?: 'zeros' | 'border' | 'reflection' | undefined;
  alignCorners?: boolean | undefined;
}

/** The values of an image at the places that a grid names. */
export function gridSample(input: Tensor, grid: Tensor, options?: GridSampleOptions): Tensor {
  checkTensors('gridSample', { input, grid });
  checkOptions('gridSample', options, ['mode', 'paddingMode', 'alignCorners']);
  const { mode = 'bilinear', paddingMode = 'zeros', alignCorners = false } = options ?? {};
  const how = ['bilinear', 'nearest', 'bicubic'].indexOf(mode);
  const outside = ['zeros', 'border', 'reflection'].indexOf(paddingMode);
  if (how < 0)
    throw new TorchError('BAD_ARGUMENT', `gridSample: mode is 'bilinear', 'nearest' or 'bicubic', got '${mode}'`);
  if (outside < 0)
    throw new TorchError(
      'BAD_ARGUMENT',
      `gridSample: paddingMode is 'zeros', 'border' or 'reflection', got '${paddingMode}'`,
    );
  return gridSampler(input, grid, how, outside, alignCorners);
}

/** The grid of an affine map, for `gridSample`. */
export function affineGrid(
  theta: Tensor,
  size: readonly number[],
  options?: { alignCorners?: boolean | undefined },
): Tensor {
  checkTensors('affineGrid', { theta });
  checkOptions('affineGrid', options, ['alignCorners']);
  checkGiven('affineGrid', Array.isArray(size), ['size', size], 'the size of the output, as [2, 3, 8, 8]');
  const dims = size.length - 2;
  if (dims !== 2 && dims !== 3)
    throw new TorchError('SHAPE', `affineGrid: size has 4 or 5 numbers, got ${size.length}`);
  const [, rows, columns] = theta.shape;
  if (theta.dim() !== 3 || rows !== dims || columns !== dims + 1)
    throw new TorchError(
      'SHAPE',
      `affineGrid: theta is [N, ${dims}, ${dims + 1}] for a size of ${size.length} numbers, got [${theta.shape.join(', ')}]`,
    );
  return affineGridGenerator(theta, size, options?.alignCorners ?? false);
}
