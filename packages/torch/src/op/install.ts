/** @file Puts the operators on `Tensor.prototype` and gives them out as functions: hot ones with their short way. */
import { hotFunctions, hotMethods } from '../generated/hot-ops.ts';
import { overloads } from '../generated/overloads.ts';
import { native } from '../addon.ts';
import { Tensor } from '../tensor.ts';
import { genericFunction, genericMethod } from './operator.ts';

/** The function of an operator: `opFunction('matmul')(a, b)`. */
export function opFunction<F>(name: string): F {
  return ((native.hot === undefined ? undefined : hotFunctions[name]) ?? genericFunction(name)) as F;
}

/** Puts every operator whose first argument is a tensor `self` on `Tensor.prototype`. */
function installMethods(): void {
  const prototype = Tensor.prototype as unknown as Record<string, unknown>;
  for (const name of Object.keys(overloads)) {
    if (name in prototype || !/\(Tensor self[,)]/.test(overloads[name] as string)) continue;
    prototype[name] = (native.hot === undefined ? undefined : hotMethods[name]) ?? genericMethod(name);
  }
}

installMethods();
