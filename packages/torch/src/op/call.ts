/** @file Any operator by its full name. */
import { type NativeSchema, native } from '../addon/addon.ts';
import { TorchError } from '../base/errors.ts';
import { bindOp, callBound } from './bind.ts';

/**
 * Calls an operator of the dispatcher: positional arguments in schema order, the others by schema name in camelCase.
 * Returns a tensor, a value, or an array where the operator returns several.
 *
 * @example callOp('aten::add.Tensor', [a, b], { alpha: 2 })
 */
export function callOp(name: string, args: readonly unknown[], options?: Readonly<Record<string, unknown>>): unknown {
  if (typeof name !== 'string')
    throw new TorchError(
      'BAD_ARGUMENT',
      `callOp: the operator's name must be a string such as 'aten::add.Tensor', got ${typeof name}`,
    );
  if (!Array.isArray(args))
    throw new TorchError(
      'BAD_ARGUMENT',
      `callOp: the arguments of ${name} must be an array: callOp('${name}', [x, y])`,
    );
  if (options !== undefined && (typeof options !== 'object' || options === null || Array.isArray(options))) {
    throw new TorchError(
      'BAD_ARGUMENT',
      `callOp: keyword arguments of ${name} must be an object: callOp('${name}', [x, y], { alpha: 2 })`,
    );
  }
  return callBound(bindOp(name), args, options);
}

/** One operator as libtorch describes it. */
export type OpSchema = NativeSchema;

/** The schemas of all operators of the loaded libtorch, of every namespace. @example listOps().length // 3483 in 2.15.0 */
export function listOps(): OpSchema[] {
  return native.listOps();
}
