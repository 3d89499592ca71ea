/** @file ZB-1p: the zero-bubble heuristic within the memory of 1F1B. */

import type { ScheduleDefinition } from '../definition.ts';
import { zeroBubbleHeuristic } from './zb-heuristic.ts';

/** Limit: p microbatches on each rank, or `memoryLimit`. PyTorch's class of that nickname is InterleavedZeroBubble. */
export const zb1p: ScheduleDefinition = {
  name: 'ZB1P',
  aliases: [],
  summary: 'Fits backward halves to measured times, holding at most p microbatches (or memoryLimit) per rank.',
  placement: 'loop',
  stagesPerRank: { default: 1, least: 1, most: 1 },
  inTorch: false,
  usesCosts: true,
  usesMemoryLimit: true,
  hasBackward: true,
  generate(shape) {
    return zeroBubbleHeuristic(shape, 1);
  },
};
