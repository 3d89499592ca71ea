/**
 * @file Costs of the stages of one cut of a model, for another cut of it: a stage that covers half of another one takes half of
 * its time and memory. Within a stage, work is taken to be spread evenly.
 */
import type { CostSettings } from './settings.ts';

/** A value for each of `stages` stages: a single one counts for all, and the last one for those that are missing. */
export function forStages(values: readonly number[], stages: number): number[] {
  return Array.from({ length: stages }, (_, stage) => values[Math.min(stage, values.length - 1)] ?? 0);
}

/** The costs of a model in `from` stages, for the same model in `to` stages. */
export function recut(costs: CostSettings, from: number, to: number): CostSettings {
  const amounts = (values: readonly number[]): number[] => {
    const given = forStages(values, from);
    return from === to
      ? given
      : Array.from({ length: to }, (_, stage) => amountWithin(given, stage / to, (stage + 1) / to));
  };
  const sampled = (values: readonly number[], at: (stage: number) => number): number[] => {
    const given = forStages(values, from);
    return Array.from({ length: to }, (_, stage) => given[Math.max(0, Math.min(from - 1, at(stage)))]!);
  };
  return {
    F: amounts(costs.F),
    I: amounts(costs.I),
    W: amounts(costs.W),
    B: costs.B.length === 0 ? [] : amounts(costs.B),
    // What leaves a stage is as large as what leaves the part of the model that it ends with.
    comm: sampled(costs.comm, (stage) => Math.ceil(((stage + 1) * from) / to - 1e-9) - 1),
    activation: amounts(costs.activation),
    retained: sampled(costs.retained, (stage) => Math.floor(((stage + 0.5) * from) / to)),
    parameters: amounts(costs.parameters),
    gradients: amounts(costs.gradients),
  };
}

/** What lies between two depths of the model, each a share of it. */
function amountWithin(given: readonly number[], begin: number, end: number): number {
  const count = given.length;
  let sum = 0;
  for (let stage = Math.floor(begin * count + 1e-9); stage < Math.min(count, end * count - 1e-9); stage++)
    sum += given[stage]! * (Math.min(end * count, stage + 1) - Math.max(begin * count, stage));
  return sum;
}
