/** @file How far the numbers in a schedule's cells go. */

import { isComposite } from './packed.ts';
import type { Schedule } from './schedule.ts';

/** One more than the highest stage, and than the highest microbatch field (microbatch + 1, 0 for none). */
export interface Extent {
  readonly stages: number;
  readonly fields: number;
}

/** What a schedule says of itself; right for schedules that are known to keep to it. */
export function claimed({ stages, microbatches }: Schedule): Extent {
  return { stages, fields: microbatches + 1 };
}

/** What occurs in the cells, at least what the schedule says. */
export function measure(schedule: Schedule): Extent {
  const { layout } = schedule;
  let stages = schedule.stages;
  let field = schedule.microbatches;
  for (const row of schedule.rows) {
    for (let i = 0; i < row.length; i++) {
      const word = row[i]!;
      if (isComposite(word) || word === 0) continue;
      if (layout.stage(word) >= stages) stages = layout.stage(word) + 1;
      if (layout.field(word) > field) field = layout.field(word);
    }
  }
  for (const leaf of schedule.composites.leaves) {
    stages = Math.max(stages, layout.stage(leaf) + 1);
    field = Math.max(field, layout.field(leaf));
  }
  return { stages, fields: field + 1 };
}
