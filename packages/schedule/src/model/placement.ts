/** @file Which rank holds which stage. */

import { checkCount, checkOptions, ScheduleError, show } from './errors.ts';

/** `loop`: stage s on rank s mod P. `v`: forth and back, so that the last stage meets the first one on rank 0. */
export type PlacementStyle = 'loop' | 'v';

/** A placement asked for by numbers. */
export interface PlacementOptions {
  readonly ranks: number;
  readonly stages: number;
  readonly style?: PlacementStyle;
}

/**
 * The rank of each stage.
 * @example stageToRank({ ranks: 2, stages: 4, style: 'v' }) // [0, 1, 1, 0]
 */
export function stageToRank(options: PlacementOptions): number[] {
  checkOptions('stageToRank', options, ['ranks', 'stages', 'style']);
  const ranks = checkCount('stageToRank', 'ranks', options.ranks);
  const stages = checkCount('stageToRank', 'stages', options.stages, 0);
  const style = options.style ?? 'loop';
  if (style !== 'loop' && style !== 'v') {
    throw new ScheduleError('BAD_OPTION', `stageToRank: style is ${show(style)}; use 'loop' or 'v'`, { style });
  }
  if (style === 'v' && stages % ranks !== 0) {
    throw new ScheduleError(
      'BAD_SHAPE',
      `stageToRank: with style 'v' stages (${stages}) must be a multiple of ranks (${ranks}); try ${ranks * Math.max(1, Math.round(stages / ranks))} stages`,
      { stages, ranks },
    );
  }
  return Array.from({ length: stages }, (_, stage) => {
    const offset = stage % ranks;
    return style === 'v' && Math.floor(stage / ranks) % 2 === 1 ? ranks - 1 - offset : offset;
  });
}

/**
 * The stages of each rank, ascending; a rank without stages has an empty list.
 * @example rankToStages({ ranks: 2, stages: 4, style: 'v' }) // [[0, 3], [1, 2]]
 */
export function rankToStages(options: PlacementOptions): number[][] {
  const placed = stageToRank(options);
  const lists: number[][] = Array.from({ length: options.ranks }, () => []);
  placed.forEach((rank, stage) => lists[rank]!.push(stage));
  return lists;
}
