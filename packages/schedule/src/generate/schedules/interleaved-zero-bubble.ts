/** @file Interleaved zero bubble: interleaved 1F1B with the backward split, weight work filling the gaps. */

import { Code, withCode, wordCode } from '../../model/packed.ts';
import { stageToRank } from '../../model/placement.ts';
import type { Schedule } from '../../model/schedule.ts';
import { ScheduleBuilder } from '../../model/schedule-builder.ts';
import type { ScheduleDefinition } from './definition.ts';
import { interleavedStreams, rankWarmupOps } from './interleaved-streams.ts';

/** On rank r the weight work lags the input work by r actions. */
export const interleavedZeroBubble: ScheduleDefinition = {
  name: 'InterleavedZeroBubble',
  aliases: ['ScheduleInterleavedZeroBubble'],
  summary: 'Interleaved 1F1B with the backward split in two; weight gradients fill the gaps.',
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
    const builder = new ScheduleBuilder({
      ...shape,
      stageToRank: stageToRank({ ranks, stages }),
      capacity: 3 * total + (torch ? ranks : 0),
    });
    const { layout } = builder;
    const streams = interleavedStreams(shape, layout, { forward: Code.F, backward: Code.I });
    const { forwards, backwards, perRound } = streams;
    for (let rank = 0; rank < ranks; rank++) {
      const row = builder.row(rank);
      const warmup = rankWarmupOps({ ranks, rank, stagesPerRank, perRound, microbatches, lead: 1 });
      if (torch) row.bubbles(rank);
      for (let k = 0; k < warmup; k++) row.push(layout.shifted(forwards[k]!, rank)); // warm up: n(F)
      if (torch && warmup > 0) row.bubbles(ranks - 1 - rank);
      for (let k = 0; k < total; k++) {
        if (k < total - warmup) row.push(layout.shifted(forwards[warmup + k]!, rank)); // steady: n(FIW), then cool down: n(IW)
        row.push(layout.shifted(backwards[k]!, rank));
        if (k >= rank) row.push(layout.shifted(withCode(backwards[k - rank]!, Code.W), rank));
      }
      for (let k = Math.max(0, total - rank); k < total; k++)
        row.push(layout.shifted(withCode(backwards[k]!, Code.W), rank)); // drain: n(W)
    }
    const raw = builder.finish();
    return torch ? addBubblesToActions(raw) : raw;
  },
};

/** The reference's lock-step replay: a forward waits for the stage before it, nothing else waits. */
function addBubblesToActions(schedule: Schedule): Schedule {
  const { rows, layout, stages, microbatches, ranks } = schedule;
  const done = new Uint8Array(stages * microbatches);
  const cursor = new Int32Array(ranks);
  const spaced = new ScheduleBuilder({
    name: schedule.name,
    ranks,
    stages,
    microbatches,
    stageToRank: schedule.stageToRank,
  });
  let open = ranks;
  while (open > 0) {
    const finished: number[] = [];
    open = 0;
    for (let rank = 0; rank < ranks; rank++) {
      const row = rows[rank]!;
      const slot = cursor[rank]!;
      if (slot >= row.length) continue;
      const word = row[slot]!;
      const stage = layout.stage(word);
      const key = stage * microbatches + layout.microbatch(word);
      const isForward = wordCode(word) === Code.F;
      if (isForward && stage > 0 && done[key - microbatches] === 0) {
        spaced.bubble(rank);
      } else {
        if (isForward) finished.push(key);
        spaced.row(rank).push(word);
        cursor[rank] = slot + 1;
      }
      if (cursor[rank]! < row.length) open++;
    }
    for (const key of finished) done[key] = 1;
  }
  return spaced.finish();
}
