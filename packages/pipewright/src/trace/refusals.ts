/** @file Operators that a graph cannot hold: they read values, or make tensors whose size depends on values. */
import { Tensor } from '@pipewright/torch';
import { type BoundOp, withRecorder } from '@pipewright/torch/internal';
import { PipelineError } from '../base/errors.ts';
import { here } from './source-line.ts';

const readsValues = new Set(['item', '_local_scalar_dense', 'equal', 'allclose', 'is_nonzero']);
const dataDependentSizes = new Set([
  'nonzero',
  'argwhere',
  'masked_select',
  '_unique',
  '_unique2',
  'unique_dim',
  'unique_consecutive',
  'unique_dim_consecutive',
  'bincount',
  'combinations',
]);

function isMask(value: unknown): boolean {
  return (
    value instanceof Tensor && withRecorder(null, () => value.dtype.name === 'bool' || value.dtype.name === 'uint8')
  );
}

/** Throws for an operator that cannot be traced; `read` decides about those that read values. */
export function refuseUntraceable(
  op: BoundOp,
  given: readonly unknown[],
  read: (tensor: Tensor, what: string) => void,
): void {
  const base = op.fullName.replace(/^aten::/, '').replace(/\..*$/, '');
  if (readsValues.has(base)) {
    const tensor = given.flat().find((value) => value instanceof Tensor);
    if (tensor !== undefined) read(tensor, op.fullName);
  }
  const masked = base === 'index' && Array.isArray(given[1]) && given[1].some(isMask);
  const byTensor = /^aten::repeat_interleave\.(Tensor|self_Tensor)$/.test(op.fullName);
  if (!masked && !byTensor && !dataDependentSizes.has(base)) return;
  throw new PipelineError(
    'TRACE_UNTRACEABLE',
    `trace: ${masked ? 'indexing by a boolean mask' : op.fullName}${here()} gives a tensor whose size depends on values, so later stages cannot know it; use where() or maskedFill() with the full size, or hand stage modules to PipelineStage without tracing`,
    { op: op.fullName },
  );
}
