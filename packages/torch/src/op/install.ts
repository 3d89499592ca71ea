/** @file Puts the operators behind `Tensor.prototype` and gives them out as functions: hot ones with their short way. */
import { hotFunctions, hotMethods } from '../generated/hot-ops.ts';
import { overloads } from '../generated/overloads.ts';
import { Tensor } from '../tensor/tensor.ts';
import { genericFunction, genericMethod } from './operator.ts';

/** The function of an operator: `opFunction('matmul')(a, b)`. */
export function opFunction<F>(name: string): F {
  return (hotFunctions[name] ?? genericFunction(name)) as F;
}

/**
 * Every operator whose first argument is a tensor `self` becomes a method. They are one object behind the prototype:
 * adding hundreds of properties to an object that is a prototype already takes V8 20 ms, this takes one.
 */
function installMethods(): void {
  const methods: Record<string, unknown> = {};
  for (const name of Object.keys(overloads)) {
    if ((overloads[name] as string).includes('(Tensor self')) methods[name] = hotMethods[name] ?? genericMethod(name);
  }
  Object.setPrototypeOf(Tensor.prototype, methods);
}

installMethods();
