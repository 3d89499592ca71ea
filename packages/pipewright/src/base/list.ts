/** @file Telling arrays from other values where an array may be read-only: `Array.isArray` does not narrow to read-only arrays. */

/** Whether a value is an array. @example isList([1, 2]) // true */
export function isList(value: unknown): value is readonly unknown[] {
  return Array.isArray(value);
}
