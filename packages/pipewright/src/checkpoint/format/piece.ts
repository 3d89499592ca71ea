/** @file Parts of tensors: the box of the whole tensor that a rank holds or a file stores, and the intersection of two boxes. */
import { nn, type Tensor } from '@pipewright/torch';
import { shardOf } from '../../parallel/shard.ts';

/** A box of a whole tensor. */
export interface Part {
  /** Of the whole. */
  readonly shape: readonly number[];
  /** Of the box. */
  readonly local: readonly number[];
  /** Where the box begins; null where it is the whole. */
  readonly offset: readonly number[] | null;
}

/** The part of a parameter that this rank holds. */
export function pieceOf(tensor: Tensor): Part {
  const { shape } = tensor;
  const shard = tensor instanceof nn.Parameter ? shardOf(tensor) : null;
  if (shard === null || shape.join() === shard.globalShape.join()) return { shape, local: shape, offset: null };
  const { globalShape, dim, offset } = shard;
  return { shape: globalShape, local: shape, offset: globalShape.map((_, at) => (at === dim ? offset : 0)) };
}

/** Number of elements of a shape. */
export function elementsOf(shape: readonly number[]): number {
  return shape.reduce((product, size) => product * size, 1);
}

/** Where a box begins. */
export function beginOf({ offset, shape }: Part): readonly number[] {
  return offset ?? shape.map(() => 0);
}

/** The intersection of two parts of one tensor. */
export interface Common {
  /** Where it begins in the first. */
  readonly inFirst: readonly number[];
  /** Where it begins in the second. */
  readonly inSecond: readonly number[];
  readonly shape: readonly number[];
}

/** The intersection of two parts; null if it is empty. */
export function commonOf(first: Part, second: Part): Common | null {
  const [a, b] = [beginOf(first), beginOf(second)];
  const begin = a.map((at, dim) => Math.max(at, b[dim]!));
  const shape = begin.map((at, dim) => Math.min(a[dim]! + first.local[dim]!, b[dim]! + second.local[dim]!) - at);
  if (shape.some((size) => size <= 0)) return null;
  return {
    inFirst: begin.map((at, dim) => at - a[dim]!),
    inSecond: begin.map((at, dim) => at - b[dim]!),
    shape,
  };
}

/** The box of a tensor. */
export function boxOf(tensor: Tensor, begin: readonly number[], shape: readonly number[]): Tensor {
  return shape.reduce(
    (view, size, dim) => (size === view.shape[dim] ? view : view.narrow(dim, begin[dim]!, size)),
    tensor,
  );
}

/** First and last element, in the order of memory, of a box of a contiguous tensor. */
export function rangeOf(
  shape: readonly number[],
  begin: readonly number[],
  box: readonly number[],
): readonly [first: number, end: number] {
  let first = 0;
  let last = 0;
  shape.forEach((size, dim) => {
    first = first * size + begin[dim]!;
    last = last * size + begin[dim]! + box[dim]! - 1;
  });
  return [first, last + 1];
}
