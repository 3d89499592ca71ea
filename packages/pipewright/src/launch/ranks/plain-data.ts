/** @file What goes from a launcher to its ranks and back is copied: functions cannot be, and a tensor would arrive as a number without its memory. */
import { PipelineError } from '../../base/errors.ts';

/** Refuses tensors, functions and symbols in what is to be copied. @example checkPlain('launch: data', options.data) */
export function checkPlain(what: string, value: unknown): void {
  const found = uncopiedIn(value, '', new Set());
  if (found === null) return;
  const [path, kind] = found;
  const remedy =
    kind === 'a tensor'
      ? 'give numbers: tensor.item(), tensor.toArray()'
      : 'give numbers, texts, arrays and plain objects';
  throw new PipelineError(
    'BAD_INPUT',
    `${what}${path} is ${kind}, which cannot be sent between ranks and the launcher; ${remedy}`,
    { path },
  );
}

/** Where the first of them is in arrays, maps, sets and objects, and what it is; null where there is none. */
function uncopiedIn(value: unknown, path: string, seen: Set<object>): readonly [string, string] | null {
  if (typeof value === 'function' || typeof value === 'symbol') return [path, `a ${typeof value}`];
  if (typeof value !== 'object' || value === null || seen.has(value)) return null;
  seen.add(value);
  if (isTensor(value)) return [path, 'a tensor'];
  for (const [key, each] of entriesOf(value)) {
    const found = uncopiedIn(each, `${path}${key}`, seen);
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
  if (value instanceof Set) {
    for (const [i, each] of [...value].entries()) yield [`.values()[${i}]`, each];
    return;
  }
  // Of an instance of a class its own fields are copied; of errors and of what holds bytes they are not.
  if (!ArrayBuffer.isView(value) && !(value instanceof Error))
    for (const [key, each] of Object.entries(value)) yield [`.${key}`, each];
}

/** By what it can do: the launcher does not load the library of tensors. */
function isTensor(value: object): boolean {
  const { h, toTypedArray, toArray } = value as { h?: unknown; toTypedArray?: unknown; toArray?: unknown };
  return typeof h === 'number' && typeof toTypedArray === 'function' && typeof toArray === 'function';
}
