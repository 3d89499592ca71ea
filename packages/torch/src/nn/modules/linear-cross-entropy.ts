/** @file A linear layer and the cross entropy of its scores in one module. */
import { TorchError } from '../../base/errors.ts';
import { readOptions } from '../../base/options.ts';
import { floatText, type Real, repr } from '../../base/text.ts';
import type { Tensor } from '../../tensor/tensor.ts';
import { type FactoryOptions, factory } from '../factory.ts';
import { type LinearCrossEntropyOptions, linearCrossEntropy } from '../functional/linear-cross-entropy.ts';
import { type Reduction, reductionCode } from '../functional/loss.ts';
import { Module } from '../module.ts';
import { Buffer } from '../parameter.ts';
import { Linear } from './linear.ts';

/** What LinearCrossEntropyLoss can be told. */
export interface LinearCrossEntropyLossOptions extends FactoryOptions {
  /** Further dimensions of the scores: there is one choice of a class for each. */
  outFeatures?: readonly number[] | undefined;
  bias?: boolean | undefined;
  reduction?: Reduction | undefined;
  weight?: Tensor | null | undefined;
  ignoreIndex?: number | null | undefined;
  labelSmoothing?: Real | undefined;
  options?: LinearCrossEntropyOptions | null | undefined;
}

/** Cross entropy of a linear layer's scores. @example new LinearCrossEntropyLoss(512, 50_000, { options: { batchChunkSize: 256 } }) */
export class LinearCrossEntropyLoss extends Module {
  readonly numClasses: number;
  readonly outFeatures: readonly number[];
  readonly reduction: Reduction;
  readonly ignoreIndex: number | null;
  readonly labelSmoothing: number;
  readonly options: LinearCrossEntropyOptions | null;
  weight: Buffer | null;
  linear: Linear;

  constructor(inFeatures: number, numClasses: number, options?: LinearCrossEntropyLossOptions) {
    super();
    const given = readOptions('LinearCrossEntropyLoss', options, {
      outFeatures: [] as readonly number[],
      bias: false,
      reduction: 'mean' as Reduction,
      weight: null as Tensor | null,
      ignoreIndex: null as number | null,
      labelSmoothing: 0,
      options: null as LinearCrossEntropyOptions | null,
      ...factory,
    });
    reductionCode('LinearCrossEntropyLoss', given.reduction);
    if (given.weight !== null && given.weight.shape.join() !== String(numClasses))
      throw new TorchError(
        'SHAPE',
        `LinearCrossEntropyLoss: weight has one number per class, [${numClasses}], got [${given.weight.shape.join(', ')}]`,
      );
    if (!(given.labelSmoothing >= 0 && given.labelSmoothing <= 1))
      throw new TorchError(
        'BAD_ARGUMENT',
        `LinearCrossEntropyLoss: labelSmoothing must be between 0 and 1, got ${given.labelSmoothing}`,
      );
    this.numClasses = numClasses;
    this.outFeatures = given.outFeatures;
    this.reduction = given.reduction;
    this.ignoreIndex = given.ignoreIndex;
    this.labelSmoothing = given.labelSmoothing;
    this.options = given.options;
    this.weight = given.weight === null ? null : new Buffer(given.weight);
    const scores = given.outFeatures.reduce((product, size) => product * size, numClasses);
    this.linear = new Linear(inFeatures, scores, { bias: given.bias, dtype: given.dtype, device: given.device });
  }

  forward(input: Tensor, target: Tensor): Tensor {
    const shape = [this.numClasses, ...this.outFeatures];
    const { weight, reduction, ignoreIndex, labelSmoothing, options } = this;
    return linearCrossEntropy(input, this.linear.weight.reshape([...shape, this.linear.inFeatures]), target, {
      linearBias: this.linear.bias?.reshape(shape) ?? null,
      weight,
      reduction,
      ignoreIndex,
      labelSmoothing,
      options,
    });
  }

  override extraRepr(): string {
    const { linear, outFeatures, options } = this;
    const chunks = options === null ? 'None' : `LinearCrossEntropyOptions(batch_chunk_size=${options.batchChunkSize})`;
    return `in_features=${linear.inFeatures}, num_classes=${this.numClasses}, out_features=${repr(outFeatures)}, bias=${repr(linear.bias !== null)}, reduction=${this.reduction}, ignore_index=${repr(this.ignoreIndex)}, label_smoothing=${floatText(this.labelSmoothing)}, options=${chunks}`;
  }
}
