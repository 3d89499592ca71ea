/** @file Plans for people: a table with reasons, and what would make the best one faster. */
import {
  type PipelinePlan,
  type PlanParallel,
  percent,
  planSimulation,
  type ScheduleName,
  type StageCosts,
} from '@pipewright/schedule';
import { parallelOf } from '@pipewright/schedule/internal';
import { checkArgument } from '../base/checks.ts';
import { PipelineError } from '../base/errors.ts';
import { formatBytes } from '../pipe/picture.ts';
import { type PlanOptions, type PlanResult, planPipeline } from './search.ts';

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
/** Changes that are shown, and ranks that are given more memory. */
const [shown, mostRanks] = [5, 8];

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
  const parallel = parallelOf(plan);
  const same: PlanOptions = {
    ...options,
    ...(plan.schedule === 'searched' ? {} : { schedules: [plan.schedule as ScheduleName] }),
    searchOrders: 0,
    stagesPerRank: [plan.stages / plan.ranks],
    replicas: [parallel.replicas],
    levels: [parallel.level],
    tables: options.tables.filter(({ rows }) => rows === plan.rows),
    most: 1,
  };
  const found = [...stageGains(plan), ...memoryGains(same, plan)];
  return found.filter(({ gain }) => gain > 1e-6).sort((a, b) => b.gain - a.gain);
}

/** What faster stages are worth: those first that take most of the longest chain, as long as one may be among the best. */
function stageGains(plan: PipelinePlan): Sensitivity[] {
  const base = planSimulation(plan);
  const share = new Array<number>(plan.stages).fill(0);
  for (const { action, start, end } of base.criticalPath) {
    const stages = new Set((action.parts ?? [action]).map(({ stage }) => stage));
    for (const stage of stages) share[stage] = share[stage]! + end - start;
  }
  const found: Sensitivity[] = [];
  const order = share.map((_, stage) => stage).sort((a, b) => share[b]! - share[a]!);
  for (const stage of order) {
    const most = (FASTER * share[stage]!) / base.makespan;
    const least = found.map(({ gain }) => gain).sort((a, b) => b - a)[shown - 1] ?? 0;
    if (most <= least) break;
    const costs = plan.costs.map((each, i) => (i === stage ? faster(each) : each));
    const gain = 1 - planSimulation({ ...plan, costs }).makespan / base.makespan;
    found.push({ change: `stage ${stage} ${100 * FASTER}% faster`, gain });
  }
  return found;
}

/** What more memory is worth, for those ranks that have least left; nothing where a step without limits is as long. */
function memoryGains(options: PlanOptions, plan: PipelinePlan): Sensitivity[] {
  const { machine } = options;
  const { memory } = machine;
  if (memory === undefined) return [];
  const before = stepOf(options);
  const { memory: _, ...unlimited } = machine;
  if (1 - stepOf({ ...options, machine: unlimited }) / before <= 1e-6) return [];
  const { replicas } = parallelOf(plan);
  const limits = Array.from({ length: machine.ranks }, (__, rank) =>
    typeof memory === 'number' ? memory : memory[rank]!,
  );
  const left = (rank: number): number => limits[rank]! - (plan.predicted.peak[Math.floor(rank / replicas)] ?? 0);
  return limits
    .map((__, rank) => rank)
    .sort((a, b) => left(a) - left(b) || a - b)
    .slice(0, mostRanks)
    .map((rank) => {
      const more = limits.map((limit, i) => (i === rank ? limit + MORE_BYTES : limit));
      const gain = 1 - stepOf({ ...options, machine: { ...machine, memory: more } }) / before;
      return { change: `${formatBytes(MORE_BYTES)} more on rank ${rank}`, gain };
    });
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

function kindOf({ level }: PlanParallel): string {
  return level === 'replicate' ? 'replicas' : `shards of ${level}`;
}

/** Plans as a table, with one line each on why, and what would help. @example console.log(formatPlans(planPipeline(options))) */
export function formatPlans(result: PlanResult, help: readonly Sensitivity[] = []): string {
  const isResult = Array.isArray((result as PlanResult | null)?.plans) && Array.isArray(help);
  checkArgument('formatPlans', isResult, ['the argument', result], 'what planPipeline gives');
  const hasMesh = result.plans.some(({ dataParallel }) => dataParallel !== undefined);
  const mesh = (title: string): string[] => (hasMesh ? [title] : []);
  const head = [
    'schedule',
    ...mesh('mesh'),
    'stages',
    'microbatches x rows',
    'step',
    'rows/s',
    'bubble',
    'peak',
    'why',
  ];
  const rows = result.plans.map(({ schedule, ranks, dataParallel, stages, microbatches, rows, predicted, why }) => [
    schedule,
    ...mesh(
      `${ranks} x ${dataParallel?.replicas ?? 1}${dataParallel === undefined ? '' : `, ${kindOf(dataParallel)}`}`,
    ),
    String(stages),
    `${microbatches} x ${rows}`,
    `${(1000 * predicted.step).toFixed(2)} ms`,
    predicted.rowsPerSecond.toFixed(1),
    percent(predicted.bubble),
    formatBytes(Math.max(...predicted.peak)),
    why,
  ]);
  const widths = head.map((title, i) => Math.max(title.length, ...rows.map((row) => row[i]!.length)));
  const line = (cells: readonly string[]): string =>
    `  ${cells.map((cell, i) => (i === cells.length - 1 ? cell : cell.padEnd(widths[i]!))).join('  ')}`;
  const lines = [line(head), ...rows.map(line)];
  if (help.length > 0) {
    lines.push('', '  what would help most:');
    for (const { change, gain } of help.slice(0, shown))
      lines.push(`    ${change}: step ${(100 * gain).toFixed(1)}% shorter`);
  }
  return lines.join('\n');
}
