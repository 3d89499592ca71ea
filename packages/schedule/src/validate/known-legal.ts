/** @file Schedules that are known to keep the rules, so that they are not checked again. */

import type { Schedule } from '../model/schedule.ts';

const legal = new WeakSet<Schedule>();

/** Notes that a schedule keeps the rules: it was generated here, or checked. */
export function markLegal(schedule: Schedule): Schedule {
  legal.add(schedule);
  return schedule;
}

/** Whether a schedule is known to keep the rules; false says nothing. */
export function isKnownLegal(schedule: Schedule): boolean {
  return legal.has(schedule);
}
