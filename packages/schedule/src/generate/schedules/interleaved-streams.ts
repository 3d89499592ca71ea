/** @file The order in which one rank meets its (stage, microbatch) pairs in the interleaved schedules. */

import { type Layout } from '../../model/packed.ts';
import { refuseShape, type ScheduleShape } from './definition.ts';

/** Positions of rank 0; `layout.shifted(word, rank)` is the word of another rank. */
export interface InterleavedStreams {
  /** Words of the k-th forward of rank 0. */
  readonly forwards: Int32Array;
  /** Words of the k-th backward of rank 0. */
  readonly backwards: Int32Array;
  /** Microbatches of the first, longest round. */
  readonly perRound: number;
}

/**
 * Rounds of about `ranks` microbatches: in each, all of them go through the first local stage, then the next. The
 * reference wants rounds of equal length; otherwise the first ones are longer by one.
 */
export function interleavedStreams(
  shape: ScheduleShape,
  layout: Layout,
  codes: { readonly forward: number; readonly backward: number },
): InterleavedStreams {
  const { ranks, stagesPerRank, microbatches } = shape;
  const rounds = Math.max(1, Math.floor(microbatches / ranks));
  const shorter = Math.floor(microbatches / rounds);
  const longerRounds = microbatches % rounds;
  if (shape.compat === 'torch' && longerRounds !== 0) {
    const near = [microbatches - longerRounds, microbatches - longerRounds + rounds];
    refuseShape(
      shape,
      `the reference needs microbatches (${microbatches}) to be a multiple of its rounds (${rounds})`,
      `use ${near.join(' or ')} microbatches or leave compat out`,
    );
  }
  const total = stagesPerRank * microbatches;
  const forwards = new Int32Array(total);
  const backwards = new Int32Array(total);
  let k = 0;
  let first = 0;
  for (let round = 0; round < rounds; round++) {
    const count = round < longerRounds ? shorter + 1 : shorter;
    for (let chunk = 0; chunk < stagesPerRank; chunk++) {
      for (let m = first; m < first + count; m++, k++) {
        forwards[k] = layout.pack(codes.forward, chunk * ranks, m);
        backwards[k] = layout.pack(codes.backward, (stagesPerRank - 1 - chunk) * ranks, m);
      }
    }
    first += count;
  }
  return { forwards, backwards, perRound: longerRounds > 0 ? shorter + 1 : shorter };
}

/**
 * Forwards of a rank before its first backward; `lead` is 2 for full backwards, 1 for split ones.
 * @example rankWarmupOps({ ranks: 4, rank: 0, stagesPerRank: 2, perRound: 4, microbatches: 8, lead: 2 }) // 10
 */
export function rankWarmupOps(of: {
  readonly ranks: number;
  readonly rank: number;
  readonly stagesPerRank: number;
  readonly perRound: number;
  readonly microbatches: number;
  readonly lead: number;
}): number {
  return Math.min(
    (of.stagesPerRank - 1) * of.perRound + of.lead * (of.ranks - 1 - of.rank),
    of.stagesPerRank * of.microbatches,
  );
}
