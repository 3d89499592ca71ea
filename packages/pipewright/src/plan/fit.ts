/** @file Which stages compute their forward again so that their ranks fit: rank by rank, because one does not change what another holds. */
import type { Costs, Schedule, StageCosts } from '@pipewright/schedule';
import { rowPeak } from '@pipewright/schedule/internal';

/** A pipeline whose ranks hold too much. */
export interface FitProblem {
  /** Its order, collectives included. */
  readonly order: Schedule;
  readonly recompute: readonly boolean[];
  stagesOf(recompute: readonly boolean[]): readonly StageCosts[];
  costsOf(stages: readonly StageCosts[]): Costs;
  /** Bytes that each rank has. */
  limitsOf(stages: readonly StageCosts[]): readonly number[];
}

/** Stages of a rank that are tried in all combinations; of more, the first ones are kept as they are. */
const mostStages = 6;

/** For every rank the cheapest choice of stages that fits, beside those that compute again already; the leanest where none does. */
export function fittingStages(problem: FitProblem): boolean[] {
  const { order, recompute } = problem;
  const [kept, again] = [false, true].map((value) => problem.stagesOf(recompute.map((each) => each || value))) as [
    readonly StageCosts[],
    readonly StageCosts[],
  ];
  const limits = problem.limitsOf(kept);
  const [costs, leanest] = [kept, again].map((stages) => {
    const {
      activation,
      retained,
      weightGradient,
      parameters,
      shards = 1,
      sharding = 'parameters',
    } = problem.costsOf(stages);
    return { activation, retained, weightGradient, parameters, shards, sharding } as HeldLists;
  }) as [HeldLists, HeldLists];
  const chosen = [...recompute];
  for (let rank = 0; rank < order.ranks; rank++) {
    const own = order
      .stagesOf(rank)
      .filter((stage) => recompute[stage] === false)
      .slice(-mostStages);
    const before = order.stagesOf(rank).filter((stage) => recompute[stage] === true);
    let best: { readonly over: number; readonly seconds: number; readonly stages: readonly number[] } | null = null;
    for (let subset = 0; subset < 2 ** own.length; subset++) {
      const stages = own.filter((_, i) => (subset >> i) % 2 === 1);
      const extra = [...stages, ...before].reduce((most, stage) => Math.max(most, again[stage]?.again ?? 0), 0);
      const over = Math.max(0, rowPeak(order, rank, mixed(costs, leanest, stages)) + extra - limits[rank]!);
      const seconds = stages.reduce((sum, stage) => sum + (kept[stage]?.F ?? 0), 0);
      if (best === null || over < best.over || (over === best.over && seconds < best.seconds))
        best = { over, seconds, stages };
      if (subset === 0 && over === 0) break;
    }
    for (const stage of best?.stages ?? []) chosen[stage] = true;
  }
  return chosen;
}

/** What stages hold, one number for each. */
interface HeldLists {
  readonly activation: number[];
  readonly retained: number[];
  readonly weightGradient: number[];
  readonly parameters: number[];
  readonly shards: number;
  readonly sharding: 'optimizer' | 'gradients' | 'parameters';
}

/** The costs of a choice: some stages hold what they hold when they compute again. */
function mixed(kept: HeldLists, again: HeldLists, stages: readonly number[]): HeldLists {
  if (stages.length === 0) return kept;
  const [activation, retained] = [[...kept.activation], [...kept.retained]];
  for (const stage of stages) {
    activation[stage] = again.activation[stage]!;
    retained[stage] = again.retained[stage]!;
  }
  return { ...kept, activation, retained };
}
