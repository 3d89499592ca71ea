/** @file Plans for people: a table with reasons, and what would make the best one faster. */
import {
  type PipelinePlan,
  percent,
  planCosts,
  planSchedule,
  type ScheduleName,
  type StageCosts,
  simulate,
} from '@pipewright/schedule';
import { checkArgument } from '../base/checks.ts';
import { PipelineError } from '../base/errors.ts';
import { formatBytes } from '../pipe/picture.ts';
import { type Machine, type PlanOptions, type PlanResult, planPipeline } from './search.ts';

/** What a change would be worth. */
export interface Sensitivity {
  /** In words: `stage 2 10% faster`. */
  readonly change: string;
  /** The share of the step that it saves. */
  readonly gain: number;
}

/** By how much a stage is made faster, and a rank's memory larger, to see what it is worth. */
const FASTER = 0.1;
const MORE_BYTES = 2 ** 30;

/**
 * What would help a plan most: its stages made faster, one after the other, and more memory, rank by rank.
 *
 * @example sensitivities(options, planPipeline(options).plans[0])[0] // { change: 'stage 2 10% faster', gain: 0.04 }
 */
export function sensitivities(options: PlanOptions, plan: PipelinePlan): Sensitivity[] {
  checkArgument(
    'sensitivities',
    Array.isArray((options as PlanOptions | null)?.tables),
    ['the options', options],
    'those of planPipeline',
  );
  checkArgument(
    'sensitivities',
    typeof plan === 'object' && plan !== null,
    ['the plan', plan],
    'a plan of planPipeline',
  );
  const same: PlanOptions = {
    ...options,
    ...(plan.schedule === 'searched' ? {} : { schedules: [plan.schedule as ScheduleName] }),
    searchOrders: 0,
    stagesPerRank: [plan.stages / plan.ranks],
    tables: options.tables.filter(({ rows }) => rows === plan.rows),
    most: 1,
  };
  const order = planSchedule(plan);
  const stepWith = (costs: readonly StageCosts[]): number => simulate(order, planCosts({ ...plan, costs })).makespan;
  const base = stepWith(plan.costs);
  const found = plan.costs.map((_, stage): Sensitivity => {
    const costs = plan.costs.map((each, i) => (i === stage ? faster(each) : each));
    return { change: `stage ${stage} ${100 * FASTER}% faster`, gain: 1 - stepWith(costs) / base };
  });
  const { memory } = options.machine;
  const before = memory === undefined ? 0 : stepOf(same);
  if (memory !== undefined)
    for (let rank = 0; rank < plan.ranks; rank++) {
      const limits = Array.from({ length: plan.ranks }, (_, i) => {
        const limit = typeof memory === 'number' ? memory : (memory[i] as number);
        return i === rank ? limit + MORE_BYTES : limit;
      });
      const machine: Machine = { ...options.machine, memory: limits };
      found.push({
        change: `${formatBytes(MORE_BYTES)} more on rank ${rank}`,
        gain: 1 - stepOf({ ...same, machine }) / before,
      });
    }
  return found.filter(({ gain }) => gain > 1e-6).sort((a, b) => b.gain - a.gain);
}

function faster({ F, I, W, B, ...rest }: StageCosts): StageCosts {
  const less = 1 - FASTER;
  return { ...rest, F: F * less, I: I * less, W: W * less, ...(B === undefined ? {} : { B: B * less }) };
}

function stepOf(options: PlanOptions): number {
  try {
    return planPipeline(options).plans[0]?.predicted.step ?? Number.POSITIVE_INFINITY;
  } catch (error) {
    if (error instanceof PipelineError) return Number.POSITIVE_INFINITY;
    throw error;
  }
}

/** Plans as a table, with one line each on why, and what would help. @example console.log(formatPlans(planPipeline(options))) */
export function formatPlans(result: PlanResult, help: readonly Sensitivity[] = []): string {
  const isResult = Array.isArray((result as PlanResult | null)?.plans) && Array.isArray(help);
  checkArgument('formatPlans', isResult, ['the argument', result], 'what planPipeline gives');
  const head = ['schedule', 'stages', 'microbatches', 'step', 'rows/s', 'bubble', 'peak', 'why'];
  const rows = result.plans.map(({ schedule, stages, microbatches, rows, predicted, why }) => [
    schedule,
    String(stages),
    `${microbatches} x ${rows}`,
    `${(1000 * predicted.step).toFixed(2)} ms`,
    predicted.rowsPerSecond.toFixed(1),
    percent(predicted.bubble),
    formatBytes(Math.max(...predicted.peak)),
    why,
  ]);
  const widths = head.map((title, i) => Math.max(title.length, ...rows.map((row) => (row[i] as string).length)));
  const line = (cells: readonly string[]): string =>
    `  ${cells.map((cell, i) => (i === cells.length - 1 ? cell : cell.padEnd(widths[i] as number))).join('  ')}`;
  const lines = [line(head), ...rows.map(line)];
  if (help.length > 0) {
    lines.push('', '  what would help most:');
    for (const { change, gain } of help.slice(0, 5))
      lines.push(`    ${change}: step ${(100 * gain).toFixed(1)}% shorter`);
  }
  return lines.join('\n');
}
