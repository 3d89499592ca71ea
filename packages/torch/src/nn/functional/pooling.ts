/** @file Pooling: the operators themselves, with indices where asked for, and the norms that PyTorch composes. */
import { checkObject, show } from '../../base/checks.ts';
import {
  adaptiveAvgPool2d as adaptiveAvgPool2dOp,
  adaptiveAvgPool3d as adaptiveAvgPool3dOp,
  adaptiveMaxPool1d as adaptiveMaxPool1dOp,
  adaptiveMaxPool2d as adaptiveMaxPool2dOp,
  adaptiveMaxPool3d as adaptiveMaxPool3dOp,
  avgPool1d,
  avgPool2d,
  avgPool3d,
  fractionalMaxPool2d as fractionalMaxPool2dOp,
  fractionalMaxPool3d as fractionalMaxPool3dOp,
  maxPool1d as maxPool1dOp,
  maxPool1dWithIndices,
  maxPool2d as maxPool2dOp,
  maxPool2dWithIndices,
  maxPool3d as maxPool3dOp,
  maxPool3dWithIndices,
  maxUnpool2d as maxUnpool2dOp,
  maxUnpool3d as maxUnpool3dOp,
  rand,
} from '../../generated/functions.ts';
import '../../generated/methods.ts';
import { checkOptions, TorchError } from '../../base/errors.ts';
import { expand, type Size } from '../../base/options.ts';
import { checkTensors } from '../../tensor/check-tensors.ts';
import type { Tensor } from '../../tensor/tensor.ts';

export { adaptiveAvgPool1d, avgPool1d, avgPool2d, avgPool3d } from '../../generated/functions.ts';

/** What maximum pooling can be told. */
export interface MaxPoolOptions {
  stride?: Size | null | undefined;
  padding?: Size | undefined;
  dilation?: Size | undefined;
  ceilMode?: boolean | undefined;
  /** Also give the positions of the maxima: the result is then [values, indices]. */
  returnIndices?: boolean | undefined;
}

/** The operator, and the one that also gives positions. */
type MaxPoolOps = readonly [typeof maxPool2dOp, typeof maxPool2dWithIndices];

function maxPool(where: string, ops: MaxPoolOps): MaxPoolFunction {
  return ((input: Tensor, kernelSize: Size, options?: MaxPoolOptions) => {
    checkOptions(where, options, ['stride', 'padding', 'dilation', 'ceilMode', 'returnIndices']);
    const { stride, padding = 0, dilation = 1, ceilMode = false, returnIndices = false } = options ?? {};
    return ops[returnIndices ? 1 : 0](input, kernelSize, stride ?? kernelSize, padding, dilation, ceilMode);
  }) as MaxPoolFunction;
}

/** A maximum pooling: a tensor, or [values, indices] with `returnIndices`. */
export interface MaxPoolFunction {
  (input: Tensor, kernelSize: Size, options: MaxPoolOptions & { returnIndices: true }): [Tensor, Tensor];
  (input: Tensor, kernelSize: Size, options?: MaxPoolOptions & { returnIndices?: false | undefined }): Tensor;
  (input: Tensor, kernelSize: Size, options?: MaxPoolOptions): Tensor | [Tensor, Tensor];
}

/** Maxima over windows of one dimension. @example F.maxPool1d(x, 2, { stride: 1 }) */
export const maxPool1d: MaxPoolFunction = maxPool('maxPool1d', [maxPool1dOp, maxPool1dWithIndices]);
/** Maxima over windows of two dimensions. */
export const maxPool2d: MaxPoolFunction = maxPool('maxPool2d', [maxPool2dOp, maxPool2dWithIndices]);
/** Maxima over windows of three dimensions. */
export const maxPool3d: MaxPoolFunction = maxPool('maxPool3d', [maxPool3dOp, maxPool3dWithIndices]);

/** The size of an output; null keeps a dimension as it is. */
export type OutputSize = number | null | readonly (number | null)[];

/** `null` means the input's own size. */
function fillSize(input: Tensor, size: OutputSize, count: number): number[] {
  checkTensors('adaptive pooling', { input });
  const own = input.shape.slice(-count);
  if (!Array.isArray(size)) return own.map((value) => (size as number | null) ?? value);
  if (size.length !== count)
    throw new TorchError(
      'BAD_ARGUMENT',
      `adaptive pooling: outputSize is a number or an array of ${count}, got ${show(size)}`,
    );
  return own.map((value, i) => (size as readonly (number | null)[])[i] ?? value);
}

/** Means over windows chosen to give `outputSize`. */
export function adaptiveAvgPool2d(input: Tensor, outputSize: OutputSize): Tensor {
  checkTensors('adaptiveAvgPool2d', { input });
  return adaptiveAvgPool2dOp(input, fillSize(input, outputSize, 2));
}

/** Means over windows chosen to give `outputSize`. */
export function adaptiveAvgPool3d(input: Tensor, outputSize: OutputSize): Tensor {
  checkTensors('adaptiveAvgPool3d', { input });
  return adaptiveAvgPool3dOp(input, fillSize(input, outputSize, 3));
}

/** Adaptive maximum pooling: a tensor, or [values, indices] with `returnIndices`. */
export interface AdaptiveMaxPoolFunction {
  (input: Tensor, outputSize: OutputSize, options: { returnIndices: true }): [Tensor, Tensor];
  (input: Tensor, outputSize: OutputSize, options?: { returnIndices?: boolean | undefined }): Tensor;
}

function adaptiveMaxPool(
  where: string,
  count: number,
  op: (input: Tensor, size: number[]) => [Tensor, Tensor],
): AdaptiveMaxPoolFunction {
  return ((input: Tensor, outputSize: OutputSize, options?: { returnIndices?: boolean | undefined }) => {
    checkOptions(where, options, ['returnIndices']);
    const both = op(input, fillSize(input, outputSize, count));
    return options?.returnIndices === true ? both : both[0];
  }) as AdaptiveMaxPoolFunction;
}

/** Maxima over windows chosen to give `outputSize`. */
export const adaptiveMaxPool1d: AdaptiveMaxPoolFunction = adaptiveMaxPool('adaptiveMaxPool1d', 1, adaptiveMaxPool1dOp);
/** Maxima over windows chosen to give `outputSize`. */
export const adaptiveMaxPool2d: AdaptiveMaxPoolFunction = adaptiveMaxPool('adaptiveMaxPool2d', 2, adaptiveMaxPool2dOp);
/** Maxima over windows chosen to give `outputSize`. */
export const adaptiveMaxPool3d: AdaptiveMaxPoolFunction = adaptiveMaxPool('adaptiveMaxPool3d', 3, adaptiveMaxPool3dOp);

/** What norm pooling can be told. */
export interface LpPoolOptions {
  stride?: Size | null | undefined;
  ceilMode?: boolean | undefined;
}

function lpPool(
  where: string,
  count: number,
  input: Tensor,
  options: LpPoolOptions & { normType: number; kernelSize: Size },
): Tensor {
  checkOptions(where, options, ['normType', 'kernelSize', 'stride', 'ceilMode']);
  const { normType, kernelSize, stride, ceilMode = false } = options;
  if (normType === 0) throw new TorchError('BAD_ARGUMENT', `${where}: normType must not be 0`);
  const step = stride ?? kernelSize;
  const maximum = ([maxPool1d, maxPool2d, maxPool3d] as const)[count - 1]!;
  if (normType === Infinity) return maximum(input.abs(), kernelSize, { stride: step, ceilMode });
  if (normType === -Infinity) return maximum(input.abs().neg(), kernelSize, { stride: step, ceilMode }).neg();
  const mean = ([avgPool1d, avgPool2d, avgPool3d] as const)[count - 1] as typeof avgPool2d;
  const sums = mean(input.pow(normType), kernelSize, step, 0, ceilMode);
  const cells = expand(`${where}: kernelSize`, kernelSize, count).reduce((product, size) => product * size, 1);
  return sums
    .sign()
    .mul(sums.abs().relu())
    .mul(cells)
    .pow(1 / normType);
}

/** The norm of order `normType` over windows of one dimension. */
export function lpPool1d(input: Tensor, normType: number, kernelSize: Size, options?: LpPoolOptions): Tensor {
  checkTensors('lpPool1d', { input });
  return lpPool('lpPool1d', 1, input, { ...options, normType, kernelSize });
}

/** The norm of order `normType` over windows of two dimensions. */
export function lpPool2d(input: Tensor, normType: number, kernelSize: Size, options?: LpPoolOptions): Tensor {
  checkTensors('lpPool2d', { input });
  return lpPool('lpPool2d', 2, input, { ...options, normType, kernelSize });
}

/** The norm of order `normType` over windows of three dimensions. */
export function lpPool3d(input: Tensor, normType: number, kernelSize: Size, options?: LpPoolOptions): Tensor {
  checkTensors('lpPool3d', { input });
  return lpPool('lpPool3d', 3, input, { ...options, normType, kernelSize });
}

/** What putting maxima back can be told. */
export interface MaxUnpoolOptions {
  kernelSize: Size;
  stride?: Size | null | undefined;
  padding?: Size | undefined;
  outputSize?: readonly number[] | null | undefined;
}

/** The output's size, the kernel, the stride and the padding, one number per dimension. */
function unpoolSizes(
  where: string,
  input: Tensor,
  count: number,
  options: MaxUnpoolOptions,
): [number[], number[], number[]] {
  checkObject(where, 'the options', options, '{ kernelSize }');
  checkOptions(where, options, ['kernelSize', 'stride', 'padding', 'outputSize']);
  const kernel = expand(`${where}: kernelSize`, options.kernelSize, count);
  const stride = expand(`${where}: stride`, options.stride ?? options.kernelSize, count);
  const padding = expand(`${where}: padding`, options.padding ?? 0, count);
  const own = input.shape.slice(-count);
  const natural = own.map((size, i) => (size - 1) * stride[i]! + kernel[i]! - 2 * padding[i]!);
  const given = options.outputSize?.slice(-count);
  if (given === undefined) return [natural, stride, padding];
  const fits = given.length === count && given.every((size, i) => Math.abs(size - natural[i]!) < stride[i]!);
  if (!fits)
    throw new TorchError(
      'SHAPE',
      `${where}: outputSize [${given.join(', ')}] must differ from [${natural.join(', ')}] by less than the stride [${stride.join(', ')}]`,
    );
  return [given, stride, padding];
}

/** Puts maxima back to where they were; the rest is zero. */
export function maxUnpool1d(input: Tensor, indices: Tensor, options: MaxUnpoolOptions): Tensor {
  checkTensors('maxUnpool1d', { input, indices });
  const [size] = unpoolSizes('maxUnpool1d', input, 1, options);
  return maxUnpool2dOp(input.unsqueeze(-1), indices.unsqueeze(-1), [...size, 1]).squeeze(-1);
}

/** Puts maxima back to where they were; the rest is zero. */
export function maxUnpool2d(input: Tensor, indices: Tensor, options: MaxUnpoolOptions): Tensor {
  checkTensors('maxUnpool2d', { input, indices });
  return maxUnpool2dOp(input, indices, unpoolSizes('maxUnpool2d', input, 2, options)[0]);
}

/** Puts maxima back to where they were; the rest is zero. */
export function maxUnpool3d(input: Tensor, indices: Tensor, options: MaxUnpoolOptions): Tensor {
  checkTensors('maxUnpool3d', { input, indices });
  return maxUnpool3dOp(input, indices, ...unpoolSizes('maxUnpool3d', input, 3, options));
}

/** What fractional pooling can be told: the size of the output, or its ratio to the input's. */
export interface FractionalMaxPoolOptions {
  outputSize?: Size | null | undefined;
  outputRatio?: Size | null | undefined;
  returnIndices?: boolean | undefined;
  randomSamples?: Tensor | null | undefined;
}

function fractional(
  where: string,
  count: number,
  input: Tensor,
  given: FractionalMaxPoolOptions & { kernelSize: Size },
): Tensor | [Tensor, Tensor] {
  const { kernelSize, ...options } = given;
  checkOptions(where, options, ['outputSize', 'outputRatio', 'returnIndices', 'randomSamples']);
  const own = input.shape.slice(-count);
  let size: number[];
  if (options.outputSize !== undefined && options.outputSize !== null)
    size = expand(`${where}: outputSize`, options.outputSize, count);
  else if (options.outputRatio !== undefined && options.outputRatio !== null) {
    const ratio = expand(`${where}: outputRatio`, options.outputRatio, count);
    size = own.map((value, i) => Math.trunc(value * ratio[i]!));
  } else throw new TorchError('MISSING_ARGUMENT', `${where}: give outputSize or outputRatio`);
  const batch = input.dim() === count + 1 ? 1 : input.size(0);
  const samples =
    options.randomSamples ?? rand([batch, input.size(-count - 1), count], { dtype: input.dtype, device: input.device });
  const op = count === 2 ? fractionalMaxPool2dOp : fractionalMaxPool3dOp;
  const both = op(input, expand(`${where}: kernelSize`, kernelSize, count), size, samples);
  return options.returnIndices === true ? both : both[0];
}

/** Maxima over windows with random borders. */
export function fractionalMaxPool2d(
  input: Tensor,
  kernelSize: Size,
  options: FractionalMaxPoolOptions,
): Tensor | [Tensor, Tensor] {
  checkTensors('fractionalMaxPool2d', { input });
  return fractional('fractionalMaxPool2d', 2, input, { ...options, kernelSize });
}

/** Maxima over windows with random borders. */
export function fractionalMaxPool3d(
  input: Tensor,
  kernelSize: Size,
  options: FractionalMaxPoolOptions,
): Tensor | [Tensor, Tensor] {
  checkTensors('fractionalMaxPool3d', { input });
  return fractional('fractionalMaxPool3d', 3, input, { ...options, kernelSize });
}
