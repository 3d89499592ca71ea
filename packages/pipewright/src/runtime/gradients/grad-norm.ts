/** @file The norm of all gradients of a pipeline, over its ranks, and clipping by it. */
import { callOp, type distributed, noGrad, scope, Tensor, tensor } from '@pipewright/torch';
import { checkOptions, show } from '../../base/checks.ts';
import { PipelineError } from '../../base/errors.ts';
import { codeOf } from '../../parallel/alike.ts';
import { rankStatus } from '../../status/rank-status.ts';

/** How gradients are clipped. */
export interface ClipOptions {
  /** The kind of norm; Infinity is the largest element. Default 2. */
  readonly normType?: number | undefined;
  /** Throw if the norm is infinite or NaN, instead of scaling all gradients by it. */
  readonly errorIfNonfinite?: boolean | undefined;
}

/** The gradients of one rank. */
export interface RankGradients {
  readonly parameters: readonly Tensor[];
  /** Copies of tied parameters that another copy counts for. */
  readonly duplicates: ReadonlySet<Tensor>;
  /** Whether this rank has only a part of a parameter. */
  readonly isSharded: (parameter: Tensor) => boolean;
  /** Parameters whose gradients still have the factor of a gradient scaler, and that factor. */
  readonly scaled?: { readonly parameters: ReadonlySet<Tensor>; readonly scale: number } | undefined;
  /** The ranks that have the other parts. */
  readonly shards: distributed.ProcessGroup | null;
  /** The ranks of the pipeline. */
  readonly group: distributed.ProcessGroup | null;
}

/** How a norm is computed and what it is for. */
export interface Clipping {
  /** The function that was called. */
  readonly where: string;
  readonly maxNorm: number | undefined;
  readonly normType: number | undefined;
}

/** A clipping in words, which must be the same on all ranks. */
export function clippingText({ where, maxNorm, normType = 2 }: Clipping): string {
  return `${where} with maxNorm ${String(maxNorm)}, normType ${normType}`;
}

/** The error of ranks that clip differently. */
export function differentClipping(clipping: Clipping): PipelineError {
  return new PipelineError(
    'NO_AGREEMENT',
    `${clipping.where}: this rank called ${clippingText(clipping)}, another one with something else; give all ranks the same`,
  );
}

/** Scales all gradients so that their norm over all ranks is at most `maxNorm`; returns the norm before. */
export function clipGradNorm(rank: RankGradients, maxNorm: number, options: ClipOptions = {}): number {
  checkOptions('clipGradNorm_', options, ['normType', 'errorIfNonfinite']);
  checkMaxNorm('clipGradNorm_', maxNorm);
  const { normType } = options;
  const norm = gradNorm(rank, { where: 'clipGradNorm_', maxNorm, normType });
  if (options.errorIfNonfinite === true && !Number.isFinite(norm))
    throw new PipelineError(
      'NOT_FINITE',
      `clipGradNorm_: the norm of the gradients is ${norm}; look for the loss that became infinite, or leave errorIfNonfinite out`,
    );
  scaleGrads(rank, norm, maxNorm);
  return norm;
}

/** Refuses what is no limit of a norm. */
export function checkMaxNorm(where: string, maxNorm: unknown): void {
  if (!(typeof maxNorm === 'number' && maxNorm >= 0))
    throw new PipelineError('BAD_OPTION', `${where}: maxNorm is ${show(maxNorm)}; give a number, at least 0`);
}

/** The norm of all gradients over all ranks. */
export function gradNorm(rank: RankGradients, clipping: Clipping): number {
  const { where, normType = 2 } = clipping;
  if (!(typeof normType === 'number' && normType > 0))
    throw new PipelineError('BAD_OPTION', `${where}: normType is ${show(normType)}; give a number above 0`);
  return noGrad(() => scope(() => totalNorm(rank, { ...clipping, normType })));
}

/** Scales gradients of this norm so that it is at most `maxNorm`. */
export function scaleGrads({ parameters }: RankGradients, norm: number, maxNorm: number): void {
  const scale = Math.min(1, maxNorm / (norm + 1e-6));
  if (scale === 1) return;
  noGrad(() =>
    scope(() => {
      const grads = withGrads(parameters).map(([, grad]) => grad);
      if (grads.length > 0) callOp('aten::_foreach_mul_.Scalar', [grads, scale]);
    }),
  );
}

function totalNorm(
  { parameters, duplicates, isSharded, scaled, shards, group }: RankGradients,
  clipping: Clipping & { readonly normType: number },
): number {
  const order = clipping.normType;
  const counted = parameters.filter((parameter) => !duplicates.has(parameter));
  const isLargest = order === Number.POSITIVE_INFINITY;
  const partial = (of: readonly Tensor[]): number => {
    const found = withGrads(of);
    const grads = found.map(([, grad]) => grad);
    const norms = grads.length === 0 ? [] : (callOp('aten::_foreach_norm.Scalar', [grads, order]) as Tensor[]);
    const values = numbersOf(norms).map((value, i) =>
      scaled?.parameters.has(found[i]![0]) === true ? value / scaled.scale : value,
    );
    if (values.some(Number.isNaN)) return Number.NaN;
    return isLargest ? Math.max(0, ...values) : values.reduce((sum, value) => sum + value ** order, 0);
  };
  const inShards = combine(shards, partial(counted.filter(isSharded)), clipping);
  const whole = partial(counted.filter((parameter) => !isSharded(parameter)));
  const total = combine(group, isLargest ? larger(inShards, whole) : inShards + whole, clipping);
  return isLargest ? total : total ** (1 / order);
}

function larger(a: number, b: number): number {
  return Number.isNaN(a) || Number.isNaN(b) ? Number.NaN : Math.max(a, b);
}

/** The sum or the largest of the values of all ranks. */
function combine(group: distributed.ProcessGroup | null, mine: number, clipping: Clipping): number {
  if (group === null) return mine;
  const isLargest = clipping.normType === Number.POSITIVE_INFINITY;
  const code = codeOf(clippingText(clipping));
  const isNaNHere = Number.isNaN(mine);
  // The maximum hides NaN, so that it is checked by itself.
  const all = tensor([isNaNHere ? 0 : mine, isNaNHere ? 1 : 0, code, isLargest ? -code : code * code], {
    dtype: 'float64',
    device: group.backend === 'nccl' ? 'cuda' : 'cpu',
  });
  rankStatus.set({ action: 'clipGradNorm_', waitingFor: 'all' });
  group.allReduce(all, { op: isLargest ? 'max' : 'sum' });
  rankStatus.set({ action: 'clipGradNorm_' });
  const [total, isNaNs, codes, other] = all.toArray() as [number, number, number, number];
  // Of the sum: numbers are equal where their mean square is the square of their mean.
  if (isLargest ? codes !== -other : other * group.size !== codes * codes) throw differentClipping(clipping);
  return isNaNs > 0 ? Number.NaN : total;
}

/** The values of tensors of one element: from a GPU all at once, so that the host waits for it once. */
function numbersOf(tensors: readonly Tensor[]): number[] {
  const [first] = tensors;
  if (
    first === undefined ||
    !first.isCuda ||
    tensors.some(({ dtype, device }) => dtype !== first.dtype || device !== first.device)
  )
    return tensors.map((each) => each.item());
  return (callOp('aten::stack', [tensors, 0]) as Tensor).toArray() as number[];
}

/** Parameters whose gradients have elements, with these gradients: an empty one has no largest element. */
function withGrads(parameters: readonly Tensor[]): (readonly [parameter: Tensor, grad: Tensor])[] {
  return parameters.flatMap((parameter) => {
    const { grad } = parameter;
    return grad instanceof Tensor && grad.numel() > 0 ? [[parameter, grad] as const] : [];
  });
}
