/** @file Convolutions, padding, and unfolding of windows. */

import { checkOptions, didYouMean, TorchError } from '../../base/errors.ts';
import { expand, type Size } from '../../base/options.ts';
import { col2im, im2col, pad as padOp } from '../../generated/functions.ts';
import { callOp } from '../../op/call.ts';
import { checkTensors } from '../../tensor/check-tensors.ts';
import { type Scalar, type Tensor } from '../../tensor/tensor.ts';

export {
  conv1d,
  conv2d,
  conv3d,
  convTranspose1d,
  convTranspose2d,
  convTranspose3d,
} from '../../generated/functions.ts';

/** What is put around a tensor: one value, its mirror image, its border, or its other end. */
export type PadMode = 'constant' | 'reflect' | 'replicate' | 'circular';

const modes: readonly string[] = ['constant', 'reflect', 'replicate', 'circular'];

/** Adds `padding` elements around: [left, right] of the last dimension, then [top, bottom] of the one before, and so on. */
export function pad(
  input: Tensor,
  padding: readonly number[],
  options?: { mode?: PadMode | undefined; value?: Scalar | undefined },
): Tensor {
  checkOptions('pad', options, ['mode', 'value']);
  const mode: string = options?.mode ?? 'constant';
  if (mode === 'constant') return callOp('aten::constant_pad_nd', [input, padding, options?.value ?? 0]) as Tensor;
  if (!modes.includes(mode))
    throw new TorchError(
      'BAD_ARGUMENT',
      `pad: mode is one of ${modes.join(', ')}, got '${mode}'${didYouMean(mode, modes)}`,
    );
  return padOp(input, padding, mode);
}

/** How windows lie. */
export interface WindowOptions {
  dilation?: Size | undefined;
  padding?: Size | undefined;
  stride?: Size | undefined;
}

function windows(where: string, options: WindowOptions | undefined): [number[], number[], number[]] {
  checkOptions(where, options, ['dilation', 'padding', 'stride']);
  return [
    expand(`${where}: dilation`, options?.dilation ?? 1, 2),
    expand(`${where}: padding`, options?.padding ?? 0, 2),
    expand(`${where}: stride`, options?.stride ?? 1, 2),
  ];
}

/** The windows of an image as columns. */
export function unfold(input: Tensor, kernelSize: Size, options?: WindowOptions): Tensor {
  checkTensors('unfold', { input });
  return im2col(input, expand('unfold: kernelSize', kernelSize, 2), ...windows('unfold', options));
}

/** Adds columns up to an image: the reverse of `unfold`. */
export function fold(input: Tensor, outputSize: Size, kernelSize: Size, options?: WindowOptions): Tensor {
  checkTensors('fold', { input });
  return col2im(
    input,
    expand('fold: outputSize', outputSize, 2),
    expand('fold: kernelSize', kernelSize, 2),
    ...windows('fold', options),
  );
}
