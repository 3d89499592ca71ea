/** @file Checks that tensors are tensors, where a function looks at them before an operator does. */
import { checkGiven } from '../base/checks.ts';
import { Tensor } from './tensor.ts';

/** Refuses what is not a tensor; those of `optional` may be left out. @example checkTensors('mseLoss', { input, target }, { weight }) */
export function checkTensors(
  where: string,
  needed: Readonly<Record<string, unknown>>,
  optional?: Readonly<Record<string, unknown>>,
): void {
  for (const name in needed) if (!(needed[name] instanceof Tensor)) refuse(where, name, needed[name]);
  for (const name in optional) {
    const value = optional[name];
    if (value !== undefined && value !== null && !(value instanceof Tensor)) refuse(where, name, value);
  }
}

function refuse(where: string, name: string, value: unknown): never {
  checkGiven(where, false, [name, value], 'a tensor');
  throw new Error('unreachable');
}

/** The tensors of an array, or of anything `for ... of` goes through; refuses everything else. */
export function tensorList(where: string, name: string, values: unknown): Tensor[] {
  if (values instanceof Tensor) return [values];
  const isList = typeof values === 'object' && values !== null && Symbol.iterator in values;
  checkGiven(where, isList, [name, values], 'an array of tensors');
  const list = [...(values as Iterable<Tensor>)];
  list.forEach((item, i) => checkGiven(where, item instanceof Tensor, [`${name}[${i}]`, item], 'a tensor'));
  return list;
}
