/** @file How much of a step is simulated: all of it, or of a very long one as many microbatches or ranks as show how it goes on. */
import { findSchedule, ScheduleError } from '@pipewright/schedule';
import type { Settings } from './settings.ts';

/** Actions of a step up to which it is simulated in full. */
export const mostActions = {
  /** Where every action is drawn. */
  drawn: 2_000_000,
  /** Where only time and memory are asked for. */
  counted: 6_000_000,
  /** Where the order is searched for. */
  searched: 400_000,
  /** Where the step of many ranks is continued from fewer. */
  scaled: 400_000,
} as const;

/** What a longer step is continued from: so many microbatches for each rank, fewer and more. */
const partsPerRank = [6, 8] as const;

/** Microbatches that are simulated. */
export interface Extent {
  readonly microbatches: number;
  /** A lower number, to continue the step from the two; null where all are simulated. */
  readonly fewer: number | null;
}

/** A smaller pipeline, with about as many microbatches for each rank. */
export interface Scale {
  readonly ranks: number;
  readonly microbatches: number;
  /** How many microbatches are added to see what each of them adds. */
  readonly further: number;
}

/** The name of a schedule as it is listed; a name that there is not stays as it is. */
export function listedName(name: string): string {
  try {
    return findSchedule(name).name;
  } catch (error) {
    if (error instanceof ScheduleError) return name;
    throw error;
  }
}

/**
 * Stages of a rank: as many as asked for, as far as the schedule allows. A schedule made for several stages per rank gets
 * several: with one it would be no better than a simpler schedule.
 */
export function stagesFor(name: string, settings: Pick<Settings, 'stagesPerRank'>): number {
  const { stagesPerRank } = findSchedule(name);
  return Math.min(stagesPerRank.most, Math.max(stagesPerRank.default, settings.stagesPerRank));
}

/** Whether the order of a schedule is searched for within the memory limits. */
export function isSearched(name: string, { limit }: Pick<Settings, 'limit'>): boolean {
  return limit.some((value) => value > 0) && findSchedule(name).usesMemoryLimit;
}

/** About how many actions a step has: a forward and both halves of a backward; with messages three times as many. */
export function countActions(name: string, settings: Settings): number {
  const { ranks, microbatches, lowered } = settings;
  return ranks * stagesFor(name, settings) * microbatches * 3 * (lowered ? 3 : 1);
}

/** How many microbatches of a step are simulated if at most so many actions are; null where too few would be left. */
export function extentOf(name: string, settings: Settings, most: number): Extent | null {
  const { ranks, microbatches } = settings;
  if (countActions(name, settings) <= most) return { microbatches, fewer: null };
  const [fewer, more] = [partsPerRank[0] * ranks, partsPerRank[1] * ranks];
  const fits = more < microbatches && countActions(name, { ...settings, microbatches: more }) <= most;
  return fits ? { microbatches: more, fewer } : null;
}

/** Fewest ranks that show how a schedule goes on. */
const fewestRanks = 8;

/**
 * A smaller pipeline from which a step is continued: with one of twice its ranks and one of more microbatches, each of at most so many
 * actions. Null where ranks or stages differ, where the order is searched for, and where none is small enough.
 */
export function scaleOf(name: string, settings: Settings, most: number): Scale | null {
  const { ranks, microbatches, costs, limit } = settings;
  const isEven = (values: readonly number[]): boolean => values.every((value) => value === values[0]);
  if (isSearched(name, settings) || ![...Object.values(costs), limit].every(isEven)) return null;
  const perRank = microbatches / ranks;
  const microbatchesOf = (own: number): number =>
    perRank >= 2 ? Math.round(perRank) * own : Math.max(1, Math.round(perRank * own));
  for (let own = 2 ** Math.floor(Math.log2(ranks / 4)); own >= fewestRanks; own /= 2) {
    const few = microbatchesOf(own);
    const further = Math.min(own, few);
    const counts = [
      countActions(name, { ...settings, ranks: 2 * own, microbatches: 2 * few }),
      countActions(name, { ...settings, ranks: own, microbatches: few + further }),
    ];
    if (counts.every((count) => count <= most)) return { ranks: own, microbatches: few, further };
  }
  return null;
}
