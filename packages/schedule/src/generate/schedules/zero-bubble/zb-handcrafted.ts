/** @file The common pattern of ZB-H1 and ZB-H2: one stage per rank, weight work put off until it fills the bubble at the end. */

import { Code } from '../../../model/packed.ts';
import { stageToRank } from '../../../model/placement.ts';
import type { Schedule } from '../../../model/schedule.ts';
import { ScheduleBuilder } from '../../../model/schedule-builder.ts';
import type { ScheduleShape } from '../definition.ts';

/** How far ahead a rank runs. */
export interface HandcraftedDepth {
  /** Forwards before the first I. */
  warmup(rank: number): number;
  /** W that may be pending before one is done. */
  pending(rank: number): number;
}

/** Rows `warm-up: n(F)`, `steady: n(I [W] F)`, `cool-down: n(I W)`, `rest: n(W)`. */
export function handcrafted(shape: ScheduleShape, depth: HandcraftedDepth): Schedule {
  const { ranks, stages, microbatches } = shape;
  const builder = new ScheduleBuilder({
    ...shape,
    stageToRank: stageToRank({ ranks, stages }),
    capacity: 3 * microbatches,
  });
  for (let rank = 0; rank < ranks; rank++) {
    const warmup = Math.min(depth.warmup(rank), microbatches);
    let weights = 0;
    for (let m = 0; m < warmup; m++) builder.push(rank, Code.F, rank, m); // warm-up: n(F)
    for (let m = 0; m < microbatches; m++) {
      builder.push(rank, Code.I, rank, m);
      const forward = warmup + m;
      const steady = forward < microbatches;
      if (!steady || m + 1 - weights > depth.pending(rank)) builder.push(rank, Code.W, rank, weights++);
      if (steady) builder.push(rank, Code.F, rank, forward);
    }
    while (weights < microbatches) builder.push(rank, Code.W, rank, weights++); // rest: n(W)
  }
  return builder.finish();
}
