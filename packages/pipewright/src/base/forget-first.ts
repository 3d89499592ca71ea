/** @file Bounds what is remembered of earlier steps. */

/** Deletes the oldest entries of a set or map until at most `most` are left; returns the deleted values. */
export function forgetFirst<T>(entries: Set<T> | Map<unknown, T>, most: number): T[] {
  const gone: T[] = [];
  for (const [key, value] of entries.entries()) {
    if (entries.size <= most) break;
    gone.push(value);
    entries.delete(key as T);
  }
  return gone;
}
