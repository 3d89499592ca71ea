/** @file The norm of all gradients of a pipeline, over its ranks, and clipping by it. */
import { callOp, type distributed, noGrad, scope, Tensor, tensor } from '@pipewright/torch';
import { checkOptions, show } from '../base/checks.ts';
import { PipelineError } from '../base/errors.ts';
import { rankStatus } from '../status/rank-status.ts';

/** How gradients are clipped. */
export interface ClipOptions {
  /** The kind of norm; Infinity is the largest element. Default 2. */
  readonly normType?: number | undefined;
  /** Throw where the norm is infinite or NaN, instead of making all gradients so. */
  readonly errorIfNonfinite?: boolean | undefined;
}

/** The gradients of one rank. */
export interface RankGradients {
  readonly parameters: readonly Tensor[];
  /** Copies of tied parameters that another copy counts for. */
  readonly duplicates: ReadonlySet<Tensor>;
  readonly group: distributed.ProcessGroup | null;
}

/** Scales all gradients so that their norm over all ranks is at most `maxNorm`; returns the norm before. */
export function clipGradNorm(rank: RankGradients, maxNorm: number, options: ClipOptions = {}): number {
  checkOptions('clipGradNorm_', options, ['normType', 'errorIfNonfinite']);
  const order = options.normType ?? 2;
  if (!(typeof maxNorm === 'number' && maxNorm >= 0))
    throw new PipelineError('BAD_OPTION', `clipGradNorm_: maxNorm is ${show(maxNorm)}; give a number, at least 0`);
  if (!(typeof order === 'number' && order > 0))
    throw new PipelineError('BAD_OPTION', `clipGradNorm_: normType is ${show(order)}; give a number above 0`);
  return noGrad(() =>
    scope(() => {
      const norm = totalNorm(rank, order);
      if (options.errorIfNonfinite === true && !Number.isFinite(norm))
        throw new PipelineError(
          'NOT_FINITE',
          `clipGradNorm_: the norm of the gradients is ${norm}; look for the loss that became infinite, or leave errorIfNonfinite out`,
        );
      const scale = Math.min(1, maxNorm / (norm + 1e-6));
      if (scale === 1) return norm;
      const grads = gradsOf(rank.parameters);
      if (grads.length > 0) callOp('aten::_foreach_mul_.Scalar', [grads, scale]);
      return norm;
    }),
  );
}

function totalNorm({ parameters, duplicates, group }: RankGradients, order: number): number {
  const grads = gradsOf(parameters.filter((parameter) => !duplicates.has(parameter)));
  const norms = grads.length === 0 ? [] : (callOp('aten::_foreach_norm.Scalar', [grads, order]) as Tensor[]);
  const values = numbersOf(norms);
  const isLargest = order === Number.POSITIVE_INFINITY;
  const mine = isLargest ? Math.max(0, ...values) : values.reduce((sum, value) => sum + value ** order, 0);
  // Max hides NaN, so that it is asked for by itself.
  const all = tensor([Number.isNaN(mine) ? 0 : mine, Number.isNaN(mine) || values.some(Number.isNaN) ? 1 : 0], {
    dtype: 'float64',
    device: group?.backend === 'nccl' ? 'cuda' : 'cpu',
  });
  if (group !== null) {
    rankStatus.set({ action: 'clipGradNorm_', waitingFor: 'all' });
    group.allReduce(all, { op: isLargest ? 'max' : 'sum' });
    rankStatus.set({ action: 'clipGradNorm_' });
  }
  const [total, isNaNs] = all.toArray() as [number, number];
  if (isNaNs > 0) return Number.NaN;
  return isLargest ? total : total ** (1 / order);
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

function gradsOf(parameters: readonly Tensor[]): Tensor[] {
  return parameters.flatMap((parameter) => {
    const { grad } = parameter;
    return grad instanceof Tensor ? [grad] : [];
  });
}
