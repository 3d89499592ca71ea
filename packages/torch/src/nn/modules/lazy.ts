/**
 * @file Layers that learn their input size from the first input. Until then their parameters are empty; afterwards they
 * are the plain layer, also by class. Their parameter objects stay, so an optimizer may be made before; a state dict is
 * loaded after the first input.
 */

import type { Size } from '../../base/options.ts';
import { ones, zeros } from '../../generated/functions.ts';
import type { Tensor } from '../../tensor/tensor.ts';
import { emptyTensor, type Parameter, take } from '../parameter.ts';
import {
  BatchNorm1d,
  BatchNorm2d,
  BatchNorm3d,
  InstanceNorm1d,
  InstanceNorm2d,
  InstanceNorm3d,
  type RunningNormOptions,
} from './batchnorm.ts';
import {
  Conv1d,
  Conv2d,
  Conv3d,
  type ConvOptions,
  ConvTranspose1d,
  ConvTranspose2d,
  ConvTranspose3d,
  type ConvTransposeOptions,
  type OutputSizeOptions,
} from './conv.ts';
import { type BiasOptions, Linear } from './linear.ts';

/** Gives an empty parameter its shape. */
function fill(parameter: Parameter, shape: readonly number[]): void {
  take(emptyTensor(shape, { dtype: parameter.dtype, device: parameter.device }), (data) => parameter.become(data));
}

/** `x @ weight.T + bias`, the width of x being that of the first input. @example new LazyLinear(10).forward(x) */
export class LazyLinear extends Linear {
  constructor(outFeatures: number, options?: BiasOptions) {
    super(0, outFeatures, options);
  }

  override resetParameters(): void {
    if (this.inFeatures > 0) super.resetParameters();
  }

  override forward(input: Tensor): Tensor {
    if (this.inFeatures === 0) {
      const width = input.size(-1);
      fill(this.weight, [this.outFeatures, width]);
      Object.assign(this, { inFeatures: width });
      Object.setPrototypeOf(this, Linear.prototype);
      this.resetParameters();
    }
    return super.forward(input);
  }
}

type AnyConv = Conv1d | Conv2d | Conv3d | ConvTranspose1d | ConvTranspose2d | ConvTranspose3d;

/** Makes a lazy convolution the plain one. */
function settle(conv: AnyConv, plain: object, input: Tensor): void {
  const isBatched = input.dim() === conv.kernelSize.length + 2;
  const channels = input.size(isBatched ? 1 : 0);
  const { weight, groups, kernelSize } = conv;
  const transposed = [ConvTranspose1d, ConvTranspose2d, ConvTranspose3d].some((type) => type.prototype === plain);
  const shape = transposed ? [channels, weight.size(1)] : [weight.size(0), channels / groups];
  fill(weight, [...shape, ...kernelSize]);
  Object.assign(conv, { inChannels: channels });
  Object.setPrototypeOf(conv, plain);
  conv.resetParameters();
}

/** Conv1d whose input channels are those of the first input. */
export class LazyConv1d extends Conv1d {
  constructor(outChannels: number, kernelSize: Size, options?: ConvOptions) {
    super(0, outChannels, kernelSize, options);
  }

  override forward(input: Tensor): Tensor {
    if (this.inChannels === 0) settle(this, Conv1d.prototype, input);
    return super.forward(input);
  }
}

/** Conv2d whose input channels are those of the first input. @example new LazyConv2d(64, 3, { padding: 1 }) */
export class LazyConv2d extends Conv2d {
  constructor(outChannels: number, kernelSize: Size, options?: ConvOptions) {
    super(0, outChannels, kernelSize, options);
  }

  override forward(input: Tensor): Tensor {
    if (this.inChannels === 0) settle(this, Conv2d.prototype, input);
    return super.forward(input);
  }
}

/** Conv3d whose input channels are those of the first input. */
export class LazyConv3d extends Conv3d {
  constructor(outChannels: number, kernelSize: Size, options?: ConvOptions) {
    super(0, outChannels, kernelSize, options);
  }

  override forward(input: Tensor): Tensor {
    if (this.inChannels === 0) settle(this, Conv3d.prototype, input);
    return super.forward(input);
  }
}

/** ConvTranspose1d whose input channels are those of the first input. */
export class LazyConvTranspose1d extends ConvTranspose1d {
  constructor(outChannels: number, kernelSize: Size, options?: ConvTransposeOptions) {
    super(0, outChannels, kernelSize, options);
  }

  override forward(input: Tensor, options?: readonly number[] | OutputSizeOptions | null): Tensor {
    if (this.inChannels === 0) settle(this, ConvTranspose1d.prototype, input);
    return super.forward(input, options);
  }
}

/** ConvTranspose2d whose input channels are those of the first input. */
export class LazyConvTranspose2d extends ConvTranspose2d {
  constructor(outChannels: number, kernelSize: Size, options?: ConvTransposeOptions) {
    super(0, outChannels, kernelSize, options);
  }

  override forward(input: Tensor, options?: readonly number[] | OutputSizeOptions | null): Tensor {
    if (this.inChannels === 0) settle(this, ConvTranspose2d.prototype, input);
    return super.forward(input, options);
  }
}

/** ConvTranspose3d whose input channels are those of the first input. */
export class LazyConvTranspose3d extends ConvTranspose3d {
  constructor(outChannels: number, kernelSize: Size, options?: ConvTransposeOptions) {
    super(0, outChannels, kernelSize, options);
  }

  override forward(input: Tensor, options?: readonly number[] | OutputSizeOptions | null): Tensor {
    if (this.inChannels === 0) settle(this, ConvTranspose3d.prototype, input);
    return super.forward(input, options);
  }
}

type AnyNorm = BatchNorm1d | BatchNorm2d | BatchNorm3d | InstanceNorm1d | InstanceNorm2d | InstanceNorm3d;

/** Makes a lazy normalization the plain one, for this many channels. */
function adopt(norm: AnyNorm, plain: object, channels: number): void {
  for (const parameter of [norm.weight, norm.bias]) if (parameter !== null) fill(parameter, [channels]);
  for (const [buffer, make] of [
    [norm.runningMean, zeros],
    [norm.runningVar, ones],
  ] as const) {
    if (buffer === null) continue;
    take(make([channels], { dtype: buffer.dtype, device: buffer.device }), (data) => buffer.become(data));
  }
  Object.assign(norm, { numFeatures: channels });
  Object.setPrototypeOf(norm, plain);
  norm.resetParameters();
}

/** BatchNorm1d whose features are those of the first input. */
export class LazyBatchNorm1d extends BatchNorm1d {
  constructor(options?: RunningNormOptions) {
    super(0, options);
  }

  override forward(input: Tensor): Tensor {
    if (this.numFeatures === 0) adopt(this, BatchNorm1d.prototype, input.size(1));
    return super.forward(input);
  }
}

/** BatchNorm2d whose channels are those of the first input. @example new LazyBatchNorm2d() */
export class LazyBatchNorm2d extends BatchNorm2d {
  constructor(options?: RunningNormOptions) {
    super(0, options);
  }

  override forward(input: Tensor): Tensor {
    if (this.numFeatures === 0) adopt(this, BatchNorm2d.prototype, input.size(1));
    return super.forward(input);
  }
}

/** BatchNorm3d whose channels are those of the first input. */
export class LazyBatchNorm3d extends BatchNorm3d {
  constructor(options?: RunningNormOptions) {
    super(0, options);
  }

  override forward(input: Tensor): Tensor {
    if (this.numFeatures === 0) adopt(this, BatchNorm3d.prototype, input.size(1));
    return super.forward(input);
  }
}

/** What PyTorch's lazy instance norms have by default, other than its plain ones. */
const full = { affine: true, trackRunningStats: true };

/** InstanceNorm1d whose channels are those of the first input. */
export class LazyInstanceNorm1d extends InstanceNorm1d {
  constructor(options?: RunningNormOptions) {
    super(0, { ...full, ...options });
  }

  override forward(input: Tensor): Tensor {
    if (this.numFeatures === 0) adopt(this, InstanceNorm1d.prototype, input.size(-2));
    return super.forward(input);
  }
}

/** InstanceNorm2d whose channels are those of the first input. */
export class LazyInstanceNorm2d extends InstanceNorm2d {
  constructor(options?: RunningNormOptions) {
    super(0, { ...full, ...options });
  }

  override forward(input: Tensor): Tensor {
    if (this.numFeatures === 0) adopt(this, InstanceNorm2d.prototype, input.size(-3));
    return super.forward(input);
  }
}

/** InstanceNorm3d whose channels are those of the first input. */
export class LazyInstanceNorm3d extends InstanceNorm3d {
  constructor(options?: RunningNormOptions) {
    super(0, { ...full, ...options });
  }

  override forward(input: Tensor): Tensor {
    if (this.numFeatures === 0) adopt(this, InstanceNorm3d.prototype, input.size(-4));
    return super.forward(input);
  }
}
