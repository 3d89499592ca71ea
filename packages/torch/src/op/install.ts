/** @file Puts the operators behind `Tensor.prototype` and gives them out as functions: hot ones with their short way. */
import { Tensor } from '../tensor/tensor.ts';
import { overloads } from './generated/overloads.ts';
import { genericFunction, genericMethod } from './operator.ts';

/** Operators by their public name that have a short way. */
type HotOperators = Readonly<Record<string, unknown>>;

/** Gives the function of an operator by name: `operatorFunctions(hot)('matmul')(a, b)`. */
export function operatorFunctions(hot: HotOperators): <F>(name: string) => F {
  return <F>(name: string) => (hot[name] ?? genericFunction(name)) as F;
}

/**
 * Every operator whose first argument is a tensor `self` becomes a method. They are one object behind the prototype:
 * adding hundreds of properties to an object that is a prototype already takes V8 20 ms, this takes one.
 */
export function installMethods(hot: HotOperators): void {
  const methods: Record<string, unknown> = {};
  for (const name of Object.keys(overloads)) {
    if (overloads[name]!.includes('(Tensor self')) methods[name] = hot[name] ?? genericMethod(name);
  }
  Object.setPrototypeOf(Tensor.prototype, methods);
}
