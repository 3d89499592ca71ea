/**
 * @file The rules of data parallelism, beyond those that hold cell by cell: the collectives of a level are there, all replicas
 * start them in the same order, and no rank holds more than it may.
 *
 * Replicas of a rank that run the same row start the same collectives in the same order, and what a pipeline waits for is the
 * same in all of them; so one that can run alone can run beside its replicas. Where replicas run different schedules, the
 * collectives of each rank are compared one by one: where they differ, one replica waits for what another starts later.
 */

import { fits } from '../costs/memory-limit.ts';
import { Code, wordCode } from '../model/packed.ts';
import { Schedule, type ScheduleData } from '../model/schedule.ts';
import { type DataParallelRules, resolveResidency } from '../parallel/data-parallel.ts';
import { residentPeaks } from '../parallel/resident.ts';
import type { ViolationList } from './violation.ts';

/** Adds `collective-missing`, `shard-state` for levels without shards of parameters, and `resident-bytes`. */
export function checkLevel(schedule: Schedule, rules: DataParallelRules, violations: ViolationList): void {
  const sharded = rules.level === 'parameters';
  const { layout, stages, stageToRank } = schedule;
  const reduced = new Uint8Array(stages);
  const unsharded = new Uint8Array(stages);
  const trained = new Uint8Array(stages);
  schedule.forEachLeaf(({ rank, slot, code, stage }) => {
    if (stage >= stages) return;
    if (code === Code.ReduceGrad) reduced[stage] = 1;
    else if (code === Code.Unshard || code === Code.Reshard) {
      if (code === Code.Unshard) unsharded[stage] = 1;
      if (!sharded)
        violations.at(
          'shard-state',
          rank,
          slot,
          `at level '${rules.level}' parameters are whole all the time; remove it`,
        );
    } else if (code === Code.B || code === Code.W) trained[stage] = 1;
  });
  for (let stage = 0; stage < stages; stage++) {
    const rank = stageToRank[stage] ?? null;
    const missing = (action: string, why: string): void =>
      violations.add('collective-missing', rank, `rank ${rank}: ${action} is missing: ${why}`);
    if (trained[stage] === 1 && reduced[stage] === 0)
      missing(
        schedule.format(layout.pack(Code.ReduceGrad, stage, -1)),
        `the gradients of stage ${stage} would differ between replicas; add it behind the last backward`,
      );
    if (sharded && unsharded[stage] === 0)
      missing(
        schedule.format(layout.pack(Code.Unshard, stage, -1)),
        `stage ${stage} is sharded at level 'parameters'; add it before the first action of the stage`,
      );
  }
  const residency = resolveResidency('validate', rules, schedule);
  for (const { rank, peak, slot } of residentPeaks(schedule, residency, sharded)) {
    if (fits(peak, residency.limits[rank]!)) continue;
    const says = `rank ${rank} holds ${peak} bytes of parameters, memoryLimit is ${residency.limits[rank]}`;
    if (slot < 0) violations.add('resident-bytes', rank, `${says}, which its shards alone exceed; use more shards`);
    else
      violations.at('resident-bytes', rank, slot, `${says}; move it behind a RESHARD, or reshard another stage first`);
  }
}

/** Adds `collective-order`: every replica starts the same collectives on a rank, in the same order. */
export function checkReplicas(
  schedule: Schedule,
  replicas: readonly (Schedule | ScheduleData)[],
  violations: ViolationList,
): void {
  replicas.forEach((input, index) => {
    const other = Schedule.from(input);
    schedule.rows.forEach((row, rank) => {
      const own = collectivesOf(row);
      const theirs = collectivesOf(other.rows[rank] ?? new Int32Array(0));
      for (let i = 0; i < Math.max(own.length, theirs.length); i++) {
        const here = own[i] === undefined ? null : schedule.format(row[own[i]!]!);
        const there = theirs[i] === undefined ? null : other.format(other.rows[rank]![theirs[i]!]!);
        if (here === there) continue;
        const says = `replica ${index + 1} starts ${there ?? 'nothing'} where this one starts ${here ?? 'nothing'}, as collective ${i + 1} of rank ${rank}; give all replicas one order`;
        if (own[i] === undefined) violations.add('collective-order', rank, `rank ${rank}: ${says}`);
        else violations.at('collective-order', rank, own[i]!, says);
        return;
      }
    });
  });
}

/** Slots of the actions of a row in which ranks of a group meet; RESHARD only frees. */
function collectivesOf(row: Int32Array): number[] {
  const found: number[] = [];
  for (let slot = 0; slot < row.length; slot++) {
    const code = wordCode(row[slot]!);
    if (code === Code.Unshard || code === Code.ReduceGrad) found.push(slot);
  }
  return found;
}
