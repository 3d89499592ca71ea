/** @file Whether the ranks of a compute-only order ever wait for each other in a cycle. */

import { claimed } from '../model/extent.ts';
import type { Schedule } from '../model/schedule.ts';
import { ComputeReplay } from './compute-replay.ts';
import { describeCycle, type ViolationList } from './violation.ts';

/** Runs every rank as far as results of other ranks allow; adds `compute-deadlock` if some rank does not reach its end. */
export function checkComputeOrder(schedule: Schedule, violations: ViolationList): void {
  const replay = new ComputeReplay(schedule, { space: false, extent: claimed(schedule) });
  replay.run();
  const cycle = replay.cycle();
  if (cycle !== null)
    violations.add(
      'compute-deadlock',
      null,
      `ranks wait for each other: ${describeCycle(cycle)}; change the order of one of them`,
      cycle,
    );
}
