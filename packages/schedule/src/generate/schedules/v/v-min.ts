/** @file V-Min: V placement with the least memory that keeps the pipeline full, a third of 1F1B's. */

import type { ScheduleDefinition } from '../definition.ts';
import { pulledPlan } from './plan.ts';

/** Peak floor((p + 4) / 3) microbatches, that is twice as many chunks. */
export const vMin: ScheduleDefinition = {
  name: 'VMin',
  aliases: ['ScheduleVMin'],
  summary: 'Two stages per rank in a V, a third of the memory of 1F1B on every rank.',
  placement: 'v',
  stagesPerRank: { default: 2, least: 2, most: 2 },
  inTorch: false,
  usesCosts: false,
  usesMemoryLimit: false,
  hasBackward: true,
  generate(shape) {
    const { ranks } = shape;
    const gap = ranks % 3 === 0 ? 2 : 0; // keeps the four passes of a rank in different slots of the period
    const block = Array.from(
      { length: ranks },
      (_, r) => [r, 2 * ranks - 1 - r, 2 * ranks + gap + r, 4 * ranks + gap - 1 - r] as const,
    );
    return pulledPlan(block, shape.microbatches).toSchedule(shape);
  },
};
