/** @file Parameters that are a part of a whole: shards, of which each rank has its own. */

import { TorchError } from '../base/errors.ts';
import type { Tensor } from './tensor.ts';

const shards = new WeakSet<Tensor>();

/**
 * Marks a parameter as this rank's part of a sharded one: what needs the whole refuses it from now on. A part that is the whole,
 * as in a group of one rank, need not be marked.
 *
 * @example markShard(parameter)
 */
export function markShard(parameter: Tensor): void {
  shards.add(parameter);
}

/** Whether a parameter is this rank's part of a sharded one. */
export function isShard(parameter: Tensor): boolean {
  return shards.has(parameter);
}

/** Refuses shards where a norm is to be that of the whole. */
export function checkNoShards(where: string, tensors: readonly Tensor[]): void {
  const position = tensors.findIndex(isShard);
  if (position < 0) return;
  throw new TorchError(
    'BAD_ARGUMENT',
    `${where}: tensor ${position} of ${tensors.length} is this rank's part of a sharded parameter, so its norm is not that of the whole; call runtime.clipGradNorm_ instead`,
  );
}
