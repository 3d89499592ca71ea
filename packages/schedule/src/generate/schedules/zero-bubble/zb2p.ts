/** @file ZB-2p: the zero-bubble heuristic within twice the memory of 1F1B. */

import type { ScheduleDefinition } from '../definition.ts';
import { zeroBubbleHeuristic } from './zb-heuristic.ts';

/** Limit: 2p microbatches on each rank, or `memoryLimit`. */
export const zb2p: ScheduleDefinition = {
  name: 'ZB2P',
  aliases: [],
  summary:
    'Fits backward halves to measured times, holding at most 2p microbatches (or memoryLimit) per rank: next to no bubble.',
  placement: 'loop',
  stagesPerRank: { default: 1, least: 1, most: 1 },
  inTorch: false,
  usesCosts: true,
  usesMemoryLimit: true,
  hasBackward: true,
  generate(shape) {
    return zeroBubbleHeuristic(shape, 2);
  },
};
