/** @file Initial values of parameters, filled in place and without gradients: `nn.init`. Same seed, same numbers as PyTorch. */
import { noGrad } from '../autograd/modes.ts';
import { checkGiven, checkObject, show } from '../base/checks.ts';
import { checkOptions, didYouMean, TorchError } from '../base/errors.ts';
import { tensor as makeTensor } from '../functions/creation.ts';
import { diag, emptyLike, eye, linalgQr, randperm, where } from '../generated/functions.ts';
import { checkTensors } from '../tensor/check-tensors.ts';
import { float64 } from '../tensor/dtype.ts';
import '../generated/methods.ts';
import '../functions/indexing.ts';
import { whileFilling } from '../tensor/draws.ts';
import type { Generator } from '../tensor/random.ts';
import { scope } from '../tensor/scope.ts';
import type { Tensor } from '../tensor/tensor.ts';

/** Where random numbers come from. */
export interface RandomOptions {
  generator?: Generator | undefined;
}

/** Whether the variance is kept in the forward or in the backward pass. */
export type FanMode = 'fan_in' | 'fan_out';

/** What `kaimingUniform_` and `kaimingNormal_` can be told. */
export interface KaimingOptions extends RandomOptions {
  /** Negative slope of the leaky ReLU that follows. */
  a?: number | undefined;
  mode?: FanMode | undefined;
  nonlinearity?: string | undefined;
}

/** Fills in place without gradients; meta tensors are left as they are. */
function fill<T extends Tensor>(where: string, target: T, body: () => void): T {
  checkTensors(where, { target });
  noGrad(() => scope(() => whileFilling(target, body)));
  return target;
}

/** Refuses options that are no object; the functions that know their names have looked at those. */
function checkObjectOrNothing(options: unknown): void {
  if (options !== undefined) checkObject('nn.init', 'the options', options);
}

function random(options: RandomOptions | undefined): { generator?: Generator } {
  checkObjectOrNothing(options);
  return options?.generator === undefined ? {} : { generator: options.generator };
}

/** Uniform between `a` and `b`. @example init.uniform_(weight, -0.1, 0.1) */
export function uniform_<T extends Tensor>(target: T, a = 0, b = 1, options?: RandomOptions): T {
  return fill('uniform_', target, () => void target.uniform_(a, b, random(options)));
}

/** Normal with a mean and a standard deviation. */
export function normal_<T extends Tensor>(target: T, mean = 0, std = 1, options?: RandomOptions): T {
  return fill('normal_', target, () => void target.normal_(mean, std, random(options)));
}

/** One value everywhere. */
export function constant_<T extends Tensor>(target: T, value: number): T {
  return fill('constant_', target, () => void target.fill_(value));
}

/** Ones. */
export function ones_<T extends Tensor>(target: T): T {
  return fill('ones_', target, () => void target.fill_(1));
}

/** Zeros. */
export function zeros_<T extends Tensor>(target: T): T {
  return fill('zeros_', target, () => void target.zero_());
}

/** The identity matrix. */
export function eye_<T extends Tensor>(target: T): T {
  const [rows = 0, columns = 0] = checkDims('eye_', target, 2, 2);
  return fill('eye_', target, () => void target.copy_(eye(rows, columns)));
}

/** Keeps the identity of as many channels as possible through a convolution. */
export function dirac_<T extends Tensor>(target: T, options?: { groups?: number | undefined }): T {
  checkOptions('dirac_', options, ['groups']);
  const groups = options?.groups ?? 1;
  const [outer = 0, inner = 0, ...kernel] = checkDims('dirac_', target, 3, 5);
  if (outer % groups !== 0)
    throw new TorchError('SHAPE', `dirac_: the first dimension (${outer}) must be a multiple of groups (${groups})`);
  const each = outer / groups;
  return fill('dirac_', target, () => {
    target.zero_();
    for (let group = 0; group < groups; group++) {
      for (let i = 0; i < Math.min(each, inner); i++)
        target.at(group * each + i, i, ...kernel.map((size) => Math.floor(size / 2))).fill_(1);
    }
  });
}

/** What gain keeps the variance through a nonlinearity. @example init.calculateGain('leaky_relu', 0.2) */
export function calculateGain(nonlinearity: string, param?: number): number {
  if (linear.has(nonlinearity)) return 1;
  switch (nonlinearity) {
    case 'tanh':
      return 5 / 3;
    case 'relu':
      return Math.sqrt(2);
    case 'leaky_relu':
      return Math.sqrt(2 / (1 + (param ?? 0.01) ** 2));
    case 'selu':
      return 3 / 4;
    default:
      throw new TorchError(
        'BAD_ARGUMENT',
        `calculateGain: there is no gain for ${show(nonlinearity)}${didYouMean(nonlinearity, [...linear, 'tanh', 'relu', 'leaky_relu', 'selu'])}`,
      );
  }
}

const linear = new Set([
  'linear',
  'sigmoid',
  'conv1d',
  'conv2d',
  'conv3d',
  'conv_transpose1d',
  'conv_transpose2d',
  'conv_transpose3d',
]);

/** How many inputs and outputs one element of a weight connects: [fanIn, fanOut]. */
export function calculateFanInAndFanOut(weight: Tensor): [number, number] {
  const [outer = 0, inner = 0, ...kernel] = checkDims('calculateFanInAndFanOut', weight, 2, 64);
  const field = kernel.reduce((product, size) => product * size, 1);
  return [inner * field, outer * field];
}

/** Glorot's uniform initialisation. */
export function xavierUniform_<T extends Tensor>(
  target: T,
  options?: RandomOptions & { gain?: number | undefined },
): T {
  checkTensors('xavierUniform_', { target });
  checkOptions('xavierUniform_', options, ['gain', 'generator']);
  const [fanIn, fanOut] = calculateFanInAndFanOut(target);
  const bound = Math.sqrt(3) * ((options?.gain ?? 1) * Math.sqrt(2 / (fanIn + fanOut)));
  return uniform_(target, -bound, bound, options);
}

/** Glorot's normal initialisation. */
export function xavierNormal_<T extends Tensor>(target: T, options?: RandomOptions & { gain?: number | undefined }): T {
  checkTensors('xavierNormal_', { target });
  checkOptions('xavierNormal_', options, ['gain', 'generator']);
  const [fanIn, fanOut] = calculateFanInAndFanOut(target);
  return normal_(target, 0, (options?.gain ?? 1) * Math.sqrt(2 / (fanIn + fanOut)), options);
}

function kaimingStd(where: string, target: Tensor, options: KaimingOptions | undefined): number {
  checkOptions(where, options, ['a', 'mode', 'nonlinearity', 'generator']);
  const mode: string = options?.mode ?? 'fan_in';
  if (mode !== 'fan_in' && mode !== 'fan_out')
    throw new TorchError('BAD_ARGUMENT', `${where}: mode is 'fan_in' or 'fan_out', got '${mode}'`);
  const fan = calculateFanInAndFanOut(target)[mode === 'fan_in' ? 0 : 1];
  return calculateGain(options?.nonlinearity ?? 'leaky_relu', options?.a ?? 0) / Math.sqrt(fan);
}

/** He's uniform initialisation. */
export function kaimingUniform_<T extends Tensor>(target: T, options?: KaimingOptions): T {
  checkTensors('kaimingUniform_', { target });
  if (target.numel() === 0) return target;
  const bound = Math.sqrt(3) * kaimingStd('kaimingUniform_', target, options);
  return uniform_(target, -bound, bound, options);
}

/** He's normal initialisation. */
export function kaimingNormal_<T extends Tensor>(target: T, options?: KaimingOptions): T {
  checkTensors('kaimingNormal_', { target });
  if (target.numel() === 0) return target;
  return normal_(target, 0, kaimingStd('kaimingNormal_', target, options), options);
}

/** What `truncNormal_` can be told. */
export interface TruncNormalOptions extends RandomOptions {
  mean?: number | undefined;
  std?: number | undefined;
  /** Smallest and largest value. */
  a?: number | undefined;
  b?: number | undefined;
}

/** Normal, with values outside of [a, b] drawn again. */
export function truncNormal_<T extends Tensor>(target: T, options?: TruncNormalOptions): T {
  checkTensors('truncNormal_', { target });
  checkOptions('truncNormal_', options, ['mean', 'std', 'a', 'b', 'generator']);
  const { mean = 0, std = 1, a = -2, b = 2 } = options ?? {};
  if (target.isMeta) return target;
  const inside = scope(() => {
    const [high = 0, low = 0] = makeTensor([(b - mean) / std / Math.SQRT2, (a - mean) / std / Math.SQRT2], {
      dtype: float64,
    })
      .erf()
      .toArray() as number[];
    return (high - low) / 2;
  });
  return fill('truncNormal_', target, () =>
    (inside > 0.3 ? redraw : reject)(target, { mean, std, a, b }, random(options)),
  );
}

type Range = Record<'mean' | 'std' | 'a' | 'b', number>;

function redraw(target: Tensor, { mean, std, a, b }: Range, from: { generator?: Generator }): void {
  const bound = (value: number): number => makeTensor(value, { dtype: target.dtype }).item();
  const [low, high] = [bound(a), bound(b)];
  let result: Tensor = target.normal_(mean, std, from);
  for (;;) {
    const outside = result.lt(low).logicalOr(result.gt(high));
    if (!outside.any().itemValue()) break;
    result = where(outside, emptyLike(result).normal_(mean, std, from), result);
  }
  if (result !== target) target.copy_(result);
}

function reject(target: Tensor, { mean, std, a, b }: Range, from: { generator?: Generator }): void {
  const peak = -0.5 * ((Math.max(a, Math.min(mean, b)) - mean) / std) ** 2;
  const accept = emptyLike(target);
  const refused = (candidates: Tensor): Tensor => {
    candidates.sub_(mean).div_(std).pow_(2).mul_(-0.5).sub_(peak);
    return accept.uniform_(0, 1, from).log_().gt(candidates);
  };
  let result: Tensor = target.uniform_(a, b, from);
  const candidates = target.clone();
  let pending = refused(candidates);
  while (pending.any().itemValue()) {
    candidates.uniform_(a, b, from);
    result = where(pending, candidates, result);
    pending = where(pending, refused(candidates), pending);
  }
  if (result !== target) target.copy_(result);
}

/** A (semi-)orthogonal matrix. */
export function orthogonal_<T extends Tensor>(target: T, options?: RandomOptions & { gain?: number | undefined }): T {
  checkOptions('orthogonal_', options, ['gain', 'generator']);
  const [rows = 0] = checkDims('orthogonal_', target, 2, 64);
  if (target.numel() === 0 || target.isMeta) return target;
  const columns = target.numel() / rows;
  return fill('orthogonal_', target, () => {
    const flat = target.newEmpty([rows, columns]).normal_(0, 1, random(options));
    const [q, r] = linalgQr(rows < columns ? flat.t() : flat);
    const signed = q.mul(diag(r).sign());
    target.view(rows, columns).copy_(rows < columns ? signed.t() : signed);
    target.mul_(options?.gain ?? 1);
  });
}

/** Normal, with a share of each column set to zero. */
export function sparse_<T extends Tensor>(
  target: T,
  sparsity: number,
  options?: RandomOptions & { std?: number | undefined },
): T {
  checkOptions('sparse_', options, ['std', 'generator']);
  const isShare = typeof sparsity === 'number' && sparsity >= 0 && sparsity <= 1;
  checkGiven('sparse_', isShare, ['the sparsity', sparsity], 'the share of each column that is zero, from 0 to 1');
  const [rows = 0, columns = 0] = checkDims('sparse_', target, 2, 2);
  if (target.isMeta) return target;
  return fill('sparse_', target, () => {
    target.normal_(0, options?.std ?? 0.01, random(options));
    const zeros = Math.ceil(sparsity * rows);
    for (let column = 0; column < columns; column++)
      target.select(1, column).indexFill_(0, randperm(rows).narrow(0, 0, zeros), 0);
  });
}

function checkDims(where: string, target: Tensor, least: number, most: number): number[] {
  checkTensors(where, { target });
  const { shape } = target;
  if (shape.length >= least && shape.length <= most) return shape;
  const wanted = least === most ? `${least}` : most === 64 ? `at least ${least}` : `${least} to ${most}`;
  throw new TorchError('SHAPE', `${where}: the tensor must have ${wanted} dimensions, this one has ${shape.length}`);
}
