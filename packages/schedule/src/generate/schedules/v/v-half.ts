/** @file V-Half: V placement with half the memory of 1F1B. */

import type { ScheduleDefinition } from '../definition.ts';
import { pulledPlan } from './plan.ts';

/** Peak floor((p + 2) / 2) microbatches, that is twice as many chunks. */
export const vHalf: ScheduleDefinition = {
  name: 'VHalf',
  aliases: ['ScheduleVHalf'],
  summary: 'Two stages per rank in a V, half the memory of 1F1B on every rank, and a smaller bubble.',
  placement: 'v',
  stagesPerRank: { default: 2, least: 2, most: 2 },
  inTorch: false,
  usesCosts: false,
  usesMemoryLimit: false,
  hasBackward: true,
  generate(shape) {
    const { ranks } = shape;
    const gap = ranks % 2 === 0 ? 3 : 0; // keeps the four passes of a rank in different slots of the period
    const block = Array.from(
      { length: ranks },
      (_, r) => [2 * r, 3 * ranks - 2 - r, 3 * ranks - 1 + gap + 2 * r, 6 * ranks - 2 + gap - r] as const,
    );
    return pulledPlan(block, shape.microbatches).toSchedule(shape);
  },
};
