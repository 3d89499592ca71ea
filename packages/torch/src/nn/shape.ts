/** @file Layers that rearrange, resize and compare. */

import { checkIterable } from '../base/checks.ts';
import { readOptions, type Size } from '../base/options.ts';
import { floatText, type Real, repr, toNumber } from '../base/text.ts';
import {
  channelShuffle,
  cosineSimilarity,
  flatten,
  pairwiseDistance,
  pixelShuffle,
  pixelUnshuffle,
  unflatten,
} from '../generated/functions.ts';
import type { Tensor } from '../tensor/tensor.ts';
import { fold, unfold } from './functional/convolution.ts';
import { type InterpolateMode, interpolate } from './functional/vision.ts';
import { Module } from './module.ts';

/** Makes one dimension of several. */
export class Flatten extends Module {
  readonly startDim: number;
  readonly endDim: number;

  constructor(options?: { startDim?: number | undefined; endDim?: number | undefined }) {
    super();
    const given = readOptions('Flatten', options, { startDim: 1, endDim: -1 });
    this.startDim = given.startDim;
    this.endDim = given.endDim;
  }

  forward(input: Tensor): Tensor {
    return flatten(input, this.startDim, this.endDim);
  }

  override extraRepr(): string {
    return `start_dim=${this.startDim}, end_dim=${this.endDim}`;
  }
}

/** Makes several dimensions of one. */
export class Unflatten extends Module {
  readonly dim: number;
  readonly unflattenedSize: readonly number[];

  constructor(dim: number, unflattenedSize: readonly number[]) {
    super();
    this.dim = dim;
    checkIterable('Unflatten', 'unflattenedSize', unflattenedSize, 'an array of sizes');
    this.unflattenedSize = [...unflattenedSize];
  }

  forward(input: Tensor): Tensor {
    return unflatten(input, this.dim, this.unflattenedSize);
  }

  override extraRepr(): string {
    return `dim=${this.dim}, unflattened_size=${repr(this.unflattenedSize)}`;
  }
}

/** Channels become pixels. */
export class PixelShuffle extends Module {
  readonly upscaleFactor: number;

  constructor(upscaleFactor: number) {
    super();
    this.upscaleFactor = upscaleFactor;
  }

  forward(input: Tensor): Tensor {
    return pixelShuffle(input, this.upscaleFactor);
  }

  override extraRepr(): string {
    return `upscale_factor=${this.upscaleFactor}`;
  }
}

/** Pixels become channels. */
export class PixelUnshuffle extends Module {
  readonly downscaleFactor: number;

  constructor(downscaleFactor: number) {
    super();
    this.downscaleFactor = downscaleFactor;
  }

  forward(input: Tensor): Tensor {
    return pixelUnshuffle(input, this.downscaleFactor);
  }

  override extraRepr(): string {
    return `downscale_factor=${this.downscaleFactor}`;
  }
}

/** Mixes groups of channels. */
export class ChannelShuffle extends Module {
  readonly groups: number;

  constructor(groups: number) {
    super();
    this.groups = groups;
  }

  forward(input: Tensor): Tensor {
    return channelShuffle(input, this.groups);
  }

  override extraRepr(): string {
    return `groups=${this.groups}`;
  }
}

/** What resizing can be told. */
export interface UpsampleOptions {
  size?: Size | null | undefined;
  scaleFactor?: Size | null | undefined;
  mode?: InterpolateMode | undefined;
  alignCorners?: boolean | null | undefined;
  recomputeScaleFactor?: boolean | null | undefined;
}

/** Resizes all dimensions but the first two. @example new Upsample({ scaleFactor: 2, mode: 'nearest' }) */
export class Upsample extends Module {
  readonly size: Size | null;
  readonly scaleFactor: Size | null;
  readonly mode: InterpolateMode;
  readonly alignCorners: boolean | null;
  readonly recomputeScaleFactor: boolean | null;

  constructor(options?: UpsampleOptions) {
    super();
    const given = readOptions('Upsample', options, {
      size: null as Size | null,
      scaleFactor: null as Size | Real | null,
      mode: 'nearest' as InterpolateMode,
      alignCorners: null as boolean | null,
      recomputeScaleFactor: null as boolean | null,
    });
    this.size = given.size;
    this.scaleFactor =
      given.scaleFactor === null
        ? null
        : Array.isArray(given.scaleFactor)
          ? given.scaleFactor.map(toNumber)
          : toNumber(given.scaleFactor as Real);
    this.mode = given.mode;
    this.alignCorners = given.alignCorners;
    this.recomputeScaleFactor = given.recomputeScaleFactor;
  }

  forward(input: Tensor): Tensor {
    const { size, scaleFactor, mode, alignCorners, recomputeScaleFactor } = this;
    return interpolate(input, { size, scaleFactor, mode, alignCorners, recomputeScaleFactor });
  }

  override extraRepr(): string {
    const factor = this.scaleFactor;
    const text =
      factor === null
        ? ''
        : typeof factor === 'number'
          ? floatText(factor)
          : `(${factor.map(floatText).join(', ')}${factor.length === 1 ? ',' : ''})`;
    return `${factor === null ? `size=${repr(this.size)}` : `scale_factor=${text}`}, mode=${repr(this.mode)}`;
  }
}

/** Resizes images by repeating pixels. */
export class UpsamplingNearest2d extends Upsample {
  constructor(options?: Pick<UpsampleOptions, 'size' | 'scaleFactor'>) {
    readOptions('UpsamplingNearest2d', options, { size: null, scaleFactor: null });
    super({ ...options, mode: 'nearest' });
  }
}

/** Resizes images bilinearly, corners on corners. */
export class UpsamplingBilinear2d extends Upsample {
  constructor(options?: Pick<UpsampleOptions, 'size' | 'scaleFactor'>) {
    readOptions('UpsamplingBilinear2d', options, { size: null, scaleFactor: null });
    super({ ...options, mode: 'bilinear', alignCorners: true });
  }
}

/** How windows lie. */
export interface WindowOptions {
  dilation?: Size | undefined;
  padding?: Size | undefined;
  stride?: Size | undefined;
}

abstract class Windows extends Module {
  readonly kernelSize: Size;
  readonly dilation: Size;
  readonly padding: Size;
  readonly stride: Size;

  constructor(where: string, kernelSize: Size, options: WindowOptions | undefined) {
    super();
    const given = readOptions(where, options, {
      dilation: null as Size | null,
      padding: null as Size | null,
      stride: null as Size | null,
    });
    this.kernelSize = kernelSize;
    this.dilation = given.dilation ?? 1;
    this.padding = given.padding ?? 0;
    this.stride = given.stride ?? 1;
  }

  protected windows(): WindowOptions {
    return { dilation: this.dilation, padding: this.padding, stride: this.stride };
  }

  override extraRepr(): string {
    return `kernel_size=${repr(this.kernelSize)}, dilation=${repr(this.dilation)}, padding=${repr(this.padding)}, stride=${repr(this.stride)}`;
  }
}

/** The windows of images as columns. */
export class Unfold extends Windows {
  constructor(kernelSize: Size, options?: WindowOptions) {
    super('Unfold', kernelSize, options);
  }

  forward(input: Tensor): Tensor {
    return unfold(input, this.kernelSize, this.windows());
  }
}

/** Adds columns up to images. */
export class Fold extends Windows {
  readonly outputSize: Size;

  constructor(outputSize: Size, kernelSize: Size, options?: WindowOptions) {
    super('Fold', kernelSize, options);
    this.outputSize = outputSize;
  }

  forward(input: Tensor): Tensor {
    return fold(input, this.outputSize, this.kernelSize, this.windows());
  }

  override extraRepr(): string {
    return `output_size=${repr(this.outputSize)}, ${super.extraRepr()}`;
  }
}

/** The cosine of the angle between vectors. */
export class CosineSimilarity extends Module {
  readonly dim: number;
  readonly eps: number;

  constructor(options?: { dim?: number | undefined; eps?: Real | undefined }) {
    super();
    const given = readOptions('CosineSimilarity', options, { dim: 1, eps: 1e-8 });
    this.dim = given.dim;
    this.eps = given.eps;
  }

  forward(x1: Tensor, x2: Tensor): Tensor {
    return cosineSimilarity(x1, x2, this.dim, this.eps);
  }
}

/** The norm of the difference of vectors. */
export class PairwiseDistance extends Module {
  readonly norm: number;
  readonly eps: number;
  readonly keepdim: boolean;

  constructor(options?: { p?: Real | undefined; eps?: Real | undefined; keepdim?: boolean | undefined }) {
    super();
    const given = readOptions('PairwiseDistance', options, { p: 2, eps: 1e-6, keepdim: false });
    this.norm = given.p;
    this.eps = given.eps;
    this.keepdim = given.keepdim;
  }

  forward(x1: Tensor, x2: Tensor): Tensor {
    return pairwiseDistance(x1, x2, this.norm, this.eps, this.keepdim);
  }
}
