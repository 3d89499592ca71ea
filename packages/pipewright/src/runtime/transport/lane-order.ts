/** @file In which lane each message between two ranks goes, so that both ends of a lane have them in the same order. */

/**
 * The lane of each message, by tag. One lane is enough where both ends have the same order; where they do not (stages that
 * take values of several others), a message goes to the first lane in which neither end would have to wait for a later one.
 *
 * @example laneOrder([1, 2, 3], [2, 1, 3]) // 1 -> 0, 2 -> 1, 3 -> 0
 */
export function laneOrder(sent: readonly number[], received: readonly number[]): Map<number, number> {
  const position = new Map(received.map((tag, i) => [tag, i]));
  const last: number[] = [];
  const lanes = new Map<number, number>();
  for (const tag of sent) {
    const at = position.get(tag);
    if (at === undefined) continue; // never received: it has no lane
    let lane = last.findIndex((before) => before < at);
    if (lane < 0) lane = last.length;
    last[lane] = at;
    lanes.set(tag, lane);
  }
  return lanes;
}
