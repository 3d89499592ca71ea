/** @file What is done to many parameters at once: clipping of gradients, and all of them in one vector. */

import { native } from '../addon/addon.ts';
import { noGrad } from '../autograd/modes.ts';
import { checkGiven } from '../base/checks.ts';
import { cat, linalgVectorNorm, stack } from '../generated/functions.ts';
import { checkTensors, tensorList } from '../tensor/check-tensors.ts';
import '../generated/methods.ts';
import { checkOptions, TorchError } from '../base/errors.ts';
import { tensor as makeTensor } from '../functions/creation.ts';
import { bindOp } from '../op/bind.ts';
import { float32 } from '../tensor/dtype.ts';
import { scope } from '../tensor/scope.ts';
import { checkNoShards } from '../tensor/shard-marks.ts';
import { Tensor } from '../tensor/tensor.ts';

export { PackedSequence, packPaddedSequence, packSequence, padPackedSequence, padSequence } from './packed-sequence.ts';

/** One tensor or many. */
export type Tensors = Tensor | Iterable<Tensor>;

/** Groups of gradients that kernels can take at once: of one device and one type. */
function gradientsOf(parameters: Tensors): Map<string, Tensor[]> {
  const handles = tensorList('clipGradValue_', 'parameters', parameters).map((parameter) => parameter.handle);
  const groups = new Map<string, Tensor[]>();
  for (const handle of native.gradsOf(handles)) {
    const grad = Tensor.adopt(handle);
    const key = `${grad.device} ${grad.dtype.name}`;
    const group = groups.get(key);
    if (group === undefined) groups.set(key, [grad]);
    else group.push(grad);
  }
  return groups;
}

/** Without gradients, and nothing left behind but the result. */
function inScope<T>(body: () => T): T {
  return noGrad(() => scope(body));
}

function foreach(name: string, tensors: readonly Tensor[], ...rest: unknown[]): unknown {
  return bindOp(`aten::_foreach_${name}`).native(
    tensors.map((one) => one.handle),
    ...rest,
  );
}

/** What clipping by norm can be told. */
export interface ClipOptions {
  normType?: number | undefined;
  errorIfNonfinite?: boolean | undefined;
}

/**
 * Scales all gradients together so that their norm is at most `maxNorm`; returns the norm before.
 *
 * @example clipGradNorm_(model.parameters(), 1)
 */
export function clipGradNorm_(parameters: Tensors, maxNorm: number, options?: ClipOptions): Tensor {
  checkOptions('clipGradNorm_', options, ['normType', 'errorIfNonfinite']);
  const all = tensorList('clipGradNorm_', 'parameters', parameters);
  checkNoShards('clipGradNorm_', all);
  const handles = all.map((parameter) => parameter.handle);
  checkGiven('clipGradNorm_', typeof maxNorm === 'number', ['maxNorm', maxNorm], 'a number');
  if (options?.errorIfNonfinite === true) {
    const before = inScope(() =>
      getTotalNorm(
        native.gradsOf(handles).map((handle) => Tensor.adopt(handle)),
        options.normType,
      ).item(),
    );
    if (!Number.isFinite(before)) {
      throw new TorchError(
        'NOT_FINITE',
        `clipGradNorm_: the norm of the gradients is ${before}; look for the loss that became infinite, or leave errorIfNonfinite out`,
      );
    }
  }
  const norm = native.clipGradNorm(handles, maxNorm, options?.normType ?? 2);
  return norm === undefined ? makeTensor(0, { dtype: float32 }) : Tensor.adopt(norm);
}

/** The norm of several tensors together. */
export function getTotalNorm(tensors: Tensors, normType = 2): Tensor {
  return inScope(() => {
    const all = tensorList('getTotalNorm', 'tensors', tensors);
    checkNoShards('getTotalNorm', all);
    if (all.length === 0) return makeTensor(0, { dtype: float32 });
    return linalgVectorNorm(stack(all.map((one) => linalgVectorNorm(one, normType).to(all[0]!.device))), normType);
  });
}

/** Brings every element of every gradient into [-clipValue, clipValue]. */
export function clipGradValue_(parameters: Tensors, clipValue: number): void {
  checkGiven('clipGradValue_', typeof clipValue === 'number', ['clipValue', clipValue], 'a number');
  inScope(() => {
    for (const group of gradientsOf(parameters).values()) {
      foreach('clamp_min_.Scalar', group, { float: -clipValue });
      foreach('clamp_max_.Scalar', group, { float: clipValue });
    }
  });
}

/** All parameters as one vector, with gradients. */
export function parametersToVector(parameters: Iterable<Tensor>): Tensor {
  const parts = tensorList('parametersToVector', 'parameters', parameters).map((parameter) => parameter.reshape(-1));
  if (parts.length === 0) throw new TorchError('BAD_ARGUMENT', 'parametersToVector: there are no parameters');
  return cat(parts);
}

/** Gives parameters the values of a vector, in order. The vector's memory becomes theirs, as in PyTorch. */
export function vectorToParameters(vector: Tensor, parameters: Iterable<Tensor>): void {
  checkTensors('vectorToParameters', { vector });
  const all = tensorList('vectorToParameters', 'parameters', parameters);
  const needed = all.reduce((sum, parameter) => sum + parameter.numel(), 0);
  if (vector.numel() !== needed)
    throw new TorchError(
      'SHAPE',
      `vectorToParameters: the parameters have ${needed} elements, the vector ${vector.numel()}`,
    );
  inScope(() => {
    let start = 0;
    for (const parameter of all) {
      const count = parameter.numel();
      parameter.setData(vector.narrow(0, start, count).view(parameter.shape));
      start += count;
    }
  });
}
