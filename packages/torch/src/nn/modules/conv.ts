/** @file Convolutions and transposed convolutions of one, two and three dimensions. */

import { didYouMean, TorchError } from '../../base/errors.ts';
import { checkWhole, expand, readOptions, type Size } from '../../base/options.ts';
import { repr, tupleText } from '../../base/text.ts';
import {
  conv1d,
  conv2d,
  conv3d,
  convTranspose1d,
  convTranspose2d,
  convTranspose3d,
} from '../../generated/functions.ts';
import type { Tensor } from '../../tensor/tensor.ts';
import { type FactoryOptions, factory } from '../factory.ts';
import { type PadMode, pad } from '../functional/convolution.ts';
import { Module } from '../module.ts';
import { emptyParameter, type Parameter } from '../parameter.ts';
import { resetWeightAndBias } from './linear.ts';

/** What lies around the input. */
export type PaddingMode = 'zeros' | 'reflect' | 'replicate' | 'circular';

/** What a convolution can be told. */
export interface ConvOptions extends FactoryOptions {
  stride?: Size | undefined;
  /** Numbers, 'valid' for none, or 'same' for an output as large as the input. */
  padding?: Size | 'same' | 'valid' | undefined;
  dilation?: Size | undefined;
  groups?: number | undefined;
  bias?: boolean | undefined;
  paddingMode?: PaddingMode | undefined;
}

/** What a transposed convolution can be told. */
export interface ConvTransposeOptions extends Omit<ConvOptions, 'padding'> {
  padding?: Size | undefined;
  outputPadding?: Size | undefined;
}

interface Settings {
  readonly dims: number;
  readonly inChannels: number;
  readonly outChannels: number;
  readonly kernelSize: Size;
  readonly transposed: boolean;
  readonly options: (ConvTransposeOptions & ConvOptions) | undefined;
}

const paddingModes: readonly string[] = ['zeros', 'reflect', 'replicate', 'circular'];

/** What all convolutions have in common. */
abstract class ConvBase extends Module {
  readonly inChannels: number;
  readonly outChannels: number;
  readonly kernelSize: readonly number[];
  readonly stride: readonly number[];
  readonly padding: readonly number[] | string;
  readonly dilation: readonly number[];
  readonly outputPadding: readonly number[];
  readonly groups: number;
  readonly paddingMode: string;
  weight: Parameter;
  bias: Parameter | null;

  constructor(where: string, { dims, inChannels, outChannels, kernelSize, transposed, options }: Settings) {
    super();
    const given = readOptions(where, options, {
      stride: 1 as Size,
      padding: null as Size | string | null,
      ...(transposed ? { outputPadding: 0 as Size } : {}),
      dilation: 1 as Size,
      groups: 1,
      bias: true,
      paddingMode: 'zeros',
      ...factory,
    } as {
      stride: Size;
      padding: Size | string | null;
      outputPadding?: Size;
      dilation: Size;
      groups: number;
      bias: boolean;
      paddingMode: string;
    } & typeof factory);
    checkWhole(`${where}: inChannels`, inChannels);
    checkWhole(`${where}: outChannels`, outChannels);
    checkWhole(`${where}: groups`, given.groups, 1);
    if (inChannels % given.groups !== 0 || outChannels % given.groups !== 0) {
      throw new TorchError(
        'BAD_ARGUMENT',
        `${where}: inChannels (${inChannels}) and outChannels (${outChannels}) must be multiples of groups (${given.groups})`,
      );
    }
    const allowed = transposed ? ['zeros'] : paddingModes;
    if (!allowed.includes(given.paddingMode)) {
      throw new TorchError(
        'BAD_ARGUMENT',
        `${where}: paddingMode is one of ${allowed.join(', ')}, got '${given.paddingMode}'${didYouMean(given.paddingMode, allowed)}`,
      );
    }
    const perDim = (name: string, value: Size): number[] => expand(`${where}: ${name}`, value, dims);
    this.inChannels = inChannels;
    this.outChannels = outChannels;
    this.kernelSize = perDim('kernelSize', kernelSize);
    this.stride = perDim('stride', given.stride);
    this.dilation = perDim('dilation', given.dilation);
    this.outputPadding = perDim('outputPadding', given.outputPadding ?? 0);
    this.padding =
      typeof given.padding === 'string'
        ? this.namedPadding(where, given.padding)
        : perDim('padding', given.padding ?? 0);
    this.groups = given.groups;
    this.paddingMode = given.paddingMode;
    const [outer, inner] = transposed ? [inChannels, outChannels] : [outChannels, inChannels];
    this.weight = emptyParameter([outer, inner / given.groups, ...this.kernelSize], given);
    this.bias = given.bias ? emptyParameter([outChannels], given) : null;
    this.resetParameters();
  }

  private namedPadding(where: string, padding: string): string {
    if (padding !== 'same' && padding !== 'valid')
      throw new TorchError('BAD_ARGUMENT', `${where}: padding is numbers, 'same' or 'valid', got '${padding}'`);
    if (padding === 'same' && this.stride.some((step) => step !== 1))
      throw new TorchError('BAD_ARGUMENT', `${where}: padding 'same' needs a stride of 1, got ${repr(this.stride)}`);
    return padding;
  }

  /** Draws new initial values. */
  resetParameters(): void {
    if (this.weight.numel() > 0) resetWeightAndBias(this.weight, this.bias);
  }

  /** Padding as [left, right] per dimension, the last dimension first. */
  protected sides(): number[] {
    const sides = this.kernelSize.map((size, i): [number, number] => {
      if (typeof this.padding !== 'string') return [this.padding[i]!, this.padding[i]!];
      if (this.padding === 'valid') return [0, 0];
      const total = this.dilation[i]! * (size - 1);
      return [Math.floor(total / 2), total - Math.floor(total / 2)];
    });
    return sides.reverse().flat();
  }

  override extraRepr(): string {
    const { inChannels, outChannels, kernelSize, stride, padding, dilation, outputPadding, groups } = this;
    let text = `${inChannels}, ${outChannels}, kernel_size=${tupleText(kernelSize)}, stride=${tupleText(stride)}`;
    if (typeof padding === 'string') text += `, padding=${padding}`;
    else if (padding.some((size) => size !== 0)) text += `, padding=${tupleText(padding)}`;
    if (dilation.some((size) => size !== 1)) text += `, dilation=${tupleText(dilation)}`;
    if (outputPadding.some((size) => size !== 0)) text += `, output_padding=${tupleText(outputPadding)}`;
    if (groups !== 1) text += `, groups=${groups}`;
    if (this.bias === null) text += ', bias=False';
    if (this.paddingMode !== 'zeros') text += `, padding_mode=${this.paddingMode}`;
    return text;
  }
}

type ConvOp = typeof conv2d;

/** What the three convolutions have in common. */
abstract class Conv extends ConvBase {
  protected run(op: ConvOp, input: Tensor): Tensor {
    const { weight, bias, stride, padding, dilation, groups } = this;
    if (this.paddingMode !== 'zeros')
      return op(
        pad(input, this.sides(), { mode: this.paddingMode as PadMode }),
        weight,
        bias,
        stride,
        0,
        dilation,
        groups,
      );
    return typeof padding === 'string'
      ? op(input, weight, bias, stride, padding, dilation, groups)
      : op(input, weight, bias, stride, padding, dilation, groups);
  }
}

/** Convolution over sequences. @example new Conv1d(16, 32, 3, { padding: 1 }) */
export class Conv1d extends Conv {
  constructor(inChannels: number, outChannels: number, kernelSize: Size, options?: ConvOptions) {
    super('Conv1d', {
      dims: 1,
      inChannels,
      outChannels,
      kernelSize,
      transposed: false,
      options: options as Settings['options'],
    });
  }

  forward(input: Tensor): Tensor {
    return this.run(conv1d as ConvOp, input);
  }
}

/** Convolution over images. @example new Conv2d(3, 64, 7, { stride: 2, padding: 3 }) */
export class Conv2d extends Conv {
  constructor(inChannels: number, outChannels: number, kernelSize: Size, options?: ConvOptions) {
    super('Conv2d', {
      dims: 2,
      inChannels,
      outChannels,
      kernelSize,
      transposed: false,
      options: options as Settings['options'],
    });
  }

  forward(input: Tensor): Tensor {
    return this.run(conv2d, input);
  }
}

/** Convolution over volumes. */
export class Conv3d extends Conv {
  constructor(inChannels: number, outChannels: number, kernelSize: Size, options?: ConvOptions) {
    super('Conv3d', {
      dims: 3,
      inChannels,
      outChannels,
      kernelSize,
      transposed: false,
      options: options as Settings['options'],
    });
  }

  forward(input: Tensor): Tensor {
    return this.run(conv3d as ConvOp, input);
  }
}

type ConvTransposeOp = typeof convTranspose2d;

/** What the three transposed convolutions have in common. */
abstract class ConvTranspose extends ConvBase {
  protected run(op: ConvTransposeOp, input: Tensor, outputSize: readonly number[] | null | undefined): Tensor {
    const { weight, bias, stride, padding, groups, dilation } = this;
    return op(
      input,
      weight,
      bias,
      stride,
      padding as readonly number[],
      this.outputPaddingFor(input, outputSize),
      groups,
      dilation,
    );
  }

  private outputPaddingFor(input: Tensor, outputSize: readonly number[] | null | undefined): readonly number[] {
    if (outputSize === undefined || outputSize === null) return this.outputPadding;
    const dims = this.kernelSize.length;
    const isBatched = input.dim() === dims + 2;
    const leading = isBatched ? 2 : 1;
    const wanted = outputSize.length === leading + dims ? outputSize.slice(leading) : outputSize;
    if (wanted.length !== dims)
      throw new TorchError(
        'SHAPE',
        `${this.getName()}: outputSize has ${dims} or ${leading + dims} numbers, got ${outputSize.length}`,
      );
    const own = input.shape.slice(leading);
    return wanted.map((size, i) => {
      const [step, space, kernel, apart] = [
        this.stride,
        this.padding as readonly number[],
        this.kernelSize,
        this.dilation,
      ].map((list) => list[i]!) as [number, number, number, number];
      const least = (own[i]! - 1) * step - 2 * space + apart * (kernel - 1) + 1;
      if (size < least || size > least + step - 1)
        throw new TorchError(
          'SHAPE',
          `${this.getName()}: outputSize[${i}] must be between ${least} and ${least + step - 1}, got ${size}`,
        );
      return size - least;
    });
  }
}

/** Where the size of an output is ambiguous, it can be given. */
export interface OutputSizeOptions {
  outputSize?: readonly number[] | null | undefined;
}

function sizeOf(
  options: readonly number[] | OutputSizeOptions | null | undefined,
): readonly number[] | null | undefined {
  return Array.isArray(options)
    ? (options as readonly number[])
    : (options as OutputSizeOptions | null | undefined)?.outputSize;
}

/** Transposed convolution over sequences. */
export class ConvTranspose1d extends ConvTranspose {
  constructor(inChannels: number, outChannels: number, kernelSize: Size, options?: ConvTransposeOptions) {
    super('ConvTranspose1d', { dims: 1, inChannels, outChannels, kernelSize, transposed: true, options });
  }

  forward(input: Tensor, options?: readonly number[] | OutputSizeOptions | null): Tensor {
    return this.run(convTranspose1d as ConvTransposeOp, input, sizeOf(options));
  }
}

/** Transposed convolution over images. */
export class ConvTranspose2d extends ConvTranspose {
  constructor(inChannels: number, outChannels: number, kernelSize: Size, options?: ConvTransposeOptions) {
    super('ConvTranspose2d', { dims: 2, inChannels, outChannels, kernelSize, transposed: true, options });
  }

  forward(input: Tensor, options?: readonly number[] | OutputSizeOptions | null): Tensor {
    return this.run(convTranspose2d, input, sizeOf(options));
  }
}

/** Transposed convolution over volumes. */
export class ConvTranspose3d extends ConvTranspose {
  constructor(inChannels: number, outChannels: number, kernelSize: Size, options?: ConvTransposeOptions) {
    super('ConvTranspose3d', { dims: 3, inChannels, outChannels, kernelSize, transposed: true, options });
  }

  forward(input: Tensor, options?: readonly number[] | OutputSizeOptions | null): Tensor {
    return this.run(convTranspose3d as ConvTransposeOp, input, sizeOf(options));
  }
}
