/** @file Whether the cells of a schedule can be replayed at all. */

import { ScheduleError } from '../model/errors.ts';
import { bits } from '../model/packed.ts';
import type { Schedule } from '../model/schedule.ts';

// Constants of this module: an import is looked up at every use.
const { Code, wordCode } = bits;

/** Who replays what. */
export interface Replayed {
  readonly caller: string;
  readonly schedule: Schedule;
}

/** Refuses an action outside of the schedule's stages and microbatches. */
export function checkCell(of: Replayed, index: number, word: number): void {
  const { layout, stages, microbatches } = of.schedule;
  const code = wordCode(word);
  const microbatch = layout.field(word); // counted from 1; 0: none
  const fits = microbatch === 0 ? code >= Code.Unshard && code <= Code.ReduceGrad : microbatch <= microbatches;
  if (layout.stage(word) >= stages || !fits) outOfRange(of, index, word);
}

function outOfRange({ caller, schedule }: Replayed, index: number, word: number): never {
  const { stages, microbatches } = schedule;
  throw new ScheduleError(
    'BAD_SCHEDULE',
    `${caller}: ${schedule.format(word)} (cell ${index}) has no microbatch or is outside ${stages} stages and ${microbatches} microbatches; validate(schedule) lists what is wrong`,
  );
}

/** The parts of a composite, checked. */
export function checkedLeaves(of: Replayed, index: number, word: number): readonly number[] {
  const leaves = of.schedule.composites.leavesOf(word);
  for (const leaf of leaves) {
    checkCell(of, index, leaf);
    if (wordCode(leaf) > Code.B) {
      throw new ScheduleError(
        'UNSUPPORTED',
        `${of.caller}: ${of.schedule.format(word)} overlaps something other than F, I, W and B; write it as its own action`,
      );
    }
  }
  return leaves;
}
