/** @file Who waits for whom: every rank waits for at most one other, so waits form paths that end or close a cycle. */

/** Where a walk along waits leads. */
export interface WaitPath {
  /** The ranks passed, each once. */
  readonly path: readonly number[];
  /** Position in `path` where the cycle begins; -1: the walk ended at a rank that waits for none. */
  readonly cycleAt: number;
}

/**
 * Follows waits from a rank; `waitsFor` gives -1 for a rank that waits for none.
 * @example followWaits(0, (rank) => [1, 2, 1][rank]!) // { path: [0, 1, 2], cycleAt: 1 }
 */
export function followWaits(start: number, waitsFor: (rank: number) => number): WaitPath {
  const path: number[] = [];
  const place = new Map<number, number>();
  let rank = start;
  while (rank >= 0 && !place.has(rank)) {
    place.set(rank, path.length);
    path.push(rank);
    rank = waitsFor(rank);
  }
  return { path, cycleAt: rank < 0 ? -1 : place.get(rank)! };
}

/**
 * Visits every cycle of waits among ranks 0 to `count - 1`, each once, in one pass; `visit` may end waits.
 * @example forEachCycle(3, (rank) => [1, 0, 0][rank]!, (cycle) => console.log(cycle)) // Int32Array [0, 1]
 */
export function forEachCycle(
  count: number,
  waitsFor: (rank: number) => number,
  visit: (cycle: Int32Array) => void,
): void {
  const path = new Int32Array(count);
  const place = new Int32Array(count).fill(-1);
  for (let start = 0; start < count; start++) {
    let length = 0;
    let rank = start;
    let next = place[rank]! < 0 ? waitsFor(rank) : -1;
    while (next >= 0 && place[rank]! < 0) {
      place[rank] = length;
      path[length++] = rank;
      rank = next;
      next = waitsFor(rank);
    }
    // The walk ended at a rank of its own path: from there on it is a cycle.
    const first = place[rank]!;
    if (next >= 0 && first >= 0 && first < length && path[first] === rank) visit(path.slice(first, length));
  }
}
