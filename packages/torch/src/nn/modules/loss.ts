/** @file Losses as modules. */

import { readOptions } from '../../base/options.ts';
import type { Real } from '../../base/text.ts';
import type { Tensor } from '../../tensor/tensor.ts';
import * as F from '../functional/loss.ts';
import { Module } from '../module.ts';
import { Buffer } from '../parameter.ts';
import { PairwiseDistance } from '../shape.ts';

/** How the losses of a batch become one. */
export interface LossOptions {
  reduction?: F.Reduction | undefined;
}

const reduction: { reduction: F.Reduction } = { reduction: 'mean' };

function buffer(tensor: Tensor | null): Buffer | null {
  return tensor === null ? null : new Buffer(tensor);
}

abstract class Loss extends Module {
  readonly reduction: F.Reduction;

  constructor(where: string, reduction: string) {
    super();
    if (where !== 'KLDivLoss' || reduction !== 'batchmean') F.reductionCode(where, reduction);
    this.reduction = reduction as F.Reduction;
  }
}

/** Mean absolute error. */
export class L1Loss extends Loss {
  constructor(options?: LossOptions) {
    super('L1Loss', readOptions('L1Loss', options, reduction).reduction);
  }

  forward(input: Tensor, target: Tensor): Tensor {
    return F.l1Loss(input, target, { reduction: this.reduction });
  }
}

/** Mean squared error. @example new MSELoss().forward(output, target) */
export class MSELoss extends Loss {
  constructor(options?: LossOptions) {
    super('MSELoss', readOptions('MSELoss', options, reduction).reduction);
  }

  forward(input: Tensor, target: Tensor): Tensor {
    return F.mseLoss(input, target, { reduction: this.reduction });
  }
}

/** Squared below `beta`, absolute above. */
export class SmoothL1Loss extends Loss {
  readonly beta: number;

  constructor(options?: LossOptions & { beta?: Real | undefined }) {
    const given = readOptions('SmoothL1Loss', options, { ...reduction, beta: 1 });
    super('SmoothL1Loss', given.reduction);
    this.beta = given.beta;
  }

  forward(input: Tensor, target: Tensor): Tensor {
    return F.smoothL1Loss(input, target, { reduction: this.reduction, beta: this.beta });
  }
}

/** Squared below `delta`, absolute (times `delta`) above. */
export class HuberLoss extends Loss {
  readonly delta: number;

  constructor(options?: LossOptions & { delta?: Real | undefined }) {
    const given = readOptions('HuberLoss', options, { ...reduction, delta: 1 });
    super('HuberLoss', given.reduction);
    this.delta = given.delta;
  }

  forward(input: Tensor, target: Tensor): Tensor {
    return F.huberLoss(input, target, { reduction: this.reduction, delta: this.delta });
  }
}

/** Kullback-Leibler divergence. */
export class KLDivLoss extends Loss {
  readonly logTarget: boolean;

  constructor(options?: { reduction?: F.Reduction | 'batchmean' | undefined; logTarget?: boolean | undefined }) {
    const given = readOptions('KLDivLoss', options, { ...reduction, logTarget: false });
    super('KLDivLoss', given.reduction);
    this.logTarget = given.logTarget;
  }

  forward(input: Tensor, target: Tensor): Tensor {
    return F.klDiv(input, target, { reduction: this.reduction, logTarget: this.logTarget });
  }
}

/** What losses over classes can be told. */
export interface ClassLossOptions extends LossOptions {
  weight?: Tensor | null | undefined;
  ignoreIndex?: number | undefined;
}

/** Negative log-likelihood of classes, given log-probabilities. */
export class NLLLoss extends Loss {
  weight: Buffer | null;
  readonly ignoreIndex: number;

  constructor(options?: ClassLossOptions) {
    const given = readOptions('NLLLoss', options, { ...reduction, weight: null as Tensor | null, ignoreIndex: -100 });
    super('NLLLoss', given.reduction);
    this.weight = buffer(given.weight);
    this.ignoreIndex = given.ignoreIndex;
  }

  forward(input: Tensor, target: Tensor): Tensor {
    return F.nllLoss(input, target, { reduction: this.reduction, weight: this.weight, ignoreIndex: this.ignoreIndex });
  }
}

/** Cross entropy of unnormalised scores and classes. @example new CrossEntropyLoss({ labelSmoothing: 0.1 }) */
export class CrossEntropyLoss extends Loss {
  weight: Buffer | null;
  readonly ignoreIndex: number;
  readonly labelSmoothing: number;

  constructor(options?: ClassLossOptions & { labelSmoothing?: Real | undefined }) {
    const given = readOptions('CrossEntropyLoss', options, {
      ...reduction,
      weight: null as Tensor | null,
      ignoreIndex: -100,
      labelSmoothing: 0,
    });
    super('CrossEntropyLoss', given.reduction);
    this.weight = buffer(given.weight);
    this.ignoreIndex = given.ignoreIndex;
    this.labelSmoothing = given.labelSmoothing;
  }

  forward(input: Tensor, target: Tensor): Tensor {
    const { reduction, weight, ignoreIndex, labelSmoothing } = this;
    return F.crossEntropy(input, target, { reduction, weight, ignoreIndex, labelSmoothing });
  }
}

/** Binary cross entropy of probabilities. */
export class BCELoss extends Loss {
  weight: Buffer | null;

  constructor(options?: LossOptions & { weight?: Tensor | null | undefined }) {
    const given = readOptions('BCELoss', options, { ...reduction, weight: null as Tensor | null });
    super('BCELoss', given.reduction);
    this.weight = buffer(given.weight);
  }

  forward(input: Tensor, target: Tensor): Tensor {
    return F.binaryCrossEntropy(input, target, { reduction: this.reduction, weight: this.weight });
  }
}

/** Binary cross entropy of unnormalised scores. */
export class BCEWithLogitsLoss extends Loss {
  weight: Buffer | null;
  posWeight: Buffer | null;

  constructor(options?: LossOptions & { weight?: Tensor | null | undefined; posWeight?: Tensor | null | undefined }) {
    const given = readOptions('BCEWithLogitsLoss', options, {
      ...reduction,
      weight: null as Tensor | null,
      posWeight: null as Tensor | null,
    });
    super('BCEWithLogitsLoss', given.reduction);
    this.weight = buffer(given.weight);
    this.posWeight = buffer(given.posWeight);
  }

  forward(input: Tensor, target: Tensor): Tensor {
    return F.binaryCrossEntropyWithLogits(input, target, {
      reduction: this.reduction,
      weight: this.weight,
      posWeight: this.posWeight,
    });
  }
}

/** Negative log-likelihood of counts. */
export class PoissonNLLLoss extends Loss {
  readonly logInput: boolean;
  readonly full: boolean;
  readonly eps: number;

  constructor(
    options?: LossOptions & { logInput?: boolean | undefined; full?: boolean | undefined; eps?: Real | undefined },
  ) {
    const given = readOptions('PoissonNLLLoss', options, { ...reduction, logInput: true, full: false, eps: 1e-8 });
    super('PoissonNLLLoss', given.reduction);
    this.logInput = given.logInput;
    this.full = given.full;
    this.eps = given.eps;
  }

  forward(input: Tensor, target: Tensor): Tensor {
    const { reduction, logInput, full, eps } = this;
    return F.poissonNllLoss(input, target, { reduction, logInput, full, eps });
  }
}

/** Negative log-likelihood of normally distributed values. */
export class GaussianNLLLoss extends Loss {
  readonly full: boolean;
  readonly eps: number;

  constructor(options?: LossOptions & { full?: boolean | undefined; eps?: Real | undefined }) {
    const given = readOptions('GaussianNLLLoss', options, { ...reduction, full: false, eps: 1e-6 });
    super('GaussianNLLLoss', given.reduction);
    this.full = given.full;
    this.eps = given.eps;
  }

  forward(input: Tensor, target: Tensor, variance: Tensor | number): Tensor {
    return F.gaussianNllLoss(input, target, variance, { reduction: this.reduction, full: this.full, eps: this.eps });
  }
}

/** Makes pairs that are alike close and others at least `margin` apart. */
export class HingeEmbeddingLoss extends Loss {
  readonly margin: number;

  constructor(options?: LossOptions & { margin?: Real | undefined }) {
    const given = readOptions('HingeEmbeddingLoss', options, { ...reduction, margin: 1 });
    super('HingeEmbeddingLoss', given.reduction);
    this.margin = given.margin;
  }

  forward(input: Tensor, target: Tensor): Tensor {
    return F.hingeEmbeddingLoss(input, target, { reduction: this.reduction, margin: this.margin });
  }
}

/** Makes the first input larger than the second where the target is 1. */
export class MarginRankingLoss extends Loss {
  readonly margin: number;

  constructor(options?: LossOptions & { margin?: Real | undefined }) {
    const given = readOptions('MarginRankingLoss', options, { ...reduction, margin: 0 });
    super('MarginRankingLoss', given.reduction);
    this.margin = given.margin;
  }

  forward(input1: Tensor, input2: Tensor, target: Tensor): Tensor {
    return F.marginRankingLoss(input1, input2, target, { reduction: this.reduction, margin: this.margin });
  }
}

/** Makes pairs that are alike point the same way. */
export class CosineEmbeddingLoss extends Loss {
  readonly margin: number;

  constructor(options?: LossOptions & { margin?: Real | undefined }) {
    const given = readOptions('CosineEmbeddingLoss', options, { ...reduction, margin: 0 });
    super('CosineEmbeddingLoss', given.reduction);
    this.margin = given.margin;
  }

  forward(input1: Tensor, input2: Tensor, target: Tensor): Tensor {
    return F.cosineEmbeddingLoss(input1, input2, target, { reduction: this.reduction, margin: this.margin });
  }
}

/** Logistic loss of targets 1 and -1. */
export class SoftMarginLoss extends Loss {
  constructor(options?: LossOptions) {
    super('SoftMarginLoss', readOptions('SoftMarginLoss', options, reduction).reduction);
  }

  forward(input: Tensor, target: Tensor): Tensor {
    return F.softMarginLoss(input, target, { reduction: this.reduction });
  }
}

/** Margin loss of several classes at once. */
export class MultiLabelMarginLoss extends Loss {
  constructor(options?: LossOptions) {
    super('MultiLabelMarginLoss', readOptions('MultiLabelMarginLoss', options, reduction).reduction);
  }

  forward(input: Tensor, target: Tensor): Tensor {
    return F.multilabelMarginLoss(input, target, { reduction: this.reduction });
  }
}

/** Logistic loss of several classes at once. */
export class MultiLabelSoftMarginLoss extends Loss {
  weight: Buffer | null;

  constructor(options?: LossOptions & { weight?: Tensor | null | undefined }) {
    const given = readOptions('MultiLabelSoftMarginLoss', options, { ...reduction, weight: null as Tensor | null });
    super('MultiLabelSoftMarginLoss', given.reduction);
    this.weight = buffer(given.weight);
  }

  forward(input: Tensor, target: Tensor): Tensor {
    return F.multilabelSoftMarginLoss(input, target, { reduction: this.reduction, weight: this.weight });
  }
}

/** Margin loss of classes. */
export class MultiMarginLoss extends Loss {
  readonly p: number;
  readonly margin: number;
  weight: Buffer | null;

  constructor(
    options?: LossOptions & { p?: number | undefined; margin?: Real | undefined; weight?: Tensor | null | undefined },
  ) {
    const given = readOptions('MultiMarginLoss', options, {
      ...reduction,
      p: 1,
      margin: 1,
      weight: null as Tensor | null,
    });
    super('MultiMarginLoss', given.reduction);
    this.p = given.p;
    this.margin = given.margin;
    this.weight = buffer(given.weight);
  }

  forward(input: Tensor, target: Tensor): Tensor {
    const { reduction, p, margin, weight } = this;
    return F.multiMarginLoss(input, target, { reduction, p, margin, weight });
  }
}

/** Makes the anchor closer to the positive example than to the negative one. */
export class TripletMarginLoss extends Loss {
  readonly margin: number;
  readonly p: number;
  readonly eps: number;
  readonly swap: boolean;

  constructor(
    options?: LossOptions & {
      margin?: Real | undefined;
      p?: Real | undefined;
      eps?: Real | undefined;
      swap?: boolean | undefined;
    },
  ) {
    const given = readOptions('TripletMarginLoss', options, { ...reduction, margin: 1, p: 2, eps: 1e-6, swap: false });
    super('TripletMarginLoss', given.reduction);
    this.margin = given.margin;
    this.p = given.p;
    this.eps = given.eps;
    this.swap = given.swap;
  }

  forward(anchor: Tensor, positive: Tensor, negative: Tensor): Tensor {
    const { reduction, margin, p, eps, swap } = this;
    return F.tripletMarginLoss(anchor, positive, negative, { reduction, margin, p, eps, swap });
  }
}

/** A distance between vectors: a function, or a module of two tensors. */
export type Distance = ((a: Tensor, b: Tensor) => Tensor) | (Module & { forward(a: Tensor, b: Tensor): Tensor });

/** TripletMarginLoss with a distance of one's own. */
export class TripletMarginWithDistanceLoss extends Loss {
  readonly distanceFunction: Distance;
  readonly margin: number;
  readonly swap: boolean;

  constructor(
    options?: LossOptions & {
      distanceFunction?: Distance | null | undefined;
      margin?: Real | undefined;
      swap?: boolean | undefined;
    },
  ) {
    const given = readOptions('TripletMarginWithDistanceLoss', options, {
      ...reduction,
      distanceFunction: null as Distance | null,
      margin: 1,
      swap: false,
    });
    super('TripletMarginWithDistanceLoss', given.reduction);
    this.distanceFunction = given.distanceFunction ?? new PairwiseDistance();
    this.margin = given.margin;
    this.swap = given.swap;
  }

  forward(anchor: Tensor, positive: Tensor, negative: Tensor): Tensor {
    const { reduction, distanceFunction: distance, margin, swap } = this;
    const distanceFunction =
      typeof distance === 'function' ? distance : (a: Tensor, b: Tensor) => distance.forward(a, b);
    return F.tripletMarginWithDistanceLoss(anchor, positive, negative, { reduction, distanceFunction, margin, swap });
  }
}

/** Connectionist temporal classification. */
export class CTCLoss extends Loss {
  readonly blank: number;
  readonly zeroInfinity: boolean;

  constructor(options?: LossOptions & { blank?: number | undefined; zeroInfinity?: boolean | undefined }) {
    const given = readOptions('CTCLoss', options, { ...reduction, blank: 0, zeroInfinity: false });
    super('CTCLoss', given.reduction);
    this.blank = given.blank;
    this.zeroInfinity = given.zeroInfinity;
  }

  forward(
    logProbs: Tensor,
    targets: Tensor,
    inputLengths: Tensor | readonly number[],
    targetLengths: Tensor | readonly number[],
  ): Tensor {
    const { reduction, blank, zeroInfinity } = this;
    return F.ctcLoss(logProbs, targets, { inputLengths, targetLengths, reduction, blank, zeroInfinity });
  }
}
