/** @file Interleaved 1F1B: 1F1B over several stages per rank. */

import { Code } from '../../model/packed.ts';
import { stageToRank } from '../../model/placement.ts';
import { ScheduleBuilder } from '../../model/schedule-builder.ts';
import type { ScheduleDefinition } from './definition.ts';
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
    const builder = new ScheduleBuilder({ ...shape, stageToRank: stageToRank({ ranks, stages }), capacity: 0 });
    const { layout } = builder;
    const streams = interleavedStreams(shape, layout, { forward: Code.F, backward: Code.B });
    const { forwards, backwards, perRound } = streams;
    for (let rank = 0; rank < ranks; rank++) {
      const row = builder.row(rank);
      const warmup = rankWarmupOps({ ranks, rank, stagesPerRank, perRound, microbatches, lead: 2 });
      const gap = warmup > 0 ? Math.max(0, stagesPerRank * ranks + 2 * (ranks - 1 - rank) - warmup - rank) : 0;
      const bubbles = torch ? { front: rank, gap, coolDown: 1 } : { front: 0, gap: 0, coolDown: 0 };
      row.length = bubbles.front + bubbles.gap + 2 * total + bubbles.coolDown * warmup;
      const words = (row.words = new Int32Array(row.length));
      let slot = bubbles.front;
      for (let k = 0; k < warmup; k++) words[slot++] = layout.shifted(forwards[k]!, rank); // warm up: n(F)
      slot += bubbles.gap;
      for (let k = 0; k < total - warmup; k++) {
        words[slot++] = layout.shifted(forwards[warmup + k]!, rank); // steady: n(FB)
        words[slot++] = layout.shifted(backwards[k]!, rank);
      }
      for (let k = total - warmup; k < total; k++) {
        slot += bubbles.coolDown;
        words[slot++] = layout.shifted(backwards[k]!, rank); // cool down: n(B)
      }
    }
    return builder.finish();
  },
};
