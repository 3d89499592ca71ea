/** @file Plans whose stages were measured themselves: their costs and bytes take the place of sums over units. */
import { type PipelinePlan, planSchedule, predictPlan, type StageCosts } from '@pipewright/schedule';
import { checkPlan } from '@pipewright/schedule/internal';
import { checkArgument, checkCount } from '../base/checks.ts';
import { PipelineError } from '../base/errors.ts';
import { formatBytes } from '../pipe/picture.ts';
import type { MeasuredStage } from './measure-stages.ts';

/**
 * A plan predicted from its stages as `measureStages` found them.
 *
 * @example settlePlan(plan, measureStages(pipeline(program, { plan }), [x], { lossFn, target })).predicted.step
 */
export function settlePlan(plan: PipelinePlan, measured: readonly MeasuredStage[]): PipelinePlan {
  checkPlan('settlePlan', plan);
  const fits = Array.isArray(measured) && measured.length === plan.stages;
  checkArgument('settlePlan', fits, ['the measured stages', measured], `one for each of the ${plan.stages} stages`);
  for (const [stage, one] of measured.entries()) {
    const isMeasured = typeof (one as MeasuredStage | null | undefined)?.costs === 'object';
    checkArgument('settlePlan', isMeasured, [`measured stage ${stage}`, one], 'what measureStages gave');
  }
  const memory = measured.flatMap(({ memory: counted }) => (counted === null ? [] : [counted]));
  const costs = measured.map(({ costs: found, memory: counted }, stage): StageCosts => {
    const { again, activation, retained } = plan.costs[stage]!;
    // On a GPU nothing is counted: what the units keep is what is known.
    const held = counted === null ? { activation, retained } : {};
    return { ...found, ...held, ...(again === undefined ? {} : { again }) };
  });
  return predictPlan({ ...plan, costs, ...(memory.length === plan.stages ? { memory } : {}) });
}

/** What a plan lacks: the rank that is furthest beyond its memory, and by how many bytes; null where all fits. */
function lackOf(plan: PipelinePlan): { readonly rank: number; readonly missingBytes: number } | null {
  const { memory } = plan.machine;
  if (memory === undefined) return null;
  let worst: { rank: number; missingBytes: number } | null = null;
  plan.predicted.peak.forEach((peak, rank) => {
    const over = Math.ceil(peak - (typeof memory === 'number' ? memory : memory[rank]!));
    if (over > (worst?.missingBytes ?? 0)) worst = { rank, missingBytes: over };
  });
  return worst;
}

/** Plans in the order of their predicted steps, those that do not fit left out; refuses where none is left. */
export function rankPlans(plans: readonly PipelinePlan[]): PipelinePlan[] {
  checkArgument('rankPlans', Array.isArray(plans), ['the argument', plans], 'an array of plans');
  for (const plan of plans) checkPlan('rankPlans', plan);
  const fitting = plans.filter((plan) => lackOf(plan) === null);
  if (fitting.length > 0) return fitting.toSorted((a, b) => a.predicted.step - b.predicted.step);
  const lacks = plans.flatMap((plan) => lackOf(plan) ?? []).sort((a, b) => a.missingBytes - b.missingBytes);
  const [least] = lacks;
  throw new PipelineError(
    least === undefined ? 'NO_PLAN' : 'MEMORY_LIMIT',
    least === undefined
      ? 'rankPlans: there is no plan'
      : `rankPlans: nothing fits: rank ${least.rank} lacks at least ${formatBytes(least.missingBytes)}; give more memory, more ranks or smaller microbatches`,
    { ...least },
  );
}

/**
 * Plans to measure and try, out of more that a search found: a quarter of them the best, then the best of each other kind, by the size of its
 * microbatches and by whether backwards are split, then also by its number of stages. What a prediction from units gets wrong is often the same for all of a kind.
 *
 * @example worthTrying(planPipeline({ machine, tables, batch, most: 200 }).plans, 16)
 */
export function worthTrying(plans: readonly PipelinePlan[], most: number): PipelinePlan[] {
  checkArgument('worthTrying', Array.isArray(plans), ['the argument', plans], 'an array of plans');
  checkCount('worthTrying', 'most', most);
  const chosen = new Set(plans.slice(0, Math.ceil(most / 4)));
  for (const kindOf of [sizeAndSplit, withStages]) {
    const kinds = new Set([...chosen].map(kindOf));
    for (const plan of plans) {
      if (chosen.size === most || kinds.has(kindOf(plan))) continue;
      kinds.add(kindOf(plan));
      chosen.add(plan);
    }
  }
  for (const plan of plans) if (chosen.size < most) chosen.add(plan);
  return plans.filter((plan) => chosen.has(plan));
}

function sizeAndSplit(plan: PipelinePlan): string {
  const isSplit = planSchedule(plan).order.some((row) =>
    row.some((cell) => (cell?.parts ?? [cell]).some((action) => action?.kind === 'W')),
  );
  return `${plan.rows} ${isSplit}`;
}

/** Stages exchange messages, which cost more than is predicted from units. */
function withStages(plan: PipelinePlan): string {
  return `${sizeAndSplit(plan)} ${plan.stages}`;
}
