/** @file Merges the results of microbatches into one: concatenates, folds, or takes what all have in common. */
import { isDeepStrictEqual } from 'node:util';
import { cat, stack, Tensor } from '@pipewright/torch';
import { checkOptions, show } from '../base/checks.ts';
import { PipelineError } from '../base/errors.ts';
import { flatten, leafPaths, unflatten } from '../base/tree.ts';
import { alignLeaves } from './align.ts';
import { CustomReducer, formatChunkSpec, isReplicate, type SpecTree, TensorChunkSpec } from './chunk-spec.ts';
import { chunkSizes } from './split.ts';

/** How to merge. */
export interface MergeOptions {
  /** The microbatches were cut with `masked`: each result is as long as the batch, and only its own rows count. */
  readonly masked?: boolean | undefined;
}

const where = 'mergeChunks';

/**
 * Merges the results of microbatches. Without a spec, tensors are concatenated along dimension 0, scalars stacked, and
 * other values must be equal. With one, each leaf goes by its own: `TensorChunkSpec` concatenates, a `CustomReducer`
 * folds, `Replicate` and null take the value that is the same in all.
 *
 * @example mergeChunks([{ y: y0, loss: l0 }, { y: y1, loss: l1 }], { y: new TensorChunkSpec(0), loss: sumReducer })
 */
export function mergeChunks<T>(chunks: readonly T[], chunkSpec?: SpecTree, options: MergeOptions = {}): T {
  checkOptions(where, options, ['masked']);
  if (!Array.isArray(chunks))
    throw new PipelineError('BAD_INPUT', `${where}: chunks is ${show(chunks)}; give an array of the results`);
  if (chunks.length === 0)
    throw new PipelineError('NO_CHUNKS', `${where}: there are no chunks to merge; give at least one`);
  const first = flatten(chunks[0]);
  const paths = leafPaths(first.spec);
  const rows = chunks.map((chunk, i) =>
    i === 0
      ? first.leaves
      : alignLeaves(first, chunk, {
          where,
          value: 'chunk 0',
          other: `chunk ${i}`,
          hint: 'all microbatches must give results of the same structure',
        }),
  );
  const specs =
    chunkSpec === undefined || chunkSpec === null
      ? undefined
      : alignLeaves(first, chunkSpec, {
          where,
          value: 'chunk 0',
          other: 'chunkSpec',
          hint: 'give one spec for each value, under the same names',
        });
  return unflatten(
    first.spec,
    first.leaves.map((_, i) => {
      const column = rows.map((row) => row[i]);
      const path = `result${paths[i] ?? ''}`;
      return specs === undefined ? mergeByDefault(column, path, options) : mergeBySpec(column, specs[i], path, options);
    }),
  ) as T;
}

function mergeByDefault(column: readonly unknown[], path: string, options: MergeOptions): unknown {
  if (!column.every((value) => value instanceof Tensor)) return common(column, path);
  return column.every((value) => value.ndim === 0) ? stack(column) : concatenate(column, 0, path, options);
}

function mergeBySpec(column: readonly unknown[], spec: unknown, path: string, options: MergeOptions): unknown {
  if (spec instanceof CustomReducer) {
    const { initValue, reduceFn } = spec as CustomReducer;
    return column.reduce((sum, next) => reduceFn(sum, next), initValue);
  }
  if (spec === null || spec === undefined || isReplicate(spec)) return common(column, path);
  if (!(spec instanceof TensorChunkSpec)) {
    throw new PipelineError(
      'BAD_CHUNK_SPEC',
      `${where}: the spec of ${path} is ${formatChunkSpec(spec)}; give a TensorChunkSpec, a Replicate or a CustomReducer`,
    );
  }
  const odd = column.find((value) => !(value instanceof Tensor));
  if (odd === undefined && column.length > 0) return concatenate(column as Tensor[], spec.splitDim, path, options);
  throw new PipelineError(
    'BAD_CHUNK_SPEC',
    `${where}: ${path} is ${show(odd)}, which ${spec} cannot concatenate; give new Replicate() or a CustomReducer`,
  );
}

function concatenate(tensors: readonly Tensor[], dim: number, path: string, { masked }: MergeOptions): Tensor {
  const shapes = tensors.map((tensor) => tensor.shape);
  const ndim = shapes[0]?.length ?? 0;
  const axis = dim < 0 ? dim + ndim : dim;
  const list = shapes.map((shape) => `[${shape.join(', ')}]`).join(', ');
  if (axis < 0 || axis >= ndim) {
    const hint =
      ndim === 0 ? 'give a CustomReducer such as sumReducer, or no spec to stack scalars' : `give 0 to ${ndim - 1}`;
    throw new PipelineError(
      'BAD_CHUNK_SPEC',
      `${where}: ${path} has shapes ${list}, there is no dimension ${dim}; ${hint}`,
    );
  }
  const alike = (shape: readonly number[]): boolean =>
    shape.length === ndim && shape.every((size, i) => size === shapes[0]?.[i] || (i === axis && masked !== true));
  if (!shapes.every(alike)) {
    const rule =
      masked === true ? 'be equal, because the microbatches are masked' : `be equal but for dimension ${axis}`;
    throw new PipelineError(
      'SHAPES_DIFFER',
      `${where}: ${path} has shapes ${list}; they must ${rule}. Give a TensorChunkSpec of the dimension that differs, or a CustomReducer`,
    );
  }
  return cat(masked === true ? ownRows(tensors, axis) : tensors, axis);
}

/** Of each result as long as the batch, the rows of its microbatch. */
function ownRows(tensors: readonly Tensor[], dim: number): Tensor[] {
  let start = 0;
  const sizes = chunkSizes(tensors[0]?.size(dim) ?? 0, tensors.length);
  return tensors.map((tensor, i) => {
    const piece = tensor.narrow(dim, start, sizes[i]!);
    start += sizes[i]!;
    return piece;
  });
}

/** The value that is the same in all chunks. */
function common(column: readonly unknown[], path: string): unknown {
  const odd = column.findIndex((value) => !same(value, column[0]));
  if (odd < 0) return column[0];
  throw new PipelineError(
    'NOT_EQUAL',
    `${where}: ${path} must be the same in all chunks, but is ${text(column[0])} in chunk 0 and ${text(column[odd])} in chunk ${odd}; give a CustomReducer to combine them`,
  );
}

function same(a: unknown, b: unknown): boolean {
  if (!(a instanceof Tensor) || !(b instanceof Tensor)) return a === b || isDeepStrictEqual(a, b);
  return a === b || (a.dtype === b.dtype && a.device === b.device && a.equal(b));
}

function text(value: unknown): string {
  return value instanceof Tensor ? `a tensor ${value.dtype.name}[${value.shape.join(', ')}]` : show(value);
}
