/** @file Calls the forward of a module whose types are not known. */
import type { nn } from '@pipewright/torch';

/** What a module returns for inputs of any types. @example callForward(module, [x, { mask }]) */
export function callForward(module: nn.Module, inputs: readonly unknown[]): unknown {
  return (module.forward as (...inputs: readonly unknown[]) => unknown).apply(module, inputs as unknown[]);
}
