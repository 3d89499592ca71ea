/** @file ZB-H1: zero-bubble schedule with the memory of 1F1B. */

import type { ScheduleDefinition } from '../definition.ts';
import { handcrafted } from './zb-handcrafted.ts';

/** Bubble (p-1)(F+I-W); rank r holds p-r microbatches and the weight part of r more. */
export const zbh1: ScheduleDefinition = {
  name: 'ZBH1',
  aliases: ['ZeroBubbleH1'],
  summary:
    'Backward in two halves, weight gradients deferred: a third of the bubble of 1F1B at F = I = W, with its memory.',
  placement: 'loop',
  stagesPerRank: { default: 1, least: 1, most: 1 },
  inTorch: false,
  usesCosts: false,
  usesMemoryLimit: false,
  hasBackward: true,
  generate(shape) {
    return handcrafted(shape, { warmup: (rank) => shape.ranks - rank, pending: (rank) => rank });
  },
};
