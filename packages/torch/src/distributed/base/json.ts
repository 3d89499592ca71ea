/** @file Objects as JSON, refused where JSON would change them. */
import { TorchError } from '../../base/errors.ts';

/** What JSON carries unchanged. */
export type Json = null | boolean | number | string | readonly Json[] | { readonly [key: string]: Json };

/** The JSON of a value; what JSON would drop or change is an error that says where it is. */
export function toJson(where: string, value: unknown): string {
  checkJson(where, value, 'value', new Set());
  return JSON.stringify(value);
}

function checkJson(where: string, value: unknown, path: string, above: Set<object>): void {
  if (value === null || typeof value === 'boolean' || typeof value === 'string') return;
  if (typeof value === 'number') {
    if (Number.isFinite(value) && !Object.is(value, -0)) return;
    throw refuse(where, path, `${Object.is(value, -0) ? '-0' : value}, which JSON cannot hold`);
  }
  if (typeof value !== 'object') throw refuse(where, path, `a ${typeof value}, which JSON cannot hold`);
  if (above.has(value)) throw refuse(where, path, 'part of a cycle');
  const isArray = Array.isArray(value);
  const prototype: unknown = Object.getPrototypeOf(value);
  if (!isArray && prototype !== Object.prototype && prototype !== null) {
    throw refuse(
      where,
      path,
      `a ${value.constructor?.name ?? 'class instance'}, which JSON would turn into a plain object`,
    );
  }
  above.add(value);
  for (const [key, item] of Object.entries(value))
    checkJson(where, item, isArray ? `${path}[${key}]` : `${path}.${key}`, above);
  above.delete(value);
}

function refuse(where: string, path: string, what: string): TorchError {
  return new TorchError(
    'NOT_JSON',
    `${where}: ${path} is ${what}; send plain objects, arrays, strings and finite numbers`,
  );
}
