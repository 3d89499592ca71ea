/** @file What goes from a launcher to its ranks and back is copied, and a tensor would arrive as a number without its memory. */
import { PipelineError } from '../../base/errors.ts';

/** Refuses tensors in what is to be copied. @example checkPlain('launch: data', options.data) */
export function checkPlain(what: string, value: unknown): void {
  const path = tensorIn(value, '', new Set());
  if (path === null) return;
  throw new PipelineError(
    'BAD_INPUT',
    `${what}${path} is a tensor, which cannot be sent between ranks and the launcher; give numbers: tensor.item(), tensor.toArray()`,
    { path },
  );
}

/** Where the first tensor is in arrays, maps and plain objects; null where there is none. */
function tensorIn(value: unknown, path: string, seen: Set<object>): string | null {
  if (typeof value !== 'object' || value === null || seen.has(value)) return null;
  seen.add(value);
  if (isTensor(value)) return path;
  for (const [key, each] of entriesOf(value)) {
    const found = tensorIn(each, `${path}${key}`, seen);
    if (found !== null) return found;
  }
  return null;
}

function* entriesOf(value: object): Generator<readonly [string, unknown]> {
  if (Array.isArray(value)) {
    for (const [i, each] of value.entries()) yield [`[${i}]`, each];
    return;
  }
  if (value instanceof Map) {
    for (const [key, each] of value) yield [`.get(${JSON.stringify(key)})`, each];
    return;
  }
  const prototype: unknown = Object.getPrototypeOf(value);
  if (prototype === Object.prototype || prototype === null)
    for (const [key, each] of Object.entries(value)) yield [`.${key}`, each];
}

/** By what it can do: the launcher does not load the library of tensors. */
function isTensor(value: object): boolean {
  const { h, toTypedArray, toArray } = value as { h?: unknown; toTypedArray?: unknown; toArray?: unknown };
  return typeof h === 'number' && typeof toTypedArray === 'function' && typeof toArray === 'function';
}
