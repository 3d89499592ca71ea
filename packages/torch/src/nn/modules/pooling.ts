/** @file Pooling layers. */

import { FloatScalar } from '../../base/float-scalar.ts';
import { expand, readOptions, type Size } from '../../base/options.ts';
import { type Real, realText, repr, toNumber } from '../../base/text.ts';
import { type Tensor } from '../../tensor/tensor.ts';
import {
  adaptiveAvgPool1d,
  adaptiveAvgPool2d,
  adaptiveAvgPool3d,
  adaptiveMaxPool1d,
  adaptiveMaxPool2d,
  adaptiveMaxPool3d,
  avgPool1d,
  avgPool2d,
  avgPool3d,
  fractionalMaxPool2d,
  fractionalMaxPool3d,
  lpPool1d,
  lpPool2d,
  lpPool3d,
  type MaxPoolFunction,
  maxPool1d,
  maxPool2d,
  maxPool3d,
  maxUnpool1d,
  maxUnpool2d,
  maxUnpool3d,
  type OutputSize,
} from '../functional/pooling.ts';
import { Module } from '../module.ts';

/** What maximum pooling can be told. */
export interface MaxPoolOptions {
  stride?: Size | null | undefined;
  padding?: Size | undefined;
  dilation?: Size | undefined;
  ceilMode?: boolean | undefined;
}

/** A tensor, or [values, indices] where positions are asked for. */
export type Pooled<Indices extends boolean> = Indices extends true ? [Tensor, Tensor] : Tensor;

/** Whether positions are given too. */
export interface IndicesOption<Indices extends boolean> {
  returnIndices?: Indices | undefined;
}

abstract class MaxPool<Indices extends boolean> extends Module {
  readonly kernelSize: Size;
  readonly stride: Size;
  readonly padding: Size;
  readonly dilation: Size;
  readonly returnIndices: boolean;
  readonly ceilMode: boolean;

  constructor(where: string, kernelSize: Size, options: (MaxPoolOptions & IndicesOption<boolean>) | undefined) {
    super();
    const given = readOptions(where, options, {
      stride: null as Size | null,
      padding: null as Size | null,
      dilation: null as Size | null,
      returnIndices: false,
      ceilMode: false,
    });
    this.kernelSize = kernelSize;
    this.stride = given.stride ?? kernelSize;
    this.padding = given.padding ?? 0;
    this.dilation = given.dilation ?? 1;
    this.returnIndices = given.returnIndices;
    this.ceilMode = given.ceilMode;
  }

  protected run(op: MaxPoolFunction, input: Tensor): Pooled<Indices> {
    const { stride, padding, dilation, ceilMode, returnIndices } = this;
    return op(input, this.kernelSize, { stride, padding, dilation, ceilMode, returnIndices }) as Pooled<Indices>;
  }

  override extraRepr(): string {
    return `kernel_size=${repr(this.kernelSize)}, stride=${repr(this.stride)}, padding=${repr(this.padding)}, dilation=${repr(this.dilation)}, ceil_mode=${repr(this.ceilMode)}`;
  }
}

/** Maxima over windows of one dimension; [values, indices] with `returnIndices`. */
export class MaxPool1d<Indices extends boolean = false> extends MaxPool<Indices> {
  constructor(kernelSize: Size, options?: MaxPoolOptions & IndicesOption<Indices>) {
    super('MaxPool1d', kernelSize, options);
  }

  forward(input: Tensor): Pooled<Indices> {
    return this.run(maxPool1d, input);
  }
}

/** Maxima over windows of two dimensions; [values, indices] with `returnIndices`. @example new MaxPool2d(2) */
export class MaxPool2d<Indices extends boolean = false> extends MaxPool<Indices> {
  constructor(kernelSize: Size, options?: MaxPoolOptions & IndicesOption<Indices>) {
    super('MaxPool2d', kernelSize, options);
  }

  forward(input: Tensor): Pooled<Indices> {
    return this.run(maxPool2d, input);
  }
}

/** Maxima over windows of three dimensions; [values, indices] with `returnIndices`. */
export class MaxPool3d<Indices extends boolean = false> extends MaxPool<Indices> {
  constructor(kernelSize: Size, options?: MaxPoolOptions & IndicesOption<Indices>) {
    super('MaxPool3d', kernelSize, options);
  }

  forward(input: Tensor): Pooled<Indices> {
    return this.run(maxPool3d, input);
  }
}

/** What putting maxima back can be told. */
export interface MaxUnpoolOptions {
  stride?: Size | null | undefined;
  padding?: Size | undefined;
}

abstract class MaxUnpool extends Module {
  readonly kernelSize: readonly number[];
  readonly stride: readonly number[];
  readonly padding: readonly number[];

  constructor(where: string, dims: number, kernelSize: Size, options: MaxUnpoolOptions | undefined) {
    super();
    const given = readOptions(where, options, { stride: null as Size | null, padding: null as Size | null });
    this.kernelSize = expand(`${where}: kernelSize`, kernelSize, dims);
    this.stride = expand(`${where}: stride`, given.stride ?? kernelSize, dims);
    this.padding = expand(`${where}: padding`, given.padding ?? 0, dims);
  }

  protected windows(outputSize: readonly number[] | null | undefined): Parameters<typeof maxUnpool2d>[2] {
    return { kernelSize: this.kernelSize, stride: this.stride, padding: this.padding, outputSize };
  }

  override extraRepr(): string {
    return `kernel_size=${repr(this.kernelSize)}, stride=${repr(this.stride)}, padding=${repr(this.padding)}`;
  }
}

/** Puts maxima back to where they were. */
export class MaxUnpool1d extends MaxUnpool {
  constructor(kernelSize: Size, options?: MaxUnpoolOptions) {
    super('MaxUnpool1d', 1, kernelSize, options);
  }

  forward(input: Tensor, indices: Tensor, options?: { outputSize?: readonly number[] | null | undefined }): Tensor {
    return maxUnpool1d(input, indices, this.windows(options?.outputSize));
  }
}

/** Puts maxima back to where they were. */
export class MaxUnpool2d extends MaxUnpool {
  constructor(kernelSize: Size, options?: MaxUnpoolOptions) {
    super('MaxUnpool2d', 2, kernelSize, options);
  }

  forward(input: Tensor, indices: Tensor, options?: { outputSize?: readonly number[] | null | undefined }): Tensor {
    return maxUnpool2d(input, indices, this.windows(options?.outputSize));
  }
}

/** Puts maxima back to where they were. */
export class MaxUnpool3d extends MaxUnpool {
  constructor(kernelSize: Size, options?: MaxUnpoolOptions) {
    super('MaxUnpool3d', 3, kernelSize, options);
  }

  forward(input: Tensor, indices: Tensor, options?: { outputSize?: readonly number[] | null | undefined }): Tensor {
    return maxUnpool3d(input, indices, this.windows(options?.outputSize));
  }
}

/** What mean pooling can be told. */
export interface AvgPoolOptions {
  stride?: Size | null | undefined;
  padding?: Size | undefined;
  ceilMode?: boolean | undefined;
  countIncludePad?: boolean | undefined;
}

abstract class AvgPool extends Module {
  readonly kernelSize: Size;
  readonly stride: Size;
  readonly padding: Size;
  readonly ceilMode: boolean;
  readonly countIncludePad: boolean;
  readonly divisorOverride: number | null;

  constructor(
    where: string,
    kernelSize: Size,
    options: (AvgPoolOptions & { divisorOverride?: number | null | undefined }) | undefined,
  ) {
    super();
    const dims = where === 'AvgPool1d' ? 1 : 0;
    const given = readOptions(where, options, {
      stride: null as Size | null,
      padding: null as Size | null,
      ceilMode: false,
      countIncludePad: true,
      ...(dims === 1 ? {} : { divisorOverride: null as number | null }),
    } as {
      stride: Size | null;
      padding: Size | null;
      ceilMode: boolean;
      countIncludePad: boolean;
      divisorOverride?: number | null;
    });
    const shown = (value: Size): Size => (dims === 1 ? expand(`${where}: a size`, value, 1) : value);
    this.kernelSize = shown(kernelSize);
    this.stride = shown(given.stride ?? kernelSize);
    this.padding = shown(given.padding ?? 0);
    this.ceilMode = given.ceilMode;
    this.countIncludePad = given.countIncludePad;
    this.divisorOverride = given.divisorOverride ?? null;
  }

  override extraRepr(): string {
    return `kernel_size=${repr(this.kernelSize)}, stride=${repr(this.stride)}, padding=${repr(this.padding)}`;
  }
}

/** Means over windows of one dimension. */
export class AvgPool1d extends AvgPool {
  constructor(kernelSize: Size, options?: AvgPoolOptions) {
    super('AvgPool1d', kernelSize, options);
  }

  forward(input: Tensor): Tensor {
    return avgPool1d(input, this.kernelSize, this.stride, this.padding, this.ceilMode, this.countIncludePad);
  }
}

/** Means over windows of two dimensions. */
export class AvgPool2d extends AvgPool {
  constructor(kernelSize: Size, options?: AvgPoolOptions & { divisorOverride?: number | null | undefined }) {
    super('AvgPool2d', kernelSize, options);
  }

  forward(input: Tensor): Tensor {
    return avgPool2d(
      input,
      this.kernelSize,
      this.stride,
      this.padding,
      this.ceilMode,
      this.countIncludePad,
      this.divisorOverride,
    );
  }
}

/** Means over windows of three dimensions. */
export class AvgPool3d extends AvgPool {
  constructor(kernelSize: Size, options?: AvgPoolOptions & { divisorOverride?: number | null | undefined }) {
    super('AvgPool3d', kernelSize, options);
  }

  forward(input: Tensor): Tensor {
    return avgPool3d(
      input,
      this.kernelSize,
      this.stride,
      this.padding,
      this.ceilMode,
      this.countIncludePad,
      this.divisorOverride,
    );
  }
}

abstract class AdaptivePool extends Module {
  readonly outputSize: OutputSize;

  constructor(outputSize: OutputSize) {
    super();
    this.outputSize = outputSize;
  }

  override extraRepr(): string {
    return `output_size=${repr(this.outputSize)}`;
  }
}

/** Means over windows chosen to give `outputSize`. */
export class AdaptiveAvgPool1d extends AdaptivePool {
  forward(input: Tensor): Tensor {
    return adaptiveAvgPool1d(input, this.outputSize as Size);
  }
}

/** Means over windows chosen to give `outputSize`; null keeps a dimension. @example new AdaptiveAvgPool2d([1, 1]) */
export class AdaptiveAvgPool2d extends AdaptivePool {
  forward(input: Tensor): Tensor {
    return adaptiveAvgPool2d(input, this.outputSize);
  }
}

/** Means over windows chosen to give `outputSize`; null keeps a dimension. */
export class AdaptiveAvgPool3d extends AdaptivePool {
  forward(input: Tensor): Tensor {
    return adaptiveAvgPool3d(input, this.outputSize);
  }
}

abstract class AdaptiveMaxPool extends AdaptivePool {
  readonly returnIndices: boolean;

  constructor(where: string, outputSize: OutputSize, options: { returnIndices?: boolean | undefined } | undefined) {
    super(outputSize);
    this.returnIndices = readOptions(where, options, { returnIndices: false }).returnIndices;
  }
}

/** Maxima over windows chosen to give `outputSize`. */
export class AdaptiveMaxPool1d<Indices extends boolean = false> extends AdaptiveMaxPool {
  constructor(outputSize: OutputSize, options?: IndicesOption<Indices>) {
    super('AdaptiveMaxPool1d', outputSize, options);
  }

  forward(input: Tensor): Pooled<Indices> {
    return adaptiveMaxPool1d(input, this.outputSize, { returnIndices: this.returnIndices }) as Pooled<Indices>;
  }
}

/** Maxima over windows chosen to give `outputSize`. */
export class AdaptiveMaxPool2d<Indices extends boolean = false> extends AdaptiveMaxPool {
  constructor(outputSize: OutputSize, options?: IndicesOption<Indices>) {
    super('AdaptiveMaxPool2d', outputSize, options);
  }

  forward(input: Tensor): Pooled<Indices> {
    return adaptiveMaxPool2d(input, this.outputSize, { returnIndices: this.returnIndices }) as Pooled<Indices>;
  }
}

/** Maxima over windows chosen to give `outputSize`. */
export class AdaptiveMaxPool3d<Indices extends boolean = false> extends AdaptiveMaxPool {
  constructor(outputSize: OutputSize, options?: IndicesOption<Indices>) {
    super('AdaptiveMaxPool3d', outputSize, options);
  }

  forward(input: Tensor): Pooled<Indices> {
    return adaptiveMaxPool3d(input, this.outputSize, { returnIndices: this.returnIndices }) as Pooled<Indices>;
  }
}

/** What norm pooling can be told. */
export interface LPPoolOptions {
  stride?: Size | null | undefined;
  ceilMode?: boolean | undefined;
}

abstract class LPPool extends Module {
  readonly normType: Real;
  readonly kernelSize: Size;
  readonly stride: Size | null;
  readonly ceilMode: boolean;

  constructor(where: string, normType: Real, kernelSize: Size, options: LPPoolOptions | undefined) {
    super();
    const given = readOptions(where, options, { stride: null as Size | null, ceilMode: false });
    this.normType = normType;
    this.kernelSize = kernelSize;
    this.stride = given.stride;
    this.ceilMode = given.ceilMode;
  }

  override extraRepr(): string {
    return `norm_type=${realText(this.normType)}, kernel_size=${repr(this.kernelSize)}, stride=${repr(this.stride)}, ceil_mode=${repr(this.ceilMode)}`;
  }
}

/** Norms over windows of one dimension. */
export class LPPool1d extends LPPool {
  constructor(normType: Real, kernelSize: Size, options?: LPPoolOptions) {
    super('LPPool1d', normType, kernelSize, options);
  }

  forward(input: Tensor): Tensor {
    return lpPool1d(input, toNumber(this.normType), this.kernelSize, { stride: this.stride, ceilMode: this.ceilMode });
  }
}

/** Norms over windows of two dimensions. */
export class LPPool2d extends LPPool {
  constructor(normType: Real, kernelSize: Size, options?: LPPoolOptions) {
    super('LPPool2d', normType, kernelSize, options);
  }

  forward(input: Tensor): Tensor {
    return lpPool2d(input, toNumber(this.normType), this.kernelSize, { stride: this.stride, ceilMode: this.ceilMode });
  }
}

/** Norms over windows of three dimensions. */
export class LPPool3d extends LPPool {
  constructor(normType: Real, kernelSize: Size, options?: LPPoolOptions) {
    super('LPPool3d', normType, kernelSize, options);
  }

  forward(input: Tensor): Tensor {
    return lpPool3d(input, toNumber(this.normType), this.kernelSize, { stride: this.stride, ceilMode: this.ceilMode });
  }
}

/** The size of the output, or its ratio to the input's. */
export interface FractionalMaxPoolOptions {
  outputSize?: Size | null | undefined;
  outputRatio?: Size | FloatScalar | null | undefined;
  _randomSamples?: Tensor | null | undefined;
}

abstract class FractionalMaxPool extends Module {
  readonly kernelSize: Size;
  readonly options: Parameters<typeof fractionalMaxPool2d>[2];

  constructor(
    where: string,
    kernelSize: Size,
    options: (FractionalMaxPoolOptions & IndicesOption<boolean>) | undefined,
  ) {
    super();
    const { _randomSamples: randomSamples, ...given } = readOptions(where, options, {
      outputSize: null as Size | null,
      outputRatio: null as Size | FloatScalar | null,
      returnIndices: false,
      _randomSamples: null as Tensor | null,
    });
    this.kernelSize = kernelSize;
    const outputRatio = given.outputRatio instanceof FloatScalar ? given.outputRatio.float : given.outputRatio;
    this.options = { ...given, outputRatio, randomSamples };
  }
}

/** Maxima over windows with random borders. */
export class FractionalMaxPool2d<Indices extends boolean = false> extends FractionalMaxPool {
  constructor(kernelSize: Size, options?: FractionalMaxPoolOptions & IndicesOption<Indices>) {
    super('FractionalMaxPool2d', kernelSize, options);
  }

  forward(input: Tensor): Pooled<Indices> {
    return fractionalMaxPool2d(input, this.kernelSize, this.options) as Pooled<Indices>;
  }
}

/** Maxima over windows with random borders. */
export class FractionalMaxPool3d<Indices extends boolean = false> extends FractionalMaxPool {
  constructor(kernelSize: Size, options?: FractionalMaxPoolOptions & IndicesOption<Indices>) {
    super('FractionalMaxPool3d', kernelSize, options);
  }

  forward(input: Tensor): Pooled<Indices> {
    return fractionalMaxPool3d(input, this.kernelSize, this.options) as Pooled<Indices>;
  }
}
