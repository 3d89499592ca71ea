/** @file The memory under tensors: lent by one to another, and freed while the tensor stays. */

import { native } from '../addon/addon.ts';
import { checkGiven, checkObject, checkText } from '../base/checks.ts';
import { checkWhole } from '../base/options.ts';
import { checkTensors } from './check-tensors.ts';
import { DType } from './dtype.ts';
import { Tensor } from './tensor.ts';

/**
 * Puts the memory of `source` under a tensor of the same size. Whatever shares the tensor's storage (views, what autograd has
 * saved) sees it, and no change is counted. Both are contiguous, and the tensor begins its storage.
 *
 * @example freeStorage(weight); lendStorage(weight, buffer.at('0:16'))
 */
export function lendStorage(tensor: Tensor, source: Tensor): void {
  checkTensors('lendStorage', { tensor, source });
  native.lendStorage(tensor.handle, source.handle);
}

/**
 * Frees the memory under a tensor; its shape stays. Reading or writing it is an error until `lendStorage`. Memory that is shared with
 * an array, lent to another tensor or used by an operation under way is not freed: that is an error.
 *
 * @example freeStorage(weight)
 */
export function freeStorage(tensor: Tensor): void {
  checkTensors('freeStorage', { tensor });
  native.freeStorage(tensor.handle);
}

/** How `commonTensor` finds its parties. */
export interface CommonTensorOptions {
  /** What all of them say. */
  readonly name: string;
  /** How many threads of this process ask for it; when all have, the name is free again. */
  readonly parties: number;
  readonly dtype: DType;
}

/**
 * A tensor whose memory several threads of this process share: the first that asks makes it, without values. It is freed when
 * none of them holds it any more.
 *
 * @example const shared = commonTensor([1024], { name: 'weights', parties: 4, dtype: float32 })
 */
export function commonTensor(shape: readonly number[], options: CommonTensorOptions): Tensor {
  checkObject('commonTensor', 'the options', options);
  const { name, parties, dtype } = options;
  checkText('commonTensor', 'name', name);
  checkWhole('commonTensor: parties', parties, 1);
  checkGiven('commonTensor', dtype instanceof DType, ['dtype', dtype], 'an element type, as float32');
  return Tensor.adopt(native.commonTensor(name, parties, dtype.code, shape));
}

/**
 * Forgets names of `commonTensor` that begin with `prefix` and that not all parties have asked for; returns how many.
 *
 * @example forgetCommonTensors('weights') // after a failure
 */
export function forgetCommonTensors(prefix: string): number {
  checkText('forgetCommonTensors', 'the prefix', prefix);
  return native.forgetCommon(prefix);
}
