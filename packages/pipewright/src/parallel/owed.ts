/**
 * @file Parameters that have learned in steps whose gradients were not summed: each rank has what it has learned alone, and the next
 * step that sums is to sum it too, even where they are frozen by then. All ranks of a group make the same steps and learn the same
 * parameters, so that all of them owe the same.
 */
import type { distributed, Tensor } from '@pipewright/torch';

/** The group over which a parameter's gradient is still to be summed; groups that take its place begin with nothing. */
const owed = new WeakMap<Tensor, distributed.ProcessGroup>();

/** After a step that summed nothing: those of these parameters that it learned are to be summed later. */
export function oweLearned(parameters: Iterable<Tensor>, group: distributed.ProcessGroup): void {
  for (const parameter of parameters) if (parameter.requiresGrad) owed.set(parameter, group);
}

/** Whether earlier steps have learned a parameter, and nothing was summed since. */
export function isOwed(parameter: Tensor, group: distributed.ProcessGroup): boolean {
  return owed.get(parameter) === group;
}

/** Whether a step that sums has to sum the gradient of a parameter: it is learned now, or was since the last such step. */
export function isDue(parameter: Tensor, group: distributed.ProcessGroup): boolean {
  return parameter.requiresGrad || isOwed(parameter, group);
}

/** Their gradients were summed. */
export function settleOwed(parameters: Iterable<Tensor>): void {
  for (const parameter of parameters) owed.delete(parameter);
}
