/** @file Interleaved 1F1B: 1F1B over several stages per rank. */

import { Code } from '../packed.ts';
import { stageToRank } from '../placement.ts';
import { ScheduleBuilder } from '../schedule-builder.ts';
import type { ScheduleDefinition } from '../schedule-definition.ts';
import { interleavedStreams, rankWarmupOps } from './interleaved-streams.ts';

/** The more stages per rank, the shorter the warm-up in time and the more messages. */
export const interleaved1F1B: ScheduleDefinition = {
  name: 'Interleaved1F1B',
  aliases: ['ScheduleInterleaved1F1B', '1F1B-I'],
  summary: '1F1B over several stages per rank: a smaller bubble for more messages and memory.',
  placement: 'loop',
  stagesPerRank: { default: 2, least: 1, most: Infinity },
  inTorch: true,
  usesCosts: false,
  usesMemoryLimit: false,
  hasBackward: true,
  generate(shape) {
    const { ranks, stages, stagesPerRank, microbatches, compat } = shape;
    const torch = compat === 'torch';
    const total = stagesPerRank * microbatches;
    const builder = new ScheduleBuilder({ ...shape, stageToRank: stageToRank({ ranks, stages }), capacity: torch ? 0 : 2 * total });
    const streams = interleavedStreams(shape, builder.layout, { forward: Code.F, backward: Code.B });
    const { forwards, backwards, perRound } = streams;
    for (let rank = 0; rank < ranks; rank++) {
      const row = builder.row(rank);
      const own = rank << builder.layout.stageShift;
      const warmup = rankWarmupOps({ ranks, rank, stagesPerRank, perRound, microbatches, lead: 2 });
      const gap = warmup > 0 ? Math.max(0, stagesPerRank * ranks + 2 * (ranks - 1 - rank) - warmup - rank) : 0;
      if (torch) row.reserve(rank + gap + 2 * total + warmup);
      if (torch) row.bubbles(rank);
      for (let k = 0; k < warmup; k++) row.push(forwards[k]! + own); // warm up: n(F)
      if (torch) row.bubbles(gap);
      for (let k = 0; k < total - warmup; k++) {
        row.push(forwards[warmup + k]! + own); // steady: n(FB)
        row.push(backwards[k]! + own);
      }
      for (let k = total - warmup; k < total; k++) {
        if (torch) row.push(0);
        row.push(backwards[k]! + own); // cool down: n(B)
      }
    }
    return builder.finish();
  },
};
