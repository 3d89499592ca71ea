/** @file Who waits for whom in a run that stopped early. */

import type { Schedule } from '../model/schedule.ts';
import { followWaits } from '../model/waits.ts';
import type { CycleStep } from './violation.ts';

/** What a rank waits for; `isMissing`: nobody will ever make it. */
interface Wait {
  readonly waitsFor: CycleStep['waitsFor'];
  readonly isMissing: boolean;
}

/**
 * The cycle of ranks that wait for each other, or the way to a rank that waits for what never comes; null if every rank
 * reached its end. `cursor[rank]` is the slot a rank stands at.
 */
export function waitingCycle(
  schedule: Schedule,
  cursor: Int32Array,
  waitOf: (rank: number) => Wait,
): readonly CycleStep[] | null {
  const { rows } = schedule;
  const first = rows.findIndex((row, r) => cursor[r]! < row.length);
  if (first < 0) return null;
  const steps: CycleStep[] = [];
  const { cycleAt } = followWaits(first, (rank) => {
    const slot = cursor[rank]!;
    const { waitsFor, isMissing } = waitOf(rank);
    steps.push({ rank, slot, action: schedule.format(rows[rank]![slot]!), waitsFor });
    const isEnd = isMissing || cursor[waitsFor.rank]! >= rows[waitsFor.rank]!.length;
    return isEnd ? -1 : waitsFor.rank;
  });
  return cycleAt < 0 ? steps : steps.slice(cycleAt);
}
