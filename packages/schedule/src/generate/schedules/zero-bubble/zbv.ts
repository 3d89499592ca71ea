/** @file ZBV: zero bubble with two stages per rank placed in a V. */

import { Code } from '../../../model/packed.ts';
import { stageToRank } from '../../../model/placement.ts';
import { ScheduleBuilder } from '../../../model/schedule-builder.ts';
import type { ScheduleDefinition } from '../definition.ts';

/** Planned for at least 2P-1 microbatches; those beyond the real number are left out (bubbles in the reference). */
export const zbv: ScheduleDefinition = {
  name: 'ZBVZeroBubble',
  aliases: ['ScheduleZBVZeroBubble', 'ZBV'],
  summary: 'Two stages per rank in a V: no bubble when F, I and W take the same time, memory as 1F1B.',
  placement: 'v',
  stagesPerRank: { default: 2, least: 2, most: 2 },
  inTorch: true,
  usesCosts: false,
  usesMemoryLimit: false,
  hasBackward: true,
  generate(shape) {
    const { ranks, stages, microbatches, compat } = shape;
    const planned = Math.max(2 * ranks - 1, microbatches);
    const placement = stageToRank({ ranks, stages, style: 'v' });
    const builder = new ScheduleBuilder({
      ...shape,
      stageToRank: placement,
      capacity: compat === 'torch' ? 6 * planned + ranks : 6 * microbatches,
    });
    const { F, I, W } = Code;
    for (let rank = 0; rank < ranks; rank++) {
      const row = builder.row(rank);
      const down = rank; // the stage on the way down the V
      const up = stages - 1 - rank; // the stage on the way up
      const emit = (code: number, stage: number, m: number): void => {
        if (m < microbatches) row.push(builder.layout.pack(code, stage, m));
        else if (compat === 'torch') row.push(0);
      };
      const ahead = 2 * (ranks - rank) - 1;
      // Rounds beyond which no microbatch is real, where the first of a loop is `first`.
      const rounds = (count: number, first: number = 0): number =>
        compat === 'torch' ? count : Math.min(count, microbatches - first);
      if (compat === 'torch') row.bubbles(rank);
      for (let i = 0; i < rounds(ahead); i++) emit(F, down, i); // n(F0)
      for (let i = 0; i < rounds(rank); i++) {
        emit(F, up, i); // n(F1 F0)
        emit(F, down, ahead + i);
      }
      for (let i = 0; i < rounds(ranks - rank); i++) {
        emit(F, up, rank + i); // n(F1 I1 W1)
        emit(I, up, i);
        emit(W, up, i);
      }
      for (let i = 0; i < rounds(planned - ranks); i++) {
        if (ahead + rank + i < planned) emit(F, down, ahead + rank + i); // n(F0 I0 W0 F1 I1 W1)
        emit(I, down, i);
        emit(W, down, i);
        emit(F, up, ranks + i);
        emit(I, up, ranks - rank + i);
        emit(W, up, ranks - rank + i);
      }
      for (let i = 0; i < rounds(rank, planned - ranks); i++) {
        emit(I, down, planned - ranks + i); // n(I0 I1)
        emit(I, up, planned - rank + i);
      }
      for (let i = 0; i < rounds(ranks - rank, planned - ranks); i++) {
        emit(I, down, planned - ranks + rank + i); // n(I0 W0)
        emit(W, down, planned - ranks + i);
      }
      for (let i = planned - rank; i < rounds(planned); i++) emit(W, up, i); // n(W1)
      for (let i = planned - rank; i < rounds(planned); i++) emit(W, down, i); // n(W0)
    }
    return builder.finish();
  },
};
