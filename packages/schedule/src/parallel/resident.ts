/** @file Bytes of parameters that a rank holds while it goes through its row: exact, and the same at every speed. */

import { Code, wordCode } from '../model/packed.ts';
import type { Schedule } from '../model/schedule.ts';
import type { ResidencyTable } from './data-parallel.ts';

/** What a rank holds at most. */
export interface ResidentPeak {
  readonly rank: number;
  /** Bytes of its shards, or of its whole parameters where nothing is sharded: what is there between steps. */
  readonly base: number;
  /** Most bytes at once, shards and unsharded stages together. */
  readonly peak: number;
  /** The UNSHARD that reaches the peak; -1 where there is none. */
  readonly slot: number;
}

/**
 * The peak of each rank: UNSHARD adds the bytes of a stage when its turn comes, RESHARD gives them back. Times do not enter.
 * Only with a level of `parameters` do shards stay in place of the whole.
 */
export function residentPeaks(schedule: Schedule, table: ResidencyTable, sharded: boolean): ResidentPeak[] {
  const { layout, stageToRank } = schedule;
  const base = new Float64Array(schedule.ranks);
  stageToRank.forEach((rank, stage) => {
    if (rank >= 0) base[rank]! += sharded ? table.bytes[stage]! / table.shards : table.bytes[stage]!;
  });
  return schedule.rows.map((row, rank) => {
    let held = base[rank]!;
    let peak = held;
    let word = 0;
    for (let i = 0; i < row.length; i++) {
      const code = wordCode(row[i]!);
      if (code === Code.Unshard) held += table.gathered[layout.stage(row[i]!)]!;
      else if (code === Code.Reshard) held -= table.gathered[layout.stage(row[i]!)]!;
      if (held > peak) {
        peak = held;
        word = i + 1;
      }
    }
    return { rank, base: base[rank]!, peak, slot: word - 1 };
  });
}
