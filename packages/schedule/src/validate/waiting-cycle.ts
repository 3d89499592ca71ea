/** @file Who waits for whom in a run that stopped early. */

import type { Schedule } from '../model/schedule.ts';
import type { CycleStep } from './violation.ts';

/** What a rank waits for; `isMissing`: nobody will ever make it. */
interface Wait {
  readonly waitsFor: CycleStep['waitsFor'];
  readonly isMissing: boolean;
}

/**
 * The circle of ranks that wait for each other, or the way to a rank that waits for what never comes; null if every rank
 * reached its end. `cursor[rank]` is the slot a rank stands at.
 */
export function waitingCircle(
  schedule: Schedule,
  cursor: Int32Array,
  waitOf: (rank: number) => Wait,
): readonly CycleStep[] | null {
  const { rows } = schedule;
  let rank = rows.findIndex((row, r) => cursor[r]! < row.length);
  if (rank < 0) return null;
  const seen = new Map<number, number>();
  const path: CycleStep[] = [];
  while (!seen.has(rank)) {
    seen.set(rank, path.length);
    const slot = cursor[rank]!;
    const { waitsFor, isMissing } = waitOf(rank);
    path.push({ rank, slot, action: schedule.format(rows[rank]![slot]!), waitsFor });
    rank = waitsFor.rank;
    if (isMissing || cursor[rank]! >= rows[rank]!.length) return path;
  }
  return path.slice(seen.get(rank));
}
