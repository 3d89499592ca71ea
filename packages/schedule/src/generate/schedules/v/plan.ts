/** @file From a V building block to a plan: repeat, tighten both ends, place the weight work. */

import { type BuildingBlock, VGrid } from './grid.ts';

/** The plan of V-Min and V-Half: both ends of the repeated block pulled forward, first with weight work, then without. */
export function pulledPlan(block: BuildingBlock, microbatches: number): VGrid {
  const grid = VGrid.repeat(block, microbatches);
  grid.addWeights();
  grid.pullForward({ where: 'ends' });
  grid.squeeze();
  grid.dropWeights();
  grid.pullForward({ where: 'cool-down' });
  grid.addWeights();
  grid.squeeze();
  grid.dropWeights();
  grid.addWeights();
  return grid;
}

/** A plan whose ends are rebuilt for a number of held chunks, then pulled forward everywhere; null where they do not fit the block. */
export function shapedPlan(block: BuildingBlock, microbatches: number, cap: number): VGrid | null {
  const grid = VGrid.repeat(block, microbatches);
  grid.addWeights();
  if (!grid.squeeze()) return null;
  grid.shapeWarmUp(cap);
  if (!grid.squeeze()) return null;
  grid.shapeCoolDown(cap);
  if (!grid.squeeze()) return null;
  grid.pullForward({ cap, where: 'everywhere' });
  return grid.squeeze() ? grid : null;
}
