/** @file Forward only: every microbatch through every stage, no backward. */

import { Code } from '../../model/packed.ts';
import { stageToRank } from '../../model/placement.ts';
import { ScheduleBuilder } from '../../model/schedule-builder.ts';
import type { ScheduleDefinition } from './definition.ts';

/** Inference: rank r runs its stages one after the other over all microbatches. */
export const forwardOnly: ScheduleDefinition = {
  name: 'ForwardOnly',
  aliases: ['ScheduleForwardOnly', '_ScheduleForwardOnly'],
  summary: 'Forwards only, for inference and evaluation.',
  placement: 'loop',
  stagesPerRank: { default: 1, least: 1, most: Infinity },
  inTorch: true,
  usesCosts: false,
  usesMemoryLimit: false,
  hasBackward: false,
  generate(shape) {
    const { ranks, stages, stagesPerRank, microbatches } = shape;
    const builder = new ScheduleBuilder({
      ...shape,
      stageToRank: stageToRank({ ranks, stages }),
      capacity: stagesPerRank * microbatches,
    });
    for (let rank = 0; rank < ranks; rank++) {
      const row = builder.row(rank);
      for (let stage = rank; stage < stages; stage += ranks) {
        for (let m = 0; m < microbatches; m++) row.push(builder.layout.pack(Code.F, stage, m)); // n(F)
      }
    }
    return builder.finish();
  },
};
