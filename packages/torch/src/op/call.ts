/** @file Any operator by its full name. */
import { bindOp, callBound } from './bind.ts';

/**
 * Calls an operator of the dispatcher: positional arguments in schema order, the others by schema name in camelCase.
 * Returns a tensor, a value, or an array where the operator returns several.
 *
 * @example callOp('aten::add.Tensor', [a, b], { alpha: 2 })
 */
export function callOp(name: string, args: readonly unknown[], options?: Readonly<Record<string, unknown>>): unknown {
  return callBound(bindOp(name), args, options);
}
