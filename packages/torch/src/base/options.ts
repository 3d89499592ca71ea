/** @file Options of modules: what is left out gets its default, what does not exist is refused by name. */

import { show } from './checks.ts';
import { checkOptions, TorchError } from './errors.ts';
import { FloatScalar } from './float-scalar.ts';

/** Options a caller may leave out; numbers may be marked with `float()`. */
export type Options<T> = { [K in keyof T]?: (T[K] extends number ? number | FloatScalar : T[K]) | undefined };

/** Options that may be null although their default is a value. */
const nullable = new Set(['momentum', 'bias']);

/** Fills in defaults, refuses unknown names and values of another kind than the default's. */
export function readOptions<T extends object>(
  where: string,
  options: { readonly [K in keyof T]?: unknown } | undefined,
  defaults: T,
): T {
  if (options === undefined) return defaults;
  if (typeof options !== 'object' || options === null || Array.isArray(options)) {
    throw new TorchError(
      'BAD_ARGUMENT',
      `${where}: everything with a default goes into one options object ({ ${Object.keys(defaults).slice(0, 3).join(', ')} }), got ${typeof options}`,
    );
  }
  checkOptions(where, options, Object.keys(defaults));
  const result = { ...defaults } as Record<string, unknown>;
  for (const [key, given] of Object.entries(options)) {
    if (given === undefined) continue;
    const value: unknown = typeof result[key] === 'number' || Array.isArray(given) ? withoutMarks(given) : given;
    const wanted = typeof result[key];
    const isPlain = wanted === 'number' || wanted === 'boolean' || wanted === 'string';
    if (isPlain && typeof value !== wanted && !(value === null && nullable.has(key))) {
      throw new TorchError(
        'BAD_ARGUMENT',
        `${where}: option '${key}' is a ${wanted}, got ${value === null ? 'null' : typeof value}; leave it out for ${String(result[key])}`,
      );
    }
    result[key] = value;
  }
  return result as T;
}

function withoutMarks(value: unknown): unknown {
  if (value instanceof FloatScalar) return value.float;
  return Array.isArray(value) ? value.map(withoutMarks) : value;
}

/** A size that is the same along all dimensions, or one for each. */
export type Size = number | readonly number[];

/** One number per dimension. @example expand('Conv2d', 'kernelSize', 3, 2) // [3, 3] */
export function expand(where: string, value: Size, count: number): number[] {
  if (typeof value === 'number') return new Array<number>(count).fill(value);
  if (Array.isArray(value) && value.length === count) return [...(value as readonly number[])];
  throw new TorchError('BAD_ARGUMENT', `${where} is a whole number or an array of ${count}, got ${show(value)}`);
}

/** Refuses what is not a whole number of at least `least`. */
export function checkWhole(where: string, value: unknown, least = 0): void {
  if (Number.isInteger(value) && (value as number) >= least) return;
  throw new TorchError('BAD_ARGUMENT', `${where} must be a whole number of at least ${least}, got ${show(value)}`);
}
