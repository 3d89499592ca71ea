/** @file A plan beside the run it was made for: predicted against recorded, as a whole and stage by stage. */
import { type Recording, recordingSummary } from '@pipewright/schedule';
import { checkArgument } from '../base/checks.ts';
import type { PipelinePlan } from './search.ts';

/** A number that was predicted and then measured. */
export interface Compared {
  readonly predicted: number;
  readonly recorded: number;
  /** How much more was recorded than predicted, as a share of what was predicted. */
  readonly error: number;
}

/** A plan and its run. Seconds. */
export interface PlanComparison {
  readonly step: Compared;
  readonly bubble: Compared;
  /** Forwards and backwards of a step, by stage. */
  readonly stages: readonly { readonly forward: Compared; readonly backward: Compared }[];
  readonly messages: Compared;
}

/**
 * Compares a plan with the recording of a run that followed it.
 *
 * @example comparePlan(plan, recorder.gather()).step.error // 0.03: the step took 3% longer than predicted
 */
export function comparePlan(plan: PipelinePlan, recording: Recording): PlanComparison {
  const isPlan = typeof plan === 'object' && plan !== null && plan.version === 1 && Array.isArray(plan.costs);
  checkArgument('comparePlan', isPlan, ['the plan', plan], 'one of the plans of planPipeline');
  const summary = recordingSummary(recording);
  const fits = summary.stages.length === plan.stages;
  checkArgument(
    'comparePlan',
    fits,
    ['the number of recorded stages', summary.stages.length],
    `a run of ${plan.stages} stages`,
  );
  const { microbatches, predicted } = plan;
  return {
    step: compared(predicted.step, summary.recorded.step / 1000),
    bubble: compared(predicted.bubble, summary.recorded.bubble),
    stages: summary.stages.map(({ forward, backward }, stage) => {
      const { F = 0, I = 0, W = 0 } = plan.costs[stage] ?? {};
      return {
        forward: compared(F * microbatches, forward / 1000),
        backward: compared((I + W) * microbatches, backward / 1000),
      };
    }),
    messages: compared(predicted.messages, summary.messages.count),
  };
}

function compared(predicted: number, recorded: number): Compared {
  return { predicted, recorded, error: predicted === 0 ? recorded : recorded / predicted - 1 };
}
