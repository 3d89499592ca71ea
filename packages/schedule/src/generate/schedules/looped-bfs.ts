/** @file Looped BFS: GPipe with several stages per rank, breadth first. */

import { Code } from '../../model/packed.ts';
import { stageToRank } from '../../model/placement.ts';
import { ScheduleBuilder } from '../../model/schedule-builder.ts';
import type { ScheduleDefinition } from './definition.ts';

/** All microbatches through one local stage before the next; backwards in the opposite order. */
export const loopedBfs: ScheduleDefinition = {
  name: 'LoopedBFS',
  aliases: ['ScheduleLoopedBFS'],
  summary: 'GPipe over several stages per rank: all microbatches through a stage before the next one.',
  placement: 'loop',
  stagesPerRank: { default: 2, least: 1, most: Infinity },
  inTorch: true,
  usesCosts: false,
  usesMemoryLimit: false,
  hasBackward: true,
  generate(shape) {
    const { ranks, stages, stagesPerRank, microbatches, compat } = shape;
    const capacity = 2 * stagesPerRank * microbatches + (compat === 'torch' ? 2 * ranks : 0);
    const builder = new ScheduleBuilder({ ...shape, stageToRank: stageToRank({ ranks, stages }), capacity });
    for (let rank = 0; rank < ranks; rank++) {
      if (compat === 'torch') builder.bubble(rank, rank);
      for (let stage = rank; stage < stages; stage += ranks) {
        for (let m = 0; m < microbatches; m++) builder.push(rank, Code.F, stage, m);
      }
      if (compat === 'torch') builder.bubble(rank, 2 * (ranks - 1 - rank));
      for (let stage = stages - ranks + rank; stage >= 0; stage -= ranks) {
        for (let m = microbatches - 1; m >= 0; m--) builder.push(rank, Code.B, stage, m);
      }
    }
    return builder.finish();
  },
};
