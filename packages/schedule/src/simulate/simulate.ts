/** @file `simulate`: a schedule and costs in, the times of every action out. */

import { resolveCosts } from '../costs/cost-table.ts';
import type { Costs } from '../costs/costs.ts';
import { Schedule, type ScheduleData } from '../model/schedule.ts';
import { replay } from './replay.ts';
import { Simulation } from './simulation.ts';

/**
 * Replays a schedule with costs: compute-only orders (messages implied by the stage graph) and lowered ones (sends,
 * receives and collectives as written). An order that cannot go on is a ScheduleError of code DEADLOCK.
 * @example simulate(buildSchedule('1F1B', { ranks: 4, microbatches: 8 }), { F: 1, B: 2 }).makespan // 33
 */
export function simulate(schedule: Schedule | ScheduleData, costs: Costs = {}): Simulation {
  const given = Schedule.from(schedule);
  const table = resolveCosts('simulate', costs, given.stages);
  return new Simulation(given, table, replay('simulate', given, table));
}
