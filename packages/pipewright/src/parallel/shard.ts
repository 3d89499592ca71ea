/** @file A part of a parameter: where it lies in the whole, and who holds the other parts. */
import type { distributed, nn } from '@pipewright/torch';
import { markShard } from '@pipewright/torch/internal';

/** The part of a parameter that this rank holds: the indices `offset` to `offset + length` along `dim`. */
export interface Shard {
  /** Shape of the whole parameter. */
  readonly globalShape: readonly number[];
  /** The dimension it is cut along. */
  readonly dim: number;
  /** First index of this rank's part along `dim`. */
  readonly offset: number;
  /** Number of indices of this rank's part; 0 where there are fewer rows than ranks. */
  readonly length: number;
  /** The ranks that hold the parts, in the order of the parts. */
  readonly group: distributed.ProcessGroup;
  /** The ranks that hold the same part; null where there are no replicas. */
  readonly replicas: distributed.ProcessGroup | null;
}

const shards = new WeakMap<nn.Parameter, Shard>();

/**
 * The part of a parameter that this rank holds, as `fullyShard` has cut it; null where it is whole. In PyTorch: the placement
 * of a DTensor.
 *
 * @example for (const [name, parameter] of stage.module.namedParameters()) console.log(name, shardOf(parameter)?.globalShape)
 */
export function shardOf(parameter: nn.Parameter): Shard | null {
  return shards.get(parameter) ?? null;
}

/** Remembers how a parameter was cut. */
export function setShard(parameter: nn.Parameter, shard: Shard): void {
  shards.set(parameter, shard);
  if (shard.group.size > 1) markShard(parameter);
}

/** Which indices a rank gets of `size` along a dimension: equal parts, as `chunk` cuts them; the last ones may be smaller or empty. */
export function partOf(
  size: number,
  rank: number,
  ranks: number,
): { readonly offset: number; readonly length: number } {
  const each = Math.ceil(size / ranks);
  const offset = Math.min(size, rank * each);
  return { offset, length: Math.min(size, offset + each) - offset };
}
