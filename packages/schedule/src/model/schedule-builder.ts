/** @file Builds a schedule cell by cell. */

import { ColumnBuilder } from './column-builder.ts';
import { Schedule } from './schedule.ts';

/**
 * Builds a schedule: `push` per action, `bubble`, `overlap`, then `finish`. Generators that know their shape may write
 * words straight into `row(rank)`.
 * @example const b = new ScheduleBuilder({ name: 'mine', ranks: 1, stages: 1, microbatches: 1 });
 *   b.push(0, Code.F, 0, 0); b.push(0, Code.B, 0, 0); b.finish()
 */
export class ScheduleBuilder extends ColumnBuilder {
  /** The schedule; the builder must not be used afterwards. */
  finish(): Schedule {
    return new Schedule(this.columns());
  }
}
