/** @file Costs given as one number or as one for each stage, spread over the stages. */

import { ScheduleError, show } from '../model/errors.ts';
import type { PerStage } from './costs.ts';

/** A cost to be spread: its name, its value, and the default. */
interface Spread {
  readonly caller: string;
  readonly name: string;
  readonly value: PerStage | undefined;
  readonly fallback: number;
  readonly stages: number;
}

/** One number for each stage, checked. */
export function spreadOver({ caller, name, value, fallback, stages }: Spread): Float64Array {
  if (value === undefined) return new Float64Array(stages).fill(fallback);
  if (typeof value === 'number') {
    checkCost(caller, name, value);
    return new Float64Array(stages).fill(value);
  }
  if (!Array.isArray(value) && !(value instanceof Float64Array)) {
    throw new ScheduleError(
      'BAD_OPTION',
      `${caller}: ${name} must be a number or an array of one number per stage, got ${show(value)}`,
    );
  }
  if (value.length !== stages) {
    throw new ScheduleError(
      'BAD_OPTION',
      `${caller}: ${name} has ${value.length} values for ${stages} stages; give one number, or one per stage`,
    );
  }
  value.forEach((cost, stage) => {
    checkCost(caller, `${name}[${stage}]`, cost);
  });
  return Float64Array.from(value);
}

/** A cost is finite and not negative. */
export function checkCost(caller: string, name: string, cost: unknown): void {
  if (typeof cost === 'number' && Number.isFinite(cost) && cost >= 0) return;
  throw new ScheduleError('BAD_OPTION', `${caller}: ${name} must be a finite number of at least 0, got ${show(cost)}`);
}
