/** @file Cuts a batch into microbatches: positional inputs, named inputs and targets, all by the same cut. */
import { cat, Tensor } from '@pipewright/torch';
import { checkChoice, checkCount, checkOptions, show } from '../base/checks.ts';
import { PipelineError } from '../base/errors.ts';
import { flatten, isPlainObject, leafPaths, type TreeSpec, unflatten } from '../base/tree.ts';
import { alignByPosition, alignLeaves } from './align.ts';
import { BlockMask } from './block-mask.ts';
import { formatChunkSpec, isReplicate, Replicate, type SpecTree, TensorChunkSpec } from './chunk-spec.ts';

/** Positional inputs. */
export type Args = readonly unknown[];
/** Named inputs. */
export type Kwargs = Readonly<Record<string, unknown>>;

/** How to cut. Without a spec, tensors and block masks are cut along dimension 0 and all else is replicated. */
export interface SplitOptions {
  /** One spec for each positional input, nested like it. */
  readonly argsChunkSpec?: readonly SpecTree[] | null | undefined;
  /** One spec for each named input, found by name. */
  readonly kwargsChunkSpec?: Readonly<Record<string, SpecTree>> | null | undefined;
  /** `equal` (default): all that is cut must be equally long, so that rows stay together. `any`: each by its own length. */
  readonly lengths?: 'equal' | 'any' | undefined;
  /** Each microbatch is the whole batch with zeros outside its rows, to compare with a run that is not split. */
  readonly masked?: boolean | undefined;
  /** `torch`: specs of named inputs are paired by order instead of by name, and lengths may differ. */
  readonly compat?: 'torch' | undefined;
}

/** A batch: the inputs and targets of a training step. */
export interface Batch {
  readonly args?: Args | undefined;
  readonly kwargs?: Kwargs | null | undefined;
  readonly target?: unknown;
}

/** How to cut a batch. */
export interface SplitBatchOptions extends SplitOptions {
  /** Specs of the target, nested like it. */
  readonly targetChunkSpec?: SpecTree | undefined;
}

/** A batch in microbatches. */
export interface Microbatches {
  readonly args: unknown[][];
  readonly kwargs: Record<string, unknown>[];
  /** One target for each microbatch; undefined where no target was given. */
  readonly target: unknown[] | undefined;
  /** Rows of each microbatch; empty where nothing was cut, because all is replicated. */
  readonly sizes: readonly number[];
}

const splitOptions = ['argsChunkSpec', 'kwargsChunkSpec', 'lengths', 'masked', 'compat'];

/**
 * Cuts inputs into at most `chunks` microbatches of nearly equal size; the pieces are views. A batch with fewer rows than
 * `chunks` gives one microbatch for each row. The specs may also be given as in PyTorch, one after the other.
 *
 * @example const [args, kwargs] = splitArgsKwargsIntoChunks([x], { mask }, 4, { kwargsChunkSpec: { mask: new Replicate() } })
 */
export function splitArgsKwargsIntoChunks<const A extends Args, K extends Kwargs>(
  args: A,
  kwargs: K | null | undefined,
  chunks: number,
  ...rest:
    | [options?: SplitOptions | undefined]
    | [
        argsChunkSpec: readonly SpecTree[] | null | undefined,
        kwargsChunkSpec?: Readonly<Record<string, SpecTree>> | null | undefined,
        options?: SplitOptions | undefined,
      ]
): [args: A[], kwargs: K[]] {
  const where = 'splitArgsKwargsIntoChunks';
  const [first, kwargsChunkSpec, more] = rest;
  const options: SplitOptions = isPlainObject(first)
    ? first
    : { ...more, argsChunkSpec: first as readonly SpecTree[] | undefined, kwargsChunkSpec };
  checkOptions(where, options, splitOptions);
  const parts = cut(where, { args, kwargs }, chunks, options);
  return [parts.args as readonly unknown[] as A[], parts.kwargs as K[]];
}

/**
 * Cuts a batch with its targets into at most `chunks` microbatches: rows of inputs and targets stay together.
 *
 * @example const { args, target, sizes } = splitBatch({ args: [x], target: y }, 4)
 */
export function splitBatch(batch: Batch, chunks: number, options: SplitBatchOptions = {}): Microbatches {
  checkOptions('splitBatch', batch, ['args', 'kwargs', 'target']);
  checkOptions('splitBatch', options, [...splitOptions, 'targetChunkSpec']);
  return cut('splitBatch', batch, chunks, options);
}

/** Sizes of `pieces` nearly equal parts, the longer ones first. @example chunkSizes(10, 4) // [3, 3, 2, 2] */
export function chunkSizes(length: number, pieces: number): number[] {
  checkCount('chunkSizes', 'the length', length, 0);
  checkCount('chunkSizes', 'the number of pieces', pieces);
  const small = Math.floor(length / pieces);
  const longer = length % pieces;
  return Array.from({ length: pieces }, (_, i) => (i < longer ? small + 1 : small));
}

/** One of args, kwargs and target, taken apart. */
interface Side {
  readonly shape: TreeSpec;
  readonly leaves: readonly Leaf[];
}

interface Leaf {
  readonly value: unknown;
  readonly path: string;
  /** Where it is cut; null: replicated. */
  readonly dim: number | null;
  readonly length: number;
}

function cut(where: string, batch: Batch, chunks: number, options: SplitBatchOptions): Microbatches {
  checkCount(where, 'chunks', chunks);
  if (options.lengths !== undefined) checkChoice(where, 'lengths', options.lengths, ['equal', 'any']);
  if (options.compat !== undefined) checkChoice(where, 'compat', options.compat, ['torch']);
  const { kwargsChunkSpec = null } = options;
  if (kwargsChunkSpec !== null && !isPlainObject(kwargsChunkSpec))
    throw bad(where, `kwargsChunkSpec is ${show(kwargsChunkSpec)}; give an object with a spec for each named input`);
  const args = batch.args ?? [];
  const kwargs = batch.kwargs ?? {};
  if (!Array.isArray(args)) throw bad(where, `args is ${show(args)}; give an array of the positional inputs`);
  if (!isPlainObject(kwargs)) throw bad(where, `kwargs is ${show(kwargs)}; give an object of the named inputs`);
  const side = (name: string, value: unknown, specs: SpecTree): Side =>
    takeApart(where, name, value, { specs, options });
  // A rank in the middle of a pipeline has the specs but no inputs.
  const sides = {
    args: side('args', args, args.length === 0 ? undefined : options.argsChunkSpec),
    kwargs: side('kwargs', kwargs, Object.keys(kwargs).length === 0 ? undefined : options.kwargsChunkSpec),
    target: side('target', batch.target, batch.target === undefined ? undefined : options.targetChunkSpec),
  };
  const count = pieceCount(where, [...sides.args.leaves, ...sides.kwargs.leaves, ...sides.target.leaves], {
    chunks,
    equal: (options.lengths ?? (options.compat === 'torch' ? 'any' : 'equal')) === 'equal',
  });
  const masked = options.masked === true;
  const measured = Object.values(sides).flatMap(({ leaves }) => leaves.filter((leaf) => leaf.dim !== null));
  return {
    args: pieces(sides.args, count, masked) as unknown[][],
    kwargs: pieces(sides.kwargs, count, masked) as Record<string, unknown>[],
    target: batch.target === undefined ? undefined : pieces(sides.target, count, masked),
    sizes: measured[0] === undefined ? [] : chunkSizes(measured[0].length, count),
  };
}

function takeApart(
  where: string,
  name: string,
  value: unknown,
  { specs, options }: { readonly specs: SpecTree; readonly options: SplitOptions },
): Side {
  const flat = flatten(value);
  const paths = leafPaths(flat.spec, name);
  const alignment = {
    where,
    value: name,
    other: `${name}ChunkSpec`,
    hint: 'give one spec for each value, under the same names',
  };
  const align = options.compat === 'torch' ? alignByPosition : alignLeaves;
  const found = specs === undefined || specs === null ? flat.leaves.map(defaultSpec) : align(flat, specs, alignment);
  return {
    shape: flat.spec,
    leaves: flat.leaves.map((leaf, i) => measure(where, leaf, paths[i]!, found[i])),
  };
}

function defaultSpec(value: unknown): TensorChunkSpec | Replicate {
  return value instanceof Tensor || value instanceof BlockMask ? new TensorChunkSpec() : new Replicate();
}

/** Checks a leaf against its spec and finds how long it is. */
function measure(where: string, value: unknown, path: string, spec: unknown): Leaf {
  if (isReplicate(spec)) return { value, path, dim: null, length: 0 };
  if (!(spec instanceof TensorChunkSpec)) {
    throw new PipelineError(
      'BAD_CHUNK_SPEC',
      `${where}: the spec of ${path} is ${formatChunkSpec(spec)}; give new TensorChunkSpec(dim) or new Replicate()`,
    );
  }
  if (value instanceof BlockMask) {
    if (spec.splitDim !== 0)
      throw new PipelineError(
        'BAD_CHUNK_SPEC',
        `${where}: ${path} is a block mask, which is cut along dimension 0 only, not ${spec.splitDim}`,
      );
    return value.batchSize === 1
      ? { value, path, dim: null, length: 0 }
      : { value, path, dim: 0, length: value.batchSize };
  }
  if (!(value instanceof Tensor)) {
    throw new PipelineError(
      'BAD_CHUNK_SPEC',
      `${where}: ${path} is ${show(value)}, which ${formatChunkSpec(spec)} cannot cut; give new Replicate() for what is not a tensor`,
    );
  }
  const { shape } = value;
  const dim = spec.splitDim < 0 ? spec.splitDim + shape.length : spec.splitDim;
  const length = shape[dim];
  if (length !== undefined) return { value, path, dim, length };
  const has = shape.length === 0 ? 'a tensor without dimensions' : `a tensor [${shape.join(', ')}]`;
  throw new PipelineError(
    'BAD_CHUNK_SPEC',
    `${where}: ${path} is ${has}, it has no dimension ${spec.splitDim} to be cut along; give new TensorChunkSpec(dim) with another dimension, or new Replicate()`,
  );
}

/** The number of pieces that the leaves can be cut into. */
function pieceCount(
  where: string,
  leaves: readonly Leaf[],
  { chunks, equal }: { readonly chunks: number; readonly equal: boolean },
): number {
  let first: Leaf | undefined;
  let count = chunks;
  for (const leaf of leaves) {
    if (leaf.dim === null) continue;
    first ??= leaf;
    if (equal && leaf.length !== first.length) {
      throw new PipelineError(
        'LENGTHS_DIFFER',
        `${where}: ${first.path} has ${first.length} rows (dimension ${first.dim}), ${leaf.path} has ${leaf.length} (dimension ${leaf.dim}); all that is cut must be equally long. Give new Replicate() for what every microbatch needs whole, or lengths: 'any' to cut each by its own length`,
      );
    }
    if (leaf.length === 0)
      throw new PipelineError(
        'EMPTY_BATCH',
        `${where}: ${leaf.path} has no rows (dimension ${leaf.dim}); give at least one`,
      );
    count = Math.min(count, leaf.length);
  }
  return count;
}

/** The values of a side, one tree for each microbatch. */
function pieces({ shape, leaves }: Side, count: number, masked: boolean): unknown[] {
  const columns = leaves.map((leaf) => leafPieces(leaf, count, masked));
  return Array.from({ length: count }, (_, i) =>
    unflatten(
      shape,
      columns.map((column) => column[i]),
    ),
  );
}

function leafPieces({ value, dim, length }: Leaf, count: number, masked: boolean): unknown[] {
  if (dim === null) return new Array<unknown>(count).fill(value);
  const sizes = chunkSizes(length, count);
  if (value instanceof BlockMask) return value.split(sizes);
  let start = 0;
  return sizes.map((size) => {
    const piece = (value as Tensor).narrow(dim, start, size);
    const whole = masked ? onlyRows(value as Tensor, piece, dim, start) : piece;
    start += size;
    return whole;
  });
}

/** Zeros in the shape of `whole`, with `part` in its place. */
function onlyRows(whole: Tensor, part: Tensor, dim: number, start: number): Tensor {
  const room = (length: number): number[] => whole.shape.map((size, i) => (i === dim ? length : size));
  const length = part.size(dim);
  const before = whole.newZeros(room(start));
  const after = whole.newZeros(room(whole.size(dim) - start - length));
  return cat([before, part, after], { dim });
}

function bad(where: string, what: string): PipelineError {
  return new PipelineError('BAD_INPUT', `${where}: ${what}`);
}
