/** @file A plan of `pipewright plan` as settings: its shape, its costs and its limits. */
import {
  type Costs,
  type MessageCosts,
  type PipelinePlan,
  planCosts,
  planSchedule,
  planSimulation,
  predictPlan,
  readPlan,
  type Schedule,
  ScheduleError,
} from '@pipewright/schedule';
import { parallelOf, withCollectives } from '@pipewright/schedule/internal';
import { forStages } from './depth.ts';
import { type CostSettings, costNames, defaults, type Settings } from './settings.ts';
import { showTime } from './units.ts';

/** The name that the order of an opened plan goes by. */
export const planName = 'plan';

/** A plan that was opened. */
export interface OpenedPlan {
  readonly name: string;
  readonly plan: PipelinePlan;
  readonly schedule: Schedule;
}

/** The plan in a file; null where it is something else. A plan that is damaged is refused with the reason. */
export function openPlan(name: string, text: string): OpenedPlan | null {
  if (!/^\s*\{/.test(text) || !/"version"\s*:\s*1\b/.test(text) || !/"stageToRank"/.test(text)) return null;
  if (hasFormat(text)) return null;
  const plan = readPlan(text);
  return { name, plan, schedule: planSchedule(plan) };
}

/** Whether a text is a schedule or a recording, which say so; a plan holds a schedule if its order was found by search. */
function hasFormat(text: string): boolean {
  if (/^\s*\{\s*"format"\s*:/.test(text)) return true;
  try {
    return 'format' in (JSON.parse(text) as object);
  } catch {
    return false; // what is damaged is told by who reads it
  }
}

/** The plan among files that were named; null where there is none that can be read. */
export function planAmong(files: readonly { readonly name: string; readonly text: string }[]): OpenedPlan | null {
  for (const { name, text } of files) {
    try {
      const found = openPlan(name, text);
      if (found !== null) return found;
    } catch (error) {
      if (!(error instanceof ScheduleError)) throw error;
    }
  }
  return null;
}

/** Share by which a step may differ from its simulation without a word. */
const notable = 0.01;

/** Whether settings have the shape of a plan: only then it does the same work as the schedules beside it. */
export function hasShapeOf(
  { plan }: OpenedPlan,
  settings: Pick<Settings, 'ranks' | 'stagesPerRank' | 'microbatches'>,
): boolean {
  const { ranks, stagesPerRank, microbatches } = settings;
  return ranks === plan.ranks && microbatches === plan.microbatches && stagesPerRank === stagesPerRankOf(plan);
}

function stagesPerRankOf({ stages, ranks }: PipelinePlan): number {
  return Math.max(1, Math.round(stages / ranks));
}

/** Where costs come from; of a plan that was tried, what its steps took, which is more than can be simulated. */
export function sayOrigin(opened: OpenedPlan, settings: Settings): string {
  const { name, plan } = opened;
  if (!hasShapeOf(opened, settings)) return '';
  const own = planSettings(opened).costs;
  if (costNames.some((cost) => String(settings.costs[cost]) !== String(own[cost])))
    return `Costs from ${name}, except those that were changed.`;
  const simulated = planSimulation(plan).makespan;
  const { step } = plan.predicted;
  if (Math.abs(step / simulated - 1) <= notable) return `Costs from ${name}.`;
  return `Costs from ${name}. When the plan was tried, a step took ${showTime(step * 1e3)}; its simulation takes ${showTime(simulated * 1e3)}, without what a run adds to every action. Of schedules that are close to each other here, another one may be faster in a run.`;
}

/** Settings that show a plan: seconds become milliseconds, bytes become GB. */
export function planSettings({ plan }: OpenedPlan, before: Settings = defaults): Settings {
  const { costs, machine, ranks, microbatches, dataParallel } = plan;
  const simulated = planCosts(plan);
  const time = (list: Costs['F']): number[] => ((list ?? []) as readonly number[]).map((value) => value * 1e3);
  const bytes = (list: Costs['F']): number[] => ((list ?? []) as readonly number[]).map((value) => value / 1e9);
  const { memory: limit = 0 } = machine;
  return {
    ...before,
    view: 'explore',
    schedule: planName,
    ranks,
    stagesPerRank: stagesPerRankOf(plan),
    microbatches,
    costs: {
      F: time(simulated.F),
      I: time(simulated.I),
      W: time(simulated.W),
      B: time(simulated.B),
      comm: costs.map((_, stage) => messageTime(plan, stage) * 1e3),
      activation: bytes(simulated.activation),
      retained: [...(simulated.retained as readonly number[])],
      parameters: bytes(simulated.parameters),
      gradients: bytes(simulated.weightGradient),
    },
    limit: limitsOf(limit, dataParallel?.replicas ?? 1).map((most) => most / 1e9),
  };
}

/**
 * The costs of a plan's stages as the plan has them, in milliseconds and GB: links between ranks and collectives are no
 * settings. Costs that were changed since the plan was opened take the place of its own.
 */
export function planCostsWith(opened: OpenedPlan, changed: CostSettings): Costs {
  const { plan } = opened;
  const own = planSettings(opened).costs;
  const { inputGradient, ...costs } = planCostsInMs(plan);
  const bytes = (list: Costs['F']): number[] => (list as readonly number[]).map((value) => value / 1e9);
  const isOwn = (name: keyof CostSettings): boolean => String(changed[name]) === String(own[name]);
  const hasOwnBackward = isOwn('I') && isOwn('W') && isOwn('B');
  const { gradients, B, ...others } = changed;
  const names = (Object.keys(others) as (keyof typeof others)[]).filter((name) => !isOwn(name));
  const { B: ownB, ...rest } = costs;
  const spread = (values: readonly number[]): number[] => forStages(values, plan.stages);
  return {
    ...rest,
    activation: bytes(costs.activation),
    parameters: bytes(costs.parameters),
    weightGradient: isOwn('gradients') ? bytes(costs.weightGradient) : spread(gradients),
    ...(hasOwnBackward
      ? { ...(ownB === undefined ? {} : { B: ownB }), ...(inputGradient === undefined ? {} : { inputGradient }) }
      : B.length === 0
        ? {}
        : { B: spread(B) }),
    ...Object.fromEntries(names.map((name) => [name, spread(changed[name])])),
  };
}

/** The order of a plan with the collectives that its ranks run, as it is predicted. */
export function planOrder({ plan, schedule }: OpenedPlan): Schedule {
  return withCollectives(schedule, plan.costs, parallelOf(plan));
}

/** Highest memory of each rank as the plan counts it, in GB; null where costs were changed since it was opened. */
export function planPeaks(opened: OpenedPlan, changed: CostSettings): Float64Array | null {
  const own = planSettings(opened).costs;
  if (costNames.some((name) => String(changed[name]) !== String(own[name]))) return null;
  return Float64Array.from(predictPlan(opened.plan).predicted.peak, (bytes) => bytes / 1e9);
}

/** Limits of the ranks of a pipeline: of ranks that hold the same stages, the lowest. */
function limitsOf(limit: number | readonly number[], replicas: number): number[] {
  if (typeof limit === 'number') return [limit];
  return Array.from({ length: limit.length / replicas }, (_, rank) =>
    Math.min(...limit.slice(rank * replicas, (rank + 1) * replicas)),
  );
}

/** The costs of a plan in milliseconds, as recordings count. */
export function planCostsInMs(plan: PipelinePlan): Costs {
  const costs = planCosts(plan);
  const times = (values: Costs['F']): number[] => (values as readonly number[]).map((value) => value * 1e3);
  const { collective } = costs;
  const { bandwidth, latency, links } = costs.comm as MessageCosts;
  return {
    ...costs,
    ...(collective === undefined ? {} : { collective: { ...collective, ...inMs(collective) } }),
    F: times(costs.F),
    I: times(costs.I),
    W: times(costs.W),
    ...(costs.B === undefined ? {} : { B: times(costs.B) }),
    ...(costs.inputGradient === undefined ? {} : { inputGradient: times(costs.inputGradient) }),
    comm: {
      bytes: plan.costs.map((_, stage) => plan.costs[stage + 1]?.input ?? 0),
      ...inMs({ ...(bandwidth === undefined ? {} : { bandwidth }), ...(latency === undefined ? {} : { latency }) }),
      links: (links ?? []).map((link) => ({ from: link.from, to: link.to, ...inMs(link) })),
    },
  };
}

/** Bandwidth and latency by milliseconds instead of seconds. */
function inMs({
  bandwidth,
  latency,
}: Pick<MessageCosts, 'bandwidth' | 'latency'>): Pick<MessageCosts, 'bandwidth' | 'latency'> {
  return {
    ...(bandwidth === undefined ? {} : { bandwidth: bandwidth / 1e3 }),
    ...(latency === undefined ? {} : { latency: latency * 1e3 }),
  };
}

/** Seconds that what a stage sends is under way; of the last stage, what it sends back. */
function messageTime(plan: PipelinePlan, at: number): number {
  const { costs, stageToRank } = plan;
  const machine = planCosts(plan).comm as MessageCosts;
  const stage = Math.max(0, Math.min(at, costs.length - 2));
  const [from, to] = [stageToRank[stage], stageToRank[stage + 1]];
  const link = machine.links?.find((one) => one.from === from && one.to === to);
  const latency = link?.latency ?? machine.latency ?? 0;
  const bandwidth = link?.bandwidth ?? machine.bandwidth;
  return latency + (bandwidth === undefined ? 0 : (costs[stage + 1]?.input ?? 0) / bandwidth);
}
