/** @file Puts bubbles where ranks wait when every action takes one slot. */

import { ScheduleError } from '../model/errors.ts';
import { type Extent, measure } from '../model/extent.ts';
import { Schedule, type ScheduleData } from '../model/schedule.ts';
import { ComputeReplay } from '../validate/compute-replay.ts';
import { describeCycle } from '../validate/violation.ts';

/**
 * The same compute order with bubbles in exactly the slots in which a rank waits, one slot per action (a composite too).
 * @example alignSlots(Schedule.from({ order: [['0F0', '0B0'], ['1F0', '1B0']] })).toString() // '0F0 . . 0B0\n. 1F0 1B0'
 */
export function alignSlots(input: Schedule | ScheduleData): Schedule {
  const schedule = Schedule.from(input);
  return alignWithin(schedule, measure(schedule));
}

/** The same for a schedule whose extent is known. */
export function alignWithin(schedule: Schedule, extent: Extent): Schedule {
  const replay = new ComputeReplay(schedule, { space: true, extent });
  replay.run();
  const cycle = replay.cycle();
  if (cycle !== null)
    throw new ScheduleError(
      'DEADLOCK',
      `alignSlots: ranks wait for each other: ${describeCycle(cycle)}; change the order of one of them`,
      { cycle },
    );
  return schedule.with({ rows: replay.spacedRows() });
}
