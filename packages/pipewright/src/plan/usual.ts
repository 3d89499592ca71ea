/** @file Which of several repetitions count: what else the machine did shows in the shortest and in the longest ones. */

/** The positions of the half of the lengths that is nearest to the one in the middle. @example usual([9, 1, 2, 3]) // [2, 3] */
export function usual(lengths: readonly number[]): number[] {
  const order = lengths.map((_, i) => i).sort((a, b) => lengths[a]! - lengths[b]!);
  const from = Math.floor(order.length / 4);
  return order.slice(from, Math.max(from + 1, order.length - from));
}
