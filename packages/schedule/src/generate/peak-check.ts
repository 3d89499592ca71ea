/** @file Holds an order against a memory limit: what a rank holds depends on the order of its row alone. */

import { type CostTable, resolveCosts } from '../costs/cost-table.ts';
import { fits, limitTooLow, resolveMemoryLimit } from '../costs/memory-limit.ts';
import { Code, wordCode } from '../model/packed.ts';
import type { Schedule } from '../model/schedule.ts';
import type { ScheduleShape } from './schedules/definition.ts';

/** Most activation memory each rank holds at once. */
function activationPeaks(schedule: Schedule, costs: CostTable): Float64Array {
  const { layout, composites } = schedule;
  return Float64Array.from(schedule.rows, (row) => {
    let held = 0;
    let peak = 0;
    for (const word of row) {
      const leaves = composites.leavesOf(word);
      for (const leaf of leaves) if (wordCode(leaf) === Code.F) held += costs.activation[layout.stage(leaf)]!;
      if (held > peak) peak = held;
      for (const leaf of leaves) held -= givenBack(costs, wordCode(leaf), layout.stage(leaf));
    }
    return peak;
  });
}

/** Memory an action gives back at its end. */
function givenBack(costs: CostTable, code: number, stage: number): number {
  const activation = costs.activation[stage]!;
  const kept = activation * costs.retained[stage]!;
  return code === Code.B ? activation : code === Code.I ? activation - kept : code === Code.W ? kept : 0;
}

/** Refuses a schedule whose order is fixed and holds more than `shape.memoryLimit`. */
export function checkPeak(shape: ScheduleShape, schedule: Schedule): void {
  if (shape.memoryLimit === undefined) return;
  const limits = resolveMemoryLimit(shape.name, shape.memoryLimit, new Float64Array(shape.ranks));
  activationPeaks(schedule, resolveCosts(shape.name, shape.costs ?? {}, schedule.stages)).forEach((needed, rank) => {
    if (fits(needed, limits[rank]!)) return;
    throw limitTooLow(shape.name, {
      rank,
      limit: limits[rank]!,
      needed,
      what: 'its fixed order',
      wayOut: 'use ZB1P or AdaptiveV, which fit a limit',
    });
  });
}
