/** @file Checks of what callers give, where it does not go to an operator at once. */
import { TorchError } from './errors.ts';

/** A value as it may stand in a message, whatever it is. @example show([1, 2]) // 'an array of 2' */
export function show(value: unknown): string {
  if (typeof value === 'string') return `'${value.length > 60 ? `${value.slice(0, 57)}...` : value}'`;
  if (Array.isArray(value)) return `an array of ${value.length}`;
  if (typeof value === 'function') return 'a function';
  if (typeof value !== 'object' || value === null) return String(value);
  const prototype = Object.getPrototypeOf(value) as { constructor?: { name?: unknown } } | null;
  const name = prototype?.constructor?.name;
  return typeof name === 'string' && name !== '' && name !== 'Object' ? `a ${name}` : 'an object';
}

/** Refuses a value that is not what a function takes. @example checkGiven('noGrad', typeof f === 'function', ['its argument', f], 'a function') */
export function checkGiven(
  where: string,
  isRight: boolean,
  [name, value]: readonly [string, unknown],
  rule: string,
): void {
  if (!isRight) throw new TorchError('BAD_ARGUMENT', `${where}: ${name} is ${show(value)}; give ${rule}`);
}

/** Refuses what cannot be called. */
export function checkFunction(where: string, value: unknown, name = 'the first argument'): void {
  checkGiven(where, typeof value === 'function', [name, value], 'a function');
}

/** Refuses what is not a text. */
export function checkText(where: string, name: string, value: unknown): void {
  checkGiven(where, typeof value === 'string', [name, value], 'a string');
}

/** Refuses what is not an object with properties. */
export function checkObject(where: string, name: string, value: unknown, rule = 'an object'): void {
  checkGiven(where, typeof value === 'object' && value !== null, [name, value], rule);
}

/** Refuses what `for ... of` cannot go through. */
export function checkIterable(where: string, name: string, value: unknown, rule = 'an array'): void {
  const isRight = typeof value === 'object' && value !== null && Symbol.iterator in value;
  checkGiven(where, isRight, [name, value], rule);
}
