/** @file Names for new nodes. */

/** `name`, or `name_1`, `name_2` and so on: the first that is not taken. @example unusedName('x', new Set(['x'])) // 'x_1' */
export function unusedName(name: string, taken: { has(name: string): boolean }): string {
  let free = name;
  for (let i = 1; taken.has(free); i++) free = `${name}_${i}`;
  return free;
}
