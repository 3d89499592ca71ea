/** @file Plans predicted anew: for other costs of their stages, measured or recorded. */

import { meanDurations } from '../recording/mean-costs.ts';
import type { Recording } from '../recording/recording.ts';
import type { Simulation } from '../simulate/simulation.ts';
import { comparePlan } from './compare.ts';
import { heldPeaks } from './held-peaks.ts';
import { checkUnpredicted, type PipelinePlan, type Prediction, type StageCosts } from './plan.ts';
import { parallelOf, parameterPeaks, pipelineMachine, stateOf } from './plan-parallel.ts';
import { planSimulation } from './plan-simulation.ts';

/** The plan with a prediction that follows from its costs and counted memory. @example predictPlan({ ...plan, costs }) */
export function predictPlan(plan: PipelinePlan): PipelinePlan {
  checkUnpredicted('predictPlan', plan);
  return { ...plan, predicted: predictionOf(plan, planSimulation(plan)) };
}

/** What a simulated step says of a plan. */
export function predictionOf(plan: Omit<PipelinePlan, 'predicted' | 'why'>, simulation: Simulation): Prediction {
  const { costs, memory, microbatches, rows, stageToRank, stateFactor } = plan;
  const { schedule } = simulation;
  const counted = memory === undefined ? null : heldPeaks(schedule, memory);
  const held = simulation.memory.map(({ activationPeak }, rank) => counted?.[rank] ?? Math.round(activationPeak));
  // While a stage is computed again, one microbatch of it is there in full; the largest of a rank counts.
  const again = (rank: number): number =>
    costs.reduce((most, { again: more = 0 }, stage) => (stageToRank[stage] === rank ? Math.max(most, more) : most), 0);
  const parallel = parallelOf(plan);
  const sumOf = (rank: number, of: (stage: StageCosts) => number): number =>
    costs.reduce((sum, stage, at) => sum + (stageToRank[at] === rank ? of(stage) : 0), 0);
  const peak = simulation.memory.map(({ peak: highest, amount, activation }, rank) => {
    const beside = sumOf(rank, (stage) => stateOf(stage, stateFactor, parallel).beside);
    if (counted === null) return Math.round(highest + beside + again(rank));
    const own =
      parallel.replicas === 1
        ? sumOf(rank, ({ parameters }) => parameters) * stateFactor
        : amount.reduce((most, bytes, at) => Math.max(most, bytes - activation[at]!), 0) + beside;
    return Math.round(own) + counted[rank]! + again(rank);
  });
  const crossing = costs.map(({ input }, stage) =>
    stage > 0 && stageToRank[stage] !== stageToRank[stage - 1] ? input : 0,
  );
  return {
    step: simulation.makespan,
    rowsPerSecond: simulation.makespan > 0 ? (parallel.replicas * microbatches * rows) / simulation.makespan : 0,
    bubble: simulation.bubble.makespan,
    peak,
    held,
    ...(parallel.replicas === 1 ? {} : { parameters: parameterPeaks(schedule, costs, parallel) }),
    messages: simulation.transfers().filter(({ fromRank, toRank }) => fromRank !== toRank).length,
    messageBytes: 2 * microbatches * crossing.reduce((sum, bytes) => sum + bytes, 0),
  };
}

/**
 * The plan with the costs that its run has shown, predicted anew; its memory stays as counted.
 * @example writeFileSync('plan.json', JSON.stringify(refitPlan(plan, recorder.gather())))
 */
export function refitPlan(plan: PipelinePlan, recording: Recording): PipelinePlan {
  const { actions } = comparePlan(plan, recording); // refuses a run of another plan
  const { slowness } = pipelineMachine(plan.machine, plan.ranks, parallelOf(plan).replicas);
  const costs = plan.costs.map((before, stage): StageCosts => {
    const slow = slowness?.[plan.stageToRank[stage]!] ?? 1;
    const time = (kind: 'F' | 'B' | 'I' | 'W'): number | undefined => {
      if (!actions.some((one) => one.stage === stage && one.kind === kind)) return undefined;
      return (meanDurations(recording, kind)[stage] ?? 0) / 1000 / slow;
    };
    const B = time('B') ?? before.B;
    // The gradient of the input leaves at the same share of the backward.
    const share = (before.inputGradient ?? 0) / (before.B ?? before.I + before.W);
    return {
      ...before,
      F: time('F') ?? before.F,
      I: time('I') ?? before.I,
      W: time('W') ?? before.W,
      ...(B === undefined ? {} : { B }),
      ...(before.inputGradient === undefined || B === undefined ? {} : { inputGradient: B * Math.min(1, share) }),
    };
  });
  return predictPlan({ ...plan, costs });
}
