/** @file ZB-H2: zero-bubble schedule that runs further ahead and has no bubble when F, I and W take the same time. */

import type { ScheduleDefinition } from '../definition.ts';
import { handcrafted } from './zb-handcrafted.ts';

/** Bubble (p-1)(F+I-2W) by span; rank r holds 2(p-r)-1 microbatches and the weight part of 2r more. */
export const zbh2: ScheduleDefinition = {
  name: 'ZBH2',
  aliases: ['ZeroBubbleH2'],
  summary: 'As ZB-H1 with nearly twice its memory: no rank waits between its first and last action at F = I = W.',
  placement: 'loop',
  stagesPerRank: { default: 1, least: 1, most: 1 },
  inTorch: false,
  usesCosts: false,
  usesMemoryLimit: false,
  hasBackward: true,
  generate(shape) {
    return handcrafted(shape, { warmup: (rank) => 2 * (shape.ranks - rank) - 1, pending: (rank) => 2 * rank });
  },
};
