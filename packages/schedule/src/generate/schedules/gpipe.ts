/** @file GPipe: all forwards, then all backwards. */

import { Code } from '../../model/packed.ts';
import { stageToRank } from '../../model/placement.ts';
import { ScheduleBuilder } from '../../model/schedule-builder.ts';
import type { ScheduleDefinition } from './definition.ts';

/** Stage = rank; the reference's order ends with REDUCE_GRAD and has lost its bubbles. */
export const gpipe: ScheduleDefinition = {
  name: 'GPipe',
  aliases: ['ScheduleGPipe'],
  summary: 'All forwards, then all backwards; every activation is kept until the end.',
  placement: 'loop',
  stagesPerRank: { default: 1, least: 1, most: 1 },
  inTorch: true,
  usesCosts: false,
  usesMemoryLimit: false,
  hasBackward: true,
  generate(shape) {
    const { ranks, stages, microbatches, compat } = shape;
    const builder = new ScheduleBuilder({
      ...shape,
      stageToRank: stageToRank({ ranks, stages }),
      capacity: 2 * microbatches + 1,
    });
    for (let rank = 0; rank < ranks; rank++) {
      for (let m = 0; m < microbatches; m++) builder.push(rank, Code.F, rank, m); // n(F)
      for (let m = 0; m < microbatches; m++) builder.push(rank, Code.B, rank, m); // n(B)
      if (compat === 'torch') builder.push(rank, Code.ReduceGrad, rank, -1);
    }
    return builder.finish();
  },
};
