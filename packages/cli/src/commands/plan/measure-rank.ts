/** @file What ranks run to measure: all do the same at the same time, as they will when they train; rank 0 writes what was found. */
import { writeFileSync } from 'node:fs';
import type { Tensor, distributed as torchDistributed } from '@pipewright/torch';
import type { MeasuredLink, PipelinePlan, UnitTable } from 'pipewright';
import { type ModelSource, openModel } from './model.ts';

/** What is measured: units at sizes of microbatches, or the stages of plans. */
export interface MeasureTask {
  readonly source: ModelSource;
  readonly rounds: number;
  readonly rows: readonly number[];
  readonly plans: readonly PipelinePlan[];
  /** Whether plans may be tried: not where they are for another machine. */
  readonly mayTry: boolean;
  /** The file that rank 0 writes. */
  readonly out: string;
}

/** What was measured. */
export interface Measured {
  readonly tables: readonly UnitTable[];
  /** The plans as their own stages predict them, in a trial where there is a rank for each of theirs. */
  readonly plans: readonly PipelinePlan[];
  readonly link: MeasuredLink | null;
}

/** The program of every rank. */
export async function main(task: MeasureTask): Promise<void> {
  const { distributed } = await import('@pipewright/torch');
  const { measureLink, measureStages, measureUnits, pipeline, settlePlan, tryPlans } = await import('pipewright');
  const { planSchedule } = await import('@pipewright/schedule');
  const group = distributed.initProcessGroup();
  const model = await openModel(task.source);
  const { lossFn } = model;
  const together = (): void => group.barrier();
  const tables = task.rows.map((rows) => {
    const { args, target } = model.microbatch(rows);
    return measureUnits(model.program(rows), args, { lossFn, target, rounds: task.rounds, beforeUnit: together });
  });
  // All are tried or none is: what a trial shows must not be compared with what was only measured.
  const tries =
    task.mayTry && task.plans.every(({ ranks, dataParallel }) => ranks === group.size && dataParallel === undefined);
  const trials = task.plans.map((plan) => {
    const { args, target } = model.microbatch(plan.rows);
    const pipe = pipeline(model.program(plan.rows), { plan });
    const { rounds } = task;
    const options = { lossFn, target, rounds, schedule: planSchedule(plan), group };
    const settled = settlePlan(plan, measureStages(pipe, args, options));
    return { pipe, plan: settled, mbArgs: args as Tensor[], target: target as Tensor };
  });
  const plans = tries ? tryPlans(trials, { lossFn }) : trials.map(({ plan }) => plan);
  const mine: Measured = { tables, plans, link: measureLink(group) };
  const all = group.allGatherObject<Measured>(mine as unknown as torchDistributed.Json);
  if (group.rank === 0) writeFileSync(task.out, JSON.stringify(meanOf(all)));
}

/** Times of units are means over the ranks; the rest is the same on all of them. */
function meanOf(all: readonly Measured[]): Measured {
  const [first] = all as [Measured];
  const mean = <T extends object>(values: readonly T[], names: readonly (keyof T)[]): T => ({
    ...values[0]!,
    ...Object.fromEntries(
      names.flatMap((name) => {
        const numbers = values.map((value) => value[name]).filter((value) => typeof value === 'number');
        return numbers.length === 0 ? [] : [[name, numbers.reduce((sum, value) => sum + value, 0) / numbers.length]];
      }),
    ),
  });
  return {
    link: first.link,
    tables: first.tables.map((table, t) => ({
      ...table,
      units: table.units.map((_, u) =>
        mean(
          all.map(({ tables }) => tables[t]!.units[u]!),
          ['F', 'I', 'W', 'B'],
        ),
      ),
    })),
    plans: first.plans,
  };
}
