/** @file From a name and a shape to a schedule. */

import type { Costs } from '../costs/costs.ts';
import { checkChoice, checkCount, checkOptions, ScheduleError, show } from '../model/errors.ts';
import { claimed } from '../model/extent.ts';
import { Schedule } from '../model/schedule.ts';
import { markLegal } from '../validate/known-legal.ts';
import { alignWithin } from './align.ts';
import { checkPeak } from './peak-check.ts';
import { findSchedule } from './registry.ts';
import { refuseShape, type ScheduleShape } from './schedules/definition.ts';

/** The shape of a schedule. */
export interface BuildScheduleOptions {
  readonly ranks: number;
  /** Stages on each rank; default: 1, or 2 where a schedule is made for several. */
  readonly stagesPerRank?: number;
  /** All stages, instead of `stagesPerRank`; every rank gets as many, so it is a multiple of `ranks`. */
  readonly stages?: number;
  readonly microbatches: number;
  /** `torch`: exactly PyTorch's order, its faults and refusals included; `torch-2.15` is the same. */
  readonly compat?: 'torch' | 'torch-2.15';
  /** Durations, for schedules that depend on them; default F = I = W = 1. */
  readonly costs?: Costs;
  /**
   * Activation memory a rank may hold, one number or one per rank, in the unit of `costs.activation` (by default 1 per
   * stage and microbatch). ZB1P, ZB2P and AdaptiveV plan for it; the others have a fixed order and are refused beyond it.
   */
  readonly memoryLimit?: number | readonly number[];
}

const optionNames = ['ranks', 'stagesPerRank', 'stages', 'microbatches', 'compat', 'costs', 'memoryLimit'];

/**
 * Builds a schedule; bubbles stand where a rank waits if every action takes one slot.
 * @example buildSchedule('1F1B', { ranks: 2, microbatches: 3 }).toString() // '0F0 0F1 . 0B0 0F2 0B1 . 0B2\n. 1F0 1B0 1F1 1B1 1F2 1B2'
 */
export function buildSchedule(name: string, options: BuildScheduleOptions): Schedule {
  const definition = findSchedule(name);
  if (typeof options !== 'object' || options === null) {
    throw new ScheduleError(
      'BAD_OPTION',
      `buildSchedule: expected options such as { ranks: 4, microbatches: 8 }, got ${show(options)}`,
    );
  }
  checkOptions('buildSchedule', options, optionNames);
  checkChoice('buildSchedule', 'compat', options.compat, ['torch', 'torch-2.15']);
  const compat = options.compat === undefined ? undefined : 'torch'; // the orders are the same in both
  const ranks = checkCount('buildSchedule', 'ranks', options.ranks);
  const microbatches = checkCount('buildSchedule', 'microbatches', options.microbatches);
  const stagesPerRank = stagesPerRankOf(options) ?? definition.stagesPerRank.default;
  const shape: ScheduleShape = {
    name: definition.name,
    ranks,
    stagesPerRank,
    stages: ranks * stagesPerRank,
    microbatches,
    compat,
    costs: options.costs,
    memoryLimit: options.memoryLimit,
  };
  if (compat === 'torch' && !definition.inTorch) {
    throw new ScheduleError('UNSUPPORTED', `buildSchedule: PyTorch has no ${definition.name}; leave compat out`, {
      name: definition.name,
    });
  }
  const { least, most } = definition.stagesPerRank;
  if (stagesPerRank < least || stagesPerRank > most) {
    const wanted =
      least === most
        ? `exactly ${least} stage${least === 1 ? '' : 's'} per rank`
        : `${least} to ${most} stages per rank`;
    const given = options.stagesPerRank === undefined ? 'stages' : 'stagesPerRank';
    const fitting = given === 'stages' ? least * ranks : least;
    const wayOut = most === 1 ? `leave ${given} out, or use LoopedBFS or Interleaved1F1B` : `use ${given}: ${fitting}`;
    refuseShape(shape, `it has ${wanted}`, wayOut);
  }
  const schedule = definition.generate(shape);
  if (!definition.usesMemoryLimit && definition.hasBackward) checkPeak(shape, schedule);
  if (compat === 'torch') return schedule;
  return markLegal(new Schedule(schedule, () => alignWithin(schedule, claimed(schedule)).rows));
}

/** Stages on each rank, as given or from the number of all stages; undefined where neither is given. */
function stagesPerRankOf({ ranks, stagesPerRank, stages }: BuildScheduleOptions): number | undefined {
  if (stagesPerRank !== undefined) checkCount('buildSchedule', 'stagesPerRank', stagesPerRank);
  if (stages === undefined) return stagesPerRank;
  checkCount('buildSchedule', 'stages', stages);
  if (stagesPerRank !== undefined && stages !== ranks * stagesPerRank) {
    throw new ScheduleError(
      'BAD_SHAPE',
      `buildSchedule: stages is ${stages}, but stagesPerRank ${stagesPerRank} on ${ranks} ranks makes ${ranks * stagesPerRank}; leave one of the two out`,
      { stages, stagesPerRank, ranks },
    );
  }
  if (stages % ranks !== 0) {
    const below = stages - (stages % ranks);
    throw new ScheduleError(
      'BAD_SHAPE',
      `buildSchedule: stages (${stages}) must be a multiple of ranks (${ranks}), so that every rank has as many; use ${below === 0 ? '' : `${below} or `}${below + ranks} stages, or write a schedule with a placement of your own`,
      { stages, ranks },
    );
  }
  return stages / ranks;
}
