/**
 * @file Parameters with gradients that were not summed yet (`sync: false`): each rank has its own, and the next step that sums must
 * include them, even if a parameter is frozen by then. All ranks of a group make the same steps and train the same parameters, so
 * the same parameters are owed on all of them.
 */
import type { distributed, Tensor } from '@pipewright/torch';

/** The group over which a parameter's gradient is still to be summed; a group that replaces it starts with nothing owed. */
const owed = new WeakMap<Tensor, distributed.ProcessGroup>();

/** Called after a step without a sum: the gradients of the trainable ones among these parameters are owed. */
export function oweLearned(parameters: Iterable<Tensor>, group: distributed.ProcessGroup): void {
  for (const parameter of parameters) if (parameter.requiresGrad) owed.set(parameter, group);
}

/** Whether a parameter has gradients of earlier steps that were not summed. */
export function isOwed(parameter: Tensor, group: distributed.ProcessGroup): boolean {
  return owed.get(parameter) === group;
}

/** Whether a step that sums must include a parameter: it is trainable now, or was since the last such step. */
export function isDue(parameter: Tensor, group: distributed.ProcessGroup): boolean {
  return parameter.requiresGrad || isOwed(parameter, group);
}

/** Called when the gradients of these parameters were summed. */
export function settleOwed(parameters: Iterable<Tensor>): void {
  for (const parameter of parameters) owed.delete(parameter);
}
