/** @file A backward that gives the gradients others wait for before the rest. */
import { native } from '../addon/addon.ts';
import { checkObject } from '../base/checks.ts';
import { checkOptions, TorchError } from '../base/errors.ts';
import type { Tensor } from '../tensor/tensor.ts';
import { forbidWhileRecording, gradientsOf, listOf } from './backward.ts';
import { collectCallbacks } from './callbacks.ts';
import type { GradientTarget } from './gradient-edge.ts';

/** What `backwardInputsFirst` takes. */
export interface InputsFirstOptions {
  /** Gradients of the tensors; a tensor of one element needs none. */
  gradTensors?: readonly (Tensor | null)[] | undefined;
  /** The leaves whose gradients are wanted first. */
  inputs: readonly GradientTarget[];
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
export function backwardInputsFirst(
  tensors: GradientTarget | readonly GradientTarget[],
  options: InputsFirstOptions,
): void {
  const where = 'backwardInputsFirst';
  checkObject(where, 'the second argument', options, '{ inputs, ready }');
  checkOptions(where, options, ['gradTensors', 'inputs', 'ready']);
  const roots = listOf(where, 'tensors', tensors);
  forbidWhileRecording(`${where}()`, roots);
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
