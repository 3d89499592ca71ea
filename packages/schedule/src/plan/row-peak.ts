/** @file The most that a rank holds on its way through its row, without its times: what a search asks before it simulates. */

import type { CostTable } from '../costs/cost-table.ts';
import { Code, isComposite, wordCode } from '../model/packed.ts';
import type { Schedule } from '../model/schedule.ts';

/** What stages hold, one number for each. */
export interface HeldCosts extends Pick<CostTable, 'shards' | 'sharding'> {
  readonly activation: ArrayLike<number>;
  readonly retained: ArrayLike<number>;
  readonly weightGradient: ArrayLike<number>;
  readonly parameters: ArrayLike<number>;
}

/**
 * The highest memory of a rank: parameters, gradients and activations. That of `simulate` differs only in that a reduction ends
 * where it stands.
 */
export function rowPeak(schedule: Schedule, rank: number, costs: HeldCosts): number {
  const { layout, composites, stageToRank } = schedule;
  const divided = costs.sharding === 'parameters' ? costs.shards : 1;
  let held = 0;
  stageToRank.forEach((home, stage) => {
    if (home === rank) held += costs.parameters[stage]! / divided;
  });
  let peak = held;
  const hasGradient = new Set<number>();
  const take = (word: number): void => {
    const code = wordCode(word);
    const stage = layout.stage(word);
    if (code === Code.F) held += costs.activation[stage]!;
    else if ((code === Code.B || code === Code.W) && !hasGradient.has(stage)) {
      hasGradient.add(stage);
      held += costs.weightGradient[stage]!;
    } else if (code === Code.Unshard && divided > 1) held += costs.parameters[stage]!;
    if (held > peak) peak = held;
  };
  const give = (word: number): void => {
    const code = wordCode(word);
    const stage = layout.stage(word);
    const activation = costs.activation[stage]!;
    const kept = activation * costs.retained[stage]!;
    if (code === Code.B) held -= activation;
    else if (code === Code.I) held -= activation - kept;
    else if (code === Code.W) held -= kept;
    else if (code === Code.Reshard && divided > 1) held -= costs.parameters[stage]!;
    else if (code === Code.ReduceGrad && costs.sharding !== 'optimizer')
      held -= costs.weightGradient[stage]! * (1 - 1 / costs.shards);
  };
  for (const word of schedule.denseRows[rank] ?? []) {
    if (!isComposite(word)) {
      take(word);
      give(word);
      continue;
    }
    for (const leaf of composites.leavesOf(word)) {
      take(leaf);
      give(leaf);
    }
  }
  return peak;
}
