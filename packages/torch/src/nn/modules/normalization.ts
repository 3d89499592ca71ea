/** @file Normalisation of features and channels without running statistics. */

import { checkIterable } from '../../base/checks.ts';
import { TorchError } from '../../base/errors.ts';
import { checkWhole, readOptions, type Size } from '../../base/options.ts';
import { floatText, type Real, repr, tupleText } from '../../base/text.ts';
import { layerNorm, rmsNorm } from '../../generated/functions.ts';
import type { Tensor } from '../../tensor/tensor.ts';
import { type FactoryOptions, factory } from '../factory.ts';
import { groupNorm, localResponseNorm } from '../functional/normalization.ts';
import { ones_, zeros_ } from '../init.ts';
import { Module } from '../module.ts';
import { emptyParameter, type Parameter } from '../parameter.ts';

/** What LayerNorm can be told. */
export interface LayerNormOptions extends FactoryOptions {
  eps?: Real | undefined;
  elementwiseAffine?: boolean | undefined;
  bias?: boolean | undefined;
}

/** Normalises the last dimensions. @example new LayerNorm(64) */
export class LayerNorm extends Module {
  readonly normalizedShape: readonly number[];
  readonly eps: number;
  readonly elementwiseAffine: boolean;
  weight: Parameter | null;
  bias: Parameter | null;

  constructor(normalizedShape: Size, options?: LayerNormOptions) {
    super();
    const given = readOptions('LayerNorm', options, { eps: 1e-5, elementwiseAffine: true, bias: true, ...factory });
    if (typeof normalizedShape !== 'number')
      checkIterable('normalizedShape', 'the shape', normalizedShape, 'a size or an array of sizes');
    this.normalizedShape = typeof normalizedShape === 'number' ? [normalizedShape] : [...normalizedShape];
    this.eps = given.eps;
    this.elementwiseAffine = given.elementwiseAffine;
    this.weight = given.elementwiseAffine ? emptyParameter(this.normalizedShape, given) : null;
    this.bias = given.elementwiseAffine && given.bias ? emptyParameter(this.normalizedShape, given) : null;
    this.resetParameters();
  }

  /** Weight one, bias zero. */
  resetParameters(): void {
    resetAffine(this.weight, this.bias);
  }

  forward(input: Tensor): Tensor {
    return layerNorm(input, this.normalizedShape, this.weight, this.bias, this.eps);
  }

  override extraRepr(): string {
    return `${tupleText(this.normalizedShape)}, eps=${floatText(this.eps)}, elementwise_affine=${repr(this.elementwiseAffine)}, bias=${repr(this.bias !== null)}`;
  }
}

/** Weight one, bias zero, where they are. */
export function resetAffine(weight: Tensor | null, bias: Tensor | null): void {
  if (weight !== null) ones_(weight);
  if (bias !== null) zeros_(bias);
}

/** What RMSNorm can be told; without `eps` the smallest step of the element type is used. */
export interface RMSNormOptions extends FactoryOptions {
  eps?: Real | null | undefined;
  elementwiseAffine?: boolean | undefined;
}

/** Divides by the root of the mean of squares of the last dimensions. */
export class RMSNorm extends Module {
  readonly normalizedShape: readonly number[];
  readonly eps: number | null;
  readonly elementwiseAffine: boolean;
  weight: Parameter | null;

  constructor(normalizedShape: Size, options?: RMSNormOptions) {
    super();
    const given = readOptions('RMSNorm', options, { eps: null as Real | null, elementwiseAffine: true, ...factory });
    if (typeof normalizedShape !== 'number')
      checkIterable('normalizedShape', 'the shape', normalizedShape, 'a size or an array of sizes');
    this.normalizedShape = typeof normalizedShape === 'number' ? [normalizedShape] : [...normalizedShape];
    this.eps = given.eps === null ? null : Number(typeof given.eps === 'number' ? given.eps : given.eps.float);
    this.elementwiseAffine = given.elementwiseAffine;
    this.weight = given.elementwiseAffine ? emptyParameter(this.normalizedShape, given) : null;
    this.resetParameters();
  }

  /** Weight one. */
  resetParameters(): void {
    resetAffine(this.weight, null);
  }

  forward(input: Tensor): Tensor {
    return rmsNorm(input, this.normalizedShape, this.weight, this.eps);
  }

  override extraRepr(): string {
    return `${tupleText(this.normalizedShape)}, eps=${this.eps === null ? 'None' : floatText(this.eps)}, elementwise_affine=${repr(this.elementwiseAffine)}`;
  }
}

/** What GroupNorm can be told. */
export interface GroupNormOptions extends FactoryOptions {
  eps?: Real | undefined;
  affine?: boolean | undefined;
  bias?: boolean | undefined;
}

/** Normalises groups of channels. */
export class GroupNorm extends Module {
  readonly numGroups: number;
  readonly numChannels: number;
  readonly eps: number;
  readonly affine: boolean;
  weight: Parameter | null;
  bias: Parameter | null;

  constructor(numGroups: number, numChannels: number, options?: GroupNormOptions) {
    super();
    checkWhole('GroupNorm: numGroups', numGroups, 1);
    checkWhole('GroupNorm: numChannels', numChannels);
    if (numChannels % numGroups !== 0)
      throw new TorchError(
        'BAD_ARGUMENT',
        `GroupNorm: numChannels (${numChannels}) must be a multiple of numGroups (${numGroups})`,
      );
    const given = readOptions('GroupNorm', options, { eps: 1e-5, affine: true, bias: true, ...factory });
    this.numGroups = numGroups;
    this.numChannels = numChannels;
    this.eps = given.eps;
    this.affine = given.affine;
    this.weight = given.affine ? emptyParameter([numChannels], given) : null;
    this.bias = given.affine && given.bias ? emptyParameter([numChannels], given) : null;
    this.resetParameters();
  }

  /** Weight one, bias zero. */
  resetParameters(): void {
    resetAffine(this.weight, this.bias);
  }

  forward(input: Tensor): Tensor {
    return groupNorm(input, this.numGroups, { weight: this.weight, bias: this.bias, eps: this.eps });
  }

  override extraRepr(): string {
    return `${this.numGroups}, ${this.numChannels}, eps=${floatText(this.eps)}, affine=${repr(this.affine)}, bias=${repr(this.bias !== null)}`;
  }
}

/** Divides by a sum of squares over neighbouring channels. */
export class LocalResponseNorm extends Module {
  readonly size: number;
  readonly alpha: number;
  readonly beta: number;
  readonly k: number;

  constructor(size: number, options?: { alpha?: Real | undefined; beta?: Real | undefined; k?: Real | undefined }) {
    super();
    const given = readOptions('LocalResponseNorm', options, { alpha: 1e-4, beta: 0.75, k: 1 });
    this.size = size;
    this.alpha = given.alpha;
    this.beta = given.beta;
    this.k = given.k;
  }

  forward(input: Tensor): Tensor {
    return localResponseNorm(input, this.size, { alpha: this.alpha, beta: this.beta, k: this.k });
  }

  override extraRepr(): string {
    return `${this.size}, alpha=${floatText(this.alpha)}, beta=${floatText(this.beta)}, k=${floatText(this.k)}`;
  }
}
