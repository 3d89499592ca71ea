/** @file The range of stages and microbatches in a schedule's cells. */

import { isComposite } from './packed.ts';
import type { Schedule } from './schedule.ts';

/** One more than the highest stage, and than the highest microbatch field (microbatch + 1, 0 for none). */
export interface Extent {
  readonly stages: number;
  readonly fields: number;
}

/** The extent by a schedule's own numbers, for schedules whose cells are known to keep to them. */
export function claimed({ stages, microbatches }: Schedule): Extent {
  return { stages, fields: microbatches + 1 };
}

/** The extent of the cells, at least that of the schedule's own numbers. */
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
