/** @file 1F1B: after a warm-up of forwards, one forward and one backward in turn. */

import { Code } from '../../model/packed.ts';
import { stageToRank } from '../../model/placement.ts';
import { ScheduleBuilder } from '../../model/schedule-builder.ts';
import { checkTorchMicrobatches, type ScheduleDefinition } from './definition.ts';

/** Stage = rank; the reference numbers the last rank's forwards from 1 and refuses fewer microbatches than stages. */
export const oneFOneB: ScheduleDefinition = {
  name: '1F1B',
  aliases: ['Schedule1F1B', 'OneFOneB', 'PipeDreamFlush'],
  summary: 'One forward, one backward: as fast as GPipe, but keeps at most one activation for each remaining stage.',
  placement: 'loop',
  stagesPerRank: { default: 1, least: 1, most: 1 },
  inTorch: true,
  usesCosts: false,
  usesMemoryLimit: false,
  hasBackward: true,
  generate(shape) {
    const { ranks, stages, microbatches, compat } = shape;
    checkTorchMicrobatches(shape);
    const builder = new ScheduleBuilder({
      ...shape,
      stageToRank: stageToRank({ ranks, stages }),
      capacity: 2 * microbatches + 1,
    });
    for (let rank = 0; rank < ranks; rank++) {
      const warmup = Math.min(ranks - 1 - rank, microbatches);
      const misnumbering = compat === 'torch' && warmup === 0 ? 1 : 0;
      for (let m = 0; m < warmup; m++) builder.push(rank, Code.F, rank, m); // warm up: n(F)
      for (let m = 0; m < microbatches - warmup; m++) {
        builder.push(rank, Code.F, rank, warmup + m + misnumbering); // steady: n(FB)
        builder.push(rank, Code.B, rank, m);
      }
      for (let m = microbatches - warmup; m < microbatches; m++) builder.push(rank, Code.B, rank, m); // cool down: n(B)
      if (compat === 'torch') builder.push(rank, Code.ReduceGrad, rank, -1);
    }
    return builder.finish();
  },
};
