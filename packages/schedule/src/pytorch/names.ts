/** @file Schedules under the names PyTorch users look for. */

import { type BuildScheduleOptions, buildSchedule } from '../generate/build-schedule.ts';
import type { ScheduleDefinition } from '../generate/definition.ts';
import { findSchedule } from '../generate/registry.ts';
import type { Schedule } from '../model/schedule.ts';

/** Builds one schedule: `Schedule1F1B({ ranks: 4, microbatches: 8 })`. Called without `new`: a schedule is data. */
export interface ScheduleClass {
  (options: BuildScheduleOptions): Schedule;
  /** What the registry knows of it. */
  readonly definition: ScheduleDefinition;
}

/**
 * What builds a schedule, by its name in any case or by PyTorch's class name.
 * @example getScheduleClass('1f1b')({ ranks: 2, microbatches: 4 }).name // '1F1B'
 */
export function getScheduleClass(name: string): ScheduleClass {
  const definition = findSchedule(name);
  return Object.assign((options: BuildScheduleOptions): Schedule => buildSchedule(definition.name, options), {
    definition,
  });
}

/** Forwards only. @example ScheduleForwardOnly({ ranks: 4, microbatches: 8 }) */
export const ScheduleForwardOnly: ScheduleClass = getScheduleClass('ForwardOnly');
/** All forwards, then all backwards. @example ScheduleGPipe({ ranks: 4, microbatches: 8 }) */
export const ScheduleGPipe: ScheduleClass = getScheduleClass('GPipe');
/** One forward, one backward. @example Schedule1F1B({ ranks: 4, microbatches: 8 }) */
export const Schedule1F1B: ScheduleClass = getScheduleClass('1F1B');
/** GPipe over several stages per rank. @example ScheduleLoopedBFS({ ranks: 4, stagesPerRank: 2, microbatches: 8 }) */
export const ScheduleLoopedBFS: ScheduleClass = getScheduleClass('LoopedBFS');
/** 1F1B over several stages per rank. @example ScheduleInterleaved1F1B({ ranks: 4, stagesPerRank: 2, microbatches: 8 }) */
export const ScheduleInterleaved1F1B: ScheduleClass = getScheduleClass('Interleaved1F1B');
/** The same with split backwards. @example ScheduleInterleavedZeroBubble({ ranks: 4, stagesPerRank: 2, microbatches: 8 }) */
export const ScheduleInterleavedZeroBubble: ScheduleClass = getScheduleClass('InterleavedZeroBubble');
/** Zero bubble in a V. @example ScheduleZBVZeroBubble({ ranks: 4, microbatches: 8 }) */
export const ScheduleZBVZeroBubble: ScheduleClass = getScheduleClass('ZBVZeroBubble');
/** DualPipe in a V. @example ScheduleDualPipeV({ ranks: 4, microbatches: 8 }) */
export const ScheduleDualPipeV: ScheduleClass = getScheduleClass('DualPipeV');
