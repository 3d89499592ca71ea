/** @file What is remembered of earlier steps, bounded. */

/** Takes the first entries out of a set or map that has more than so many; gives the values of a map. */
export function forgetFirst<T>(of: Set<T> | Map<unknown, T>, most: number): T[] {
  const gone: T[] = [];
  for (const [key, value] of of.entries()) {
    if (of.size <= most) break;
    gone.push(value);
    of.delete(key as T);
  }
  return gone;
}
