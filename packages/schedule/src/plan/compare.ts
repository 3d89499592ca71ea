/** @file A plan beside the run it was made for: predicted against recorded, as a whole, action by action, and in memory. */

import { percent } from '../draw/quantity.ts';
import { ScheduleError, show } from '../model/errors.ts';
import { meanDurations } from '../recording/mean-costs.ts';
import { type Recording, steadySteps } from '../recording/recording.ts';
import { recordingSummary } from '../recording/report.ts';
import { recordedSimulation } from '../recording/simulation.ts';
import { checkPlan, type PipelinePlan } from './plan.ts';
import { planCosts, planSchedule } from './plan-simulation.ts';

/** A number that was predicted and then measured. */
export interface Compared {
  readonly predicted: number;
  readonly recorded: number;
  /** How much more was recorded than predicted, as a share of what was predicted; NaN where that is 0. */
  readonly error: number;
}

/** The actions of one kind of a stage, on average. Seconds. */
export interface ComparedActions extends Compared {
  readonly stage: number;
  readonly kind: 'F' | 'B' | 'I' | 'W';
}

/** A plan and its run. Seconds and bytes. */
export interface PlanComparison {
  /** Steps that count: without the first one, which warms up. */
  readonly steps: number;
  readonly step: Compared;
  readonly bubble: Compared;
  /** Forwards and backwards of a step, by stage. */
  readonly stages: readonly { readonly forward: Compared; readonly backward: Compared }[];
  /** One action, by stage and kind. */
  readonly actions: readonly ComparedActions[];
  /** Most bytes held for backwards, by rank; null where they were not counted. */
  readonly memory: readonly (Compared | null)[];
  readonly messages: Compared;
}

/**
 * Compares a plan with the recording of a run that followed it.
 *
 * @example comparePlan(plan, recorder.gather()).step.error // 0.03: the step took 3% longer than predicted
 */
export function comparePlan(plan: PipelinePlan, recording: Recording): PlanComparison {
  checkPlan('comparePlan', plan);
  const summary = recordingSummary(recording);
  if (summary.stages.length !== plan.stages || recording.ranks.length !== plan.ranks)
    throw new ScheduleError(
      'BAD_OPTION',
      `comparePlan: the run has ${summary.stages.length} stages on ${recording.ranks.length} ranks, the plan ${plan.stages} on ${plan.ranks}; give the recording of a run of this plan`,
    );
  const { microbatches, predicted } = plan;
  const steps = steadySteps(recording);
  const lengths = steps.map((step) => recordedSimulation(recording, recording.steps.indexOf(step)).makespan);
  const kinds = kindsOf(plan);
  const backwards = (stage: number): number =>
    kinds
      .filter((one) => one.stage === stage && one.kind !== 'F')
      .reduce((sum, one) => sum + one.count * timeOf(plan, one.stage, one.kind), 0);
  return {
    steps: summary.steps,
    step: compared(predicted.step, median(lengths) / 1000),
    bubble: compared(predicted.bubble, summary.recorded.bubble),
    stages: summary.stages.map(({ forward, backward }, stage) => ({
      forward: compared(timeOf(plan, stage, 'F') * microbatches, forward / 1000),
      backward: compared(backwards(stage), backward / 1000),
    })),
    actions: kinds.map(({ stage, kind }) => ({
      stage,
      kind,
      ...compared(timeOf(plan, stage, kind), recordedTime(recording, stage, kind)),
    })),
    memory: plan.predicted.held.map((held, rank) => {
      const counted = steps.flatMap((step) => step.ranks[rank]?.heldBytes ?? []);
      return counted.length === 0 ? null : compared(held, Math.max(...counted));
    }),
    messages: compared(predicted.messages, summary.messages.count),
  };
}

interface KindCount {
  readonly stage: number;
  readonly kind: 'F' | 'B' | 'I' | 'W';
  readonly count: number;
}

/** The kinds of actions that each stage has in a step, and how many. */
function kindsOf(plan: PipelinePlan): KindCount[] {
  const counts = new Map<string, KindCount>();
  for (const row of planSchedule(plan).order)
    for (const action of row.flatMap((cell) => (cell === null ? [] : (cell.parts ?? [cell])))) {
      const { stage, kind } = action;
      if (kind !== 'F' && kind !== 'B' && kind !== 'I' && kind !== 'W') continue;
      const key = `${stage} ${kind}`;
      counts.set(key, { stage, kind, count: (counts.get(key)?.count ?? 0) + 1 });
    }
  const place = (kind: string): number => 'FBIW'.indexOf(kind);
  return [...counts.values()].sort((a, b) => a.stage - b.stage || place(a.kind) - place(b.kind));
}

function timeOf(plan: PipelinePlan, stage: number, kind: 'F' | 'B' | 'I' | 'W'): number {
  const { F, I, W, B } = planCosts(plan) as Record<'F' | 'I' | 'W' | 'B', readonly number[] | undefined>;
  const at = (list: readonly number[] | undefined): number => list?.[stage] ?? 0;
  if (kind === 'B') return B === undefined ? at(I) + at(W) : at(B);
  return at(kind === 'F' ? F : kind === 'I' ? I : W);
}

function recordedTime(recording: Recording, stage: number, kind: 'F' | 'B' | 'I' | 'W'): number {
  return (meanDurations(recording, kind)[stage] ?? 0) / 1000;
}

function compared(predicted: number, recorded: number): Compared {
  return { predicted, recorded, error: predicted === 0 ? Number.NaN : recorded / predicted - 1 };
}

function median(values: readonly number[]): number {
  const sorted = values.toSorted((a, b) => a - b);
  return sorted[(sorted.length - 1) >> 1] ?? 0;
}

/** A comparison as text. @example console.log(formatComparison(comparePlan(plan, recorder.gather()))) */
export function formatComparison(comparison: PlanComparison): string {
  checkComparison(comparison);
  const { step, bubble, actions, memory, steps } = comparison;
  const ms = (seconds: number): string => `${(1000 * seconds).toFixed(2)} ms`;
  const sign = (error: number): string =>
    Number.isNaN(error) ? '–' : `${error < 0 ? '-' : '+'}${percent(Math.abs(error))}`;
  const rows: string[][] = [
    ['', 'predicted', 'recorded', 'difference'],
    ['step', ms(step.predicted), ms(step.recorded), sign(step.error)],
    ['bubble', percent(bubble.predicted), percent(bubble.recorded), ''],
    ...actions.map(({ stage, kind, predicted, recorded, error }) => [
      `stage ${stage} ${kind}`,
      ms(predicted),
      ms(recorded),
      sign(error),
    ]),
    ...memory.flatMap((one, rank) =>
      one === null
        ? []
        : [
            [
              `rank ${rank} held`,
              one.predicted.toLocaleString('en'),
              one.recorded.toLocaleString('en'),
              one.predicted === one.recorded ? 'equal' : sign(one.error),
            ],
          ],
    ),
  ];
  const widths = [0, 1, 2, 3].map((column) => Math.max(...rows.map((row) => row[column]!.length)));
  const lines = rows.map(
    (row) => `  ${row.map((cell, i) => (i === 0 ? cell.padEnd(widths[i]!) : cell.padStart(widths[i]!))).join('  ')}`,
  );
  return [
    `Predicted and recorded, ${steps} ${steps === 1 ? 'step' : 'steps'}; activation memory in bytes`,
    ...lines.map((line) => line.trimEnd()),
  ].join('\n');
}

function checkComparison(given: unknown): void {
  const refuse = (what: string, value: unknown): never => {
    throw new ScheduleError(
      'BAD_OPTION',
      `formatComparison: ${what} is ${show(value)}; give what comparePlan(plan, recording) returned`,
    );
  };
  if (typeof given !== 'object' || given === null) return refuse('the comparison', given);
  const { step, bubble, actions, memory, steps } = given as Record<string, unknown>;
  if (typeof steps !== 'number') refuse('steps', steps);
  for (const [name, one] of [
    ['step', step],
    ['bubble', bubble],
  ] as const)
    if (!isCompared(one)) refuse(name, one);
  for (const [name, list] of [
    ['actions', actions],
    ['memory', memory],
  ] as const) {
    if (!Array.isArray(list)) return refuse(name, list);
    const isRight = (one: unknown): boolean => isCompared(one) || (name === 'memory' && one === null);
    const wrong = list.findIndex((one) => !isRight(one));
    if (wrong >= 0) refuse(`${name}[${wrong}]`, list[wrong]);
  }
}

function isCompared(value: unknown): boolean {
  if (typeof value !== 'object' || value === null) return false;
  const { predicted, recorded, error } = value as Record<string, unknown>;
  return [predicted, recorded, error].every((one) => typeof one === 'number');
}
