/** @file Losses. `reduction` is 'mean' (the default), 'sum' or 'none'. */
import { checkObject, checkText, show } from '../../base/checks.ts';
import {
  binaryCrossEntropy as bceOp,
  binaryCrossEntropyWithLogits as bceWithLogitsOp,
  broadcastTensors,
  clampMin,
  cosineEmbeddingLoss as cosineEmbeddingLossOp,
  crossEntropyLoss,
  ctcLoss as ctcLossOp,
  hingeEmbeddingLoss as hingeEmbeddingLossOp,
  huberLoss as huberLossOp,
  klDiv as klDivOp,
  l1Loss as l1LossOp,
  logSigmoid,
  marginRankingLoss as marginRankingLossOp,
  minimum,
  mseLoss as mseLossOp,
  multilabelMarginLoss as multilabelMarginLossOp,
  multiMarginLoss as multiMarginLossOp,
  nllLossNd,
  onesLike,
  pairwiseDistance,
  poissonNllLoss as poissonNllLossOp,
  smoothL1Loss as smoothL1LossOp,
  softMarginLoss as softMarginLossOp,
  tripletMarginLoss as tripletMarginLossOp,
} from '../../generated/functions.ts';
import '../../generated/methods.ts';
import { noGrad } from '../../autograd/modes.ts';
import { checkOptions, didYouMean, TorchError } from '../../base/errors.ts';
import { checkTensors } from '../../tensor/check-tensors.ts';
import type { Tensor } from '../../tensor/tensor.ts';

/** How the losses of a batch become one: their mean, their sum, or not at all. */
export type Reduction = 'mean' | 'sum' | 'none';

/** What every loss can be told. */
export interface LossOptions {
  reduction?: Reduction | undefined;
}

const codes: Readonly<Record<string, number>> = { none: 0, mean: 1, sum: 2 };

/** The number by which libtorch knows a reduction. */
export function reductionCode(where: string, reduction: string | undefined): number {
  checkText('reductionCode', 'where', where);
  const found = reduction === undefined || typeof reduction === 'string' ? codes[reduction ?? 'mean'] : undefined;
  if (found !== undefined) return found;
  throw new TorchError(
    'BAD_ARGUMENT',
    `${where}: reduction is 'mean', 'sum' or 'none', got ${show(reduction)}${didYouMean(reduction!, Object.keys(codes))}`,
  );
}

function reduce(where: string, losses: Tensor, reduction: string | undefined): Tensor {
  const code = reductionCode(where, reduction);
  return code === 0 ? losses : code === 1 ? losses.mean() : losses.sum();
}

function weighed(where: string, losses: Tensor, { weight, reduction }: LossOptions & { weight: Tensor }): Tensor {
  if (!sameShape(losses, weight))
    throw new TorchError(
      'SHAPE',
      `${where}: weight has the shape of the input, [${losses.shape.join(', ')}], got [${weight.shape.join(', ')}]`,
    );
  return reduce(where, losses.mul(weight), reduction);
}

function sameShape(a: Tensor, b: Tensor): boolean {
  const [one, two] = [a.shape, b.shape];
  return one.length === two.length && one.every((size, i) => size === two[i]);
}

/** Losses that have warned of shapes that differ. */
const warned = new Set<string>();

/** Input and target in one shape; where theirs differ, every element of the smaller one counts several times, which is rarely meant. */
function pair(where: string, input: Tensor, target: Tensor): [Tensor, Tensor] {
  if (sameShape(input, target)) return [input, target];
  const both = broadcastTensors([input, target]) as [Tensor, Tensor];
  if (!warned.has(where)) {
    warned.add(where);
    process.emitWarning(
      `${where}: the input is [${input.shape.join(', ')}] and the target [${target.shape.join(', ')}], which are broadcast to [${both[0].shape.join(', ')}]; that is rarely meant: give both the same shape`,
      { type: 'ShapeWarning', code: 'PIPEWRIGHT_LOSS_BROADCAST' },
    );
  }
  return both;
}

/** Mean absolute error. */
export function l1Loss(input: Tensor, target: Tensor, options?: LossOptions & { weight?: Tensor | undefined }): Tensor {
  checkTensors('l1Loss', { input, target });
  checkOptions('l1Loss', options, ['reduction', 'weight']);
  const [a, b] = pair('l1Loss', input, target);
  if (options?.weight !== undefined) {
    const losses = weighed('l1Loss', l1LossOp(a, b, 0), {
      weight: options.weight,
      reduction: options.reduction === 'none' ? 'none' : 'sum',
    });
    return (options.reduction ?? 'mean') === 'mean' ? losses.div(options.weight.sum()) : losses;
  }
  return l1LossOp(a, b, reductionCode('l1Loss', options?.reduction));
}

/** Mean squared error. @example F.mseLoss(model.forward(x), y) */
export function mseLoss(
  input: Tensor,
  target: Tensor,
  options?: LossOptions & { weight?: Tensor | undefined },
): Tensor {
  checkTensors('mseLoss', { input, target });
  checkOptions('mseLoss', options, ['reduction', 'weight']);
  const [a, b] = pair('mseLoss', input, target);
  if (options?.weight !== undefined) {
    const losses = weighed('mseLoss', a.sub(b).pow(2), {
      weight: options.weight,
      reduction: options.reduction === 'none' ? 'none' : 'sum',
    });
    return (options.reduction ?? 'mean') === 'mean' ? losses.div(options.weight.sum()) : losses;
  }
  return mseLossOp(a, b, reductionCode('mseLoss', options?.reduction));
}

/** Squared below `beta`, absolute above. */
export function smoothL1Loss(
  input: Tensor,
  target: Tensor,
  options?: LossOptions & { beta?: number | undefined },
): Tensor {
  checkTensors('smoothL1Loss', { input, target });
  checkOptions('smoothL1Loss', options, ['reduction', 'beta']);
  const [a, b] = pair('smoothL1Loss', input, target);
  const code = reductionCode('smoothL1Loss', options?.reduction);
  const beta = options?.beta ?? 1;
  return beta === 0 ? l1LossOp(a, b, code) : smoothL1LossOp(a, b, code, beta);
}

/** Squared below `delta`, absolute (times `delta`) above. */
export function huberLoss(
  input: Tensor,
  target: Tensor,
  options?: LossOptions & { delta?: number | undefined; weight?: Tensor | undefined },
): Tensor {
  checkTensors('huberLoss', { input, target });
  checkOptions('huberLoss', options, ['reduction', 'delta', 'weight']);
  const [a, b] = pair('huberLoss', input, target);
  const delta = options?.delta ?? 1;
  if (options?.weight !== undefined)
    return weighed('huberLoss', huberLossOp(a, b, 0, delta), { weight: options.weight, reduction: options.reduction });
  return huberLossOp(a, b, reductionCode('huberLoss', options?.reduction), delta);
}

/** Kullback-Leibler divergence of log-probabilities from a target; 'batchmean' divides by the batch size. */
export function klDiv(
  input: Tensor,
  target: Tensor,
  options?: { reduction?: Reduction | 'batchmean' | undefined; logTarget?: boolean | undefined },
): Tensor {
  checkTensors('klDiv', { input, target });
  checkOptions('klDiv', options, ['reduction', 'logTarget']);
  const perBatch = options?.reduction === 'batchmean';
  const sum = klDivOp(input, target, perBatch ? 2 : reductionCode('klDiv', options?.reduction), {
    logTarget: options?.logTarget ?? false,
  });
  return perBatch && input.dim() !== 0 ? sum.div(input.size(0)) : sum;
}

/** What losses over classes can be told. */
export interface ClassLossOptions extends LossOptions {
  /** One number per class. */
  weight?: Tensor | null | undefined;
  /** A class that counts for nothing. */
  ignoreIndex?: number | undefined;
}

/** Negative log-likelihood of classes, given log-probabilities. */
export function nllLoss(input: Tensor, target: Tensor, options?: ClassLossOptions): Tensor {
  checkOptions('nllLoss', options, ['reduction', 'weight', 'ignoreIndex']);
  return nllLossNd(
    input,
    target,
    options?.weight ?? null,
    reductionCode('nllLoss', options?.reduction),
    options?.ignoreIndex ?? -100,
  );
}

/** Cross entropy of unnormalised scores and classes (or probabilities of classes). @example F.crossEntropy(logits, labels) */
export function crossEntropy(
  input: Tensor,
  target: Tensor,
  options?: ClassLossOptions & { labelSmoothing?: number | undefined },
): Tensor {
  checkTensors('crossEntropy', { input, target });
  if (options === undefined) return crossEntropyLoss(input, target);
  checkOptions('crossEntropy', options, ['reduction', 'weight', 'ignoreIndex', 'labelSmoothing']);
  return crossEntropyLoss(
    input,
    target,
    options.weight ?? null,
    reductionCode('crossEntropy', options.reduction),
    options.ignoreIndex ?? -100,
    options.labelSmoothing ?? 0,
  );
}

/** What binary losses can be told. */
export interface BinaryLossOptions extends LossOptions {
  /** One number per element, or what broadcasts to that. */
  weight?: Tensor | null | undefined;
}

/** Binary cross entropy of probabilities. */
export function binaryCrossEntropy(input: Tensor, target: Tensor, options?: BinaryLossOptions): Tensor {
  checkTensors('binaryCrossEntropy', { input, target });
  checkOptions('binaryCrossEntropy', options, ['reduction', 'weight']);
  if (!sameShape(input, target)) {
    throw new TorchError(
      'SHAPE',
      `binaryCrossEntropy: input [${input.shape.join(', ')}] and target [${target.shape.join(', ')}] must have the same shape; reshape one of them`,
    );
  }
  const weight = options?.weight ?? null;
  const wide = weight === null || sameShape(weight, target) ? weight : weight.expandAs(target);
  return bceOp(input, target, wide, reductionCode('binaryCrossEntropy', options?.reduction));
}

/** Binary cross entropy of unnormalised scores. */
export function binaryCrossEntropyWithLogits(
  input: Tensor,
  target: Tensor,
  options?: BinaryLossOptions & { posWeight?: Tensor | null | undefined },
): Tensor {
  checkTensors('binaryCrossEntropyWithLogits', { input, target });
  checkOptions('binaryCrossEntropyWithLogits', options, ['reduction', 'weight', 'posWeight']);
  if (!sameShape(input, target)) {
    throw new TorchError(
      'SHAPE',
      `binaryCrossEntropyWithLogits: input [${input.shape.join(', ')}] and target [${target.shape.join(', ')}] must have the same shape; reshape one of them`,
    );
  }
  return bceWithLogitsOp(
    input,
    target,
    options?.weight ?? null,
    options?.posWeight ?? null,
    reductionCode('binaryCrossEntropyWithLogits', options?.reduction),
  );
}

/** What `poissonNllLoss` can be told. */
export interface PoissonNllLossOptions extends LossOptions {
  logInput?: boolean | undefined;
  full?: boolean | undefined;
  eps?: number | undefined;
}

/** Negative log-likelihood of counts. */
export function poissonNllLoss(input: Tensor, target: Tensor, options?: PoissonNllLossOptions): Tensor {
  checkOptions('poissonNllLoss', options, ['reduction', 'logInput', 'full', 'eps']);
  const { logInput = true, full = false, eps = 1e-8, reduction } = options ?? {};
  return poissonNllLossOp(input, target, logInput, full, eps, reductionCode('poissonNllLoss', reduction));
}

/** Negative log-likelihood of normally distributed values with mean `input` and variance `variance`. */
export function gaussianNllLoss(
  input: Tensor,
  target: Tensor,
  variance: Tensor | number,
  options?: LossOptions & { full?: boolean | undefined; eps?: number | undefined },
): Tensor {
  checkTensors('gaussianNllLoss', { input, target });
  checkOptions('gaussianNllLoss', options, ['reduction', 'full', 'eps']);
  if (typeof variance !== 'number') checkTensors('gaussianNllLoss', { variance });
  const { full = false, eps = 1e-6, reduction } = options ?? {};
  const size = fitVariance(input, typeof variance === 'number' ? onesLike(input).mul(variance) : variance).clone();
  noGrad(() => size.clampMin_(eps));
  const losses = size.log().add(input.sub(target).pow(2).div(size)).mul(0.5);
  return reduce('gaussianNllLoss', full ? losses.add(0.5 * Math.log(2 * Math.PI)) : losses, reduction);
}

function fitVariance(input: Tensor, variance: Tensor): Tensor {
  if (!variance.isMeta && variance.lt(0).any().itemValue())
    throw new TorchError('BAD_ARGUMENT', 'gaussianNllLoss: the variance has negative elements');
  if (sameShape(input, variance)) return variance;
  const [wanted, given] = [input.shape, variance.shape];
  if (given.length === wanted.length - 1 && given.every((size, i) => size === wanted[i])) return variance.unsqueeze(-1);
  const different = given.filter((size, i) => size !== wanted[i]);
  if (given.length === wanted.length && different.length === 1 && different[0] === 1) return variance;
  throw new TorchError(
    'SHAPE',
    `gaussianNllLoss: a variance of shape [${given.join(', ')}] does not fit an input of shape [${wanted.join(', ')}]`,
  );
}

/** Makes pairs that are alike (1) close and others (-1) at least `margin` apart. */
export function hingeEmbeddingLoss(
  input: Tensor,
  target: Tensor,
  options?: LossOptions & { margin?: number | undefined },
): Tensor {
  checkOptions('hingeEmbeddingLoss', options, ['reduction', 'margin']);
  return hingeEmbeddingLossOp(
    input,
    target,
    options?.margin ?? 1,
    reductionCode('hingeEmbeddingLoss', options?.reduction),
  );
}

/** Makes `input1` larger than `input2` where the target is 1, smaller where it is -1. */
export function marginRankingLoss(
  input1: Tensor,
  input2: Tensor,
  target: Tensor,
  options?: LossOptions & { margin?: number | undefined },
): Tensor {
  checkTensors('marginRankingLoss', { input1, input2, target });
  checkOptions('marginRankingLoss', options, ['reduction', 'margin']);
  if (input1.dim() !== input2.dim() || input1.dim() !== target.dim()) {
    throw new TorchError(
      'SHAPE',
      `marginRankingLoss: all tensors must have the same number of dimensions, got ${input1.dim()}, ${input2.dim()} and ${target.dim()}`,
    );
  }
  return marginRankingLossOp(
    input1,
    input2,
    target,
    options?.margin ?? 0,
    reductionCode('marginRankingLoss', options?.reduction),
  );
}

/** Makes pairs that are alike (1) point the same way and others (-1) differ by more than `margin`. */
export function cosineEmbeddingLoss(
  input1: Tensor,
  input2: Tensor,
  target: Tensor,
  options?: LossOptions & { margin?: number | undefined },
): Tensor {
  checkOptions('cosineEmbeddingLoss', options, ['reduction', 'margin']);
  return cosineEmbeddingLossOp(
    input1,
    input2,
    target,
    options?.margin ?? 0,
    reductionCode('cosineEmbeddingLoss', options?.reduction),
  );
}

/** Logistic loss of targets 1 and -1. */
export function softMarginLoss(input: Tensor, target: Tensor, options?: LossOptions): Tensor {
  checkOptions('softMarginLoss', options, ['reduction']);
  return softMarginLossOp(input, target, reductionCode('softMarginLoss', options?.reduction));
}

/** Margin loss of several classes at once. */
export function multilabelMarginLoss(input: Tensor, target: Tensor, options?: LossOptions): Tensor {
  checkTensors('multilabelMarginLoss', { input, target });
  checkOptions('multilabelMarginLoss', options, ['reduction']);
  return multilabelMarginLossOp(input, target, reductionCode('multilabelMarginLoss', options?.reduction));
}

/** Logistic loss of several classes at once. */
export function multilabelSoftMarginLoss(input: Tensor, target: Tensor, options?: BinaryLossOptions): Tensor {
  checkTensors('multilabelSoftMarginLoss', { input, target });
  checkOptions('multilabelSoftMarginLoss', options, ['reduction', 'weight']);
  const losses = target
    .mul(logSigmoid(input))
    .add(target.neg().add(1).mul(logSigmoid(input.neg())))
    .neg();
  const weighty = options?.weight === undefined || options.weight === null ? losses : losses.mul(options.weight);
  return reduce('multilabelSoftMarginLoss', weighty.sum([-1]).div(input.size(-1)), options?.reduction);
}

/** What `multiMarginLoss` can be told. */
export interface MultiMarginLossOptions extends LossOptions {
  p?: number | undefined;
  margin?: number | undefined;
  weight?: Tensor | null | undefined;
}

/** Margin loss of classes. */
export function multiMarginLoss(input: Tensor, target: Tensor, options?: MultiMarginLossOptions): Tensor {
  checkOptions('multiMarginLoss', options, ['reduction', 'p', 'margin', 'weight']);
  const { p = 1, margin = 1, weight = null, reduction } = options ?? {};
  if (p !== 1 && p !== 2) throw new TorchError('BAD_ARGUMENT', `multiMarginLoss: p is 1 or 2, got ${p}`);
  return multiMarginLossOp(input, target, p, margin, weight, reductionCode('multiMarginLoss', reduction));
}

/** What `tripletMarginLoss` can be told. */
export interface TripletMarginLossOptions extends LossOptions {
  margin?: number | undefined;
  p?: number | undefined;
  eps?: number | undefined;
  swap?: boolean | undefined;
}

/** Makes the anchor closer to the positive example than to the negative one, by `margin`. */
export function tripletMarginLoss(
  anchor: Tensor,
  positive: Tensor,
  negative: Tensor,
  options?: TripletMarginLossOptions,
): Tensor {
  checkOptions('tripletMarginLoss', options, ['reduction', 'margin', 'p', 'eps', 'swap']);
  const { margin = 1, p = 2, eps = 1e-6, swap = false, reduction } = options ?? {};
  if (margin <= 0)
    throw new TorchError('BAD_ARGUMENT', `tripletMarginLoss: margin must be greater than 0, got ${margin}`);
  return tripletMarginLossOp(
    anchor,
    positive,
    negative,
    margin,
    p,
    eps,
    swap,
    reductionCode('tripletMarginLoss', reduction),
  );
}

/** What `tripletMarginWithDistanceLoss` can be told. */
export interface TripletDistanceOptions extends LossOptions {
  distanceFunction?: ((a: Tensor, b: Tensor) => Tensor) | null | undefined;
  margin?: number | undefined;
  swap?: boolean | undefined;
}

/** `tripletMarginLoss` with a distance of one's own. */
export function tripletMarginWithDistanceLoss(
  anchor: Tensor,
  positive: Tensor,
  negative: Tensor,
  options?: TripletDistanceOptions,
): Tensor {
  checkOptions('tripletMarginWithDistanceLoss', options, ['reduction', 'distanceFunction', 'margin', 'swap']);
  const { margin = 1, swap = false, reduction } = options ?? {};
  const distance = options?.distanceFunction ?? ((a: Tensor, b: Tensor) => pairwiseDistance(a, b));
  const near = distance(anchor, positive);
  const far = distance(anchor, negative);
  const farthest = swap ? minimum(far, distance(positive, negative)) : far;
  return reduce('tripletMarginWithDistanceLoss', clampMin(near.add(margin).sub(farthest), 0), reduction);
}

/** What `ctcLoss` can be told. */
export interface CtcLossOptions extends LossOptions {
  /** Lengths of the inputs and the targets, one per sequence. */
  inputLengths: Tensor | readonly number[];
  targetLengths: Tensor | readonly number[];
  blank?: number | undefined;
  zeroInfinity?: boolean | undefined;
}

/** Connectionist temporal classification: alignments of log-probabilities with shorter targets. */
export function ctcLoss(logProbs: Tensor, targets: Tensor, options: CtcLossOptions): Tensor {
  checkTensors('ctcLoss', { logProbs, targets });
  checkObject('ctcLoss', 'the options', options, '{ inputLengths, targetLengths }');
  checkOptions('ctcLoss', options, ['inputLengths', 'targetLengths', 'reduction', 'blank', 'zeroInfinity']);
  const { inputLengths, targetLengths, blank = 0, zeroInfinity = false, reduction } = options;
  const code = reductionCode('ctcLoss', reduction);
  if (Array.isArray(inputLengths) || Array.isArray(targetLengths)) {
    return ctcLossOp(logProbs, targets, lengths(inputLengths), lengths(targetLengths), blank, code, zeroInfinity);
  }
  return ctcLossOp(logProbs, targets, inputLengths as Tensor, targetLengths as Tensor, blank, code, zeroInfinity);
}

function lengths(given: Tensor | readonly number[]): readonly number[] {
  return 'toArray' in given ? (given.toArray() as number[]) : given;
}
