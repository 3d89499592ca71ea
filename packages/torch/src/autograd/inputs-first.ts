/** @file A backward that gives the gradients others wait for before the rest. */
import { native } from '../addon/addon.ts';
import { checkOptions, TorchError } from '../base/errors.ts';
import { recorder } from '../tensor/recorder.ts';
import type { Tensor } from '../tensor/tensor.ts';
import { gradientsOf, listOf } from './backward.ts';
import { collectCallbacks } from './callbacks.ts';

/** What `backwardInputsFirst` takes. */
export interface InputsFirstOptions {
  /** Gradients of the tensors; a tensor of one element needs none. */
  gradTensors?: readonly (Tensor | null)[] | undefined;
  /** The leaves whose gradients are wanted first. */
  inputs: readonly Tensor[];
  /** Called once, when they are complete; gradients of other leaves may be missing until the end. */
  ready: () => void;
}

/**
 * Adds the gradients of the tensors to every leaf they were computed from, those of `inputs` first: on the CPU the weight
 * gradients of linear layers, a third of all work, are computed after `ready`. The result is that of `backward`; the gradients of
 * what those layers returned live until the end.
 *
 * @example backwardInputsFirst([y], { gradTensors: [dy], inputs: [x], ready: () => channel.send(0, x.grad) })
 */
export function backwardInputsFirst(tensors: Tensor | readonly Tensor[], options: InputsFirstOptions): void {
  const where = 'backwardInputsFirst';
  checkOptions(where, options, ['gradTensors', 'inputs', 'ready']);
  const roots = listOf(where, 'tensors', tensors);
  if (roots[0] !== undefined) recorder?.beforeAccess(roots[0], `${where}()`);
  const gradients = gradientsOf(where, roots, options.gradTensors);
  const inputs = listOf(where, 'inputs', options.inputs);
  if (typeof options.ready !== 'function')
    throw new TorchError('BAD_ARGUMENT', `${where}: ready is a ${typeof options.ready}; give a function`);
  native.backwardInputsFirst(
    roots.map((root) => root.handle),
    gradients,
    inputs.map((input) => input.handle),
    options.ready,
  );
  collectCallbacks();
}
