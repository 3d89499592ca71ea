/** @file Numbers as people read them, the same in every picture. */
import { ScheduleError, show } from '../model/errors.ts';

/**
 * A quantity: at most four significant digits, whole numbers in full.
 * @example quantity(28.5) // '28.5'
 */
export function quantity(value: number): string {
  if (typeof (value as unknown) !== 'number') throw notNumber('quantity', value);
  if (!Number.isFinite(value)) return String(value);
  if (value !== 0 && (Math.abs(value) >= 1e9 || Math.abs(value) < 1e-3)) return value.toPrecision(3);
  return String(Number(value.toPrecision(Math.abs(value) >= 1000 ? Math.ceil(Math.log10(Math.abs(value) + 1)) : 4)));
}

/**
 * A share as a percentage.
 * @example percent(0.2727) // '27.3%'
 */
export function percent(share: number): string {
  if (typeof (share as unknown) !== 'number') throw notNumber('percent', share);
  return `${(Math.max(0, share) * 100).toFixed(1)}%`;
}

/**
 * Round positions from 0 to `end`, about `count` of them.
 * @example ticks(33, 4) // [0, 10, 20, 30]
 */
export function ticks(end: number, count: number): number[] {
  if (!(end > 0)) return [0];
  const rough = end / Math.max(1, count);
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].map((f) => f * power).find((s) => s >= rough * 0.8)!;
  return Array.from({ length: Math.floor(end / step + 1e-9) + 1 }, (_, i) => Number((i * step).toPrecision(12)));
}

/**
 * A count with its noun.
 * @example plural(2, 'microbatch', 'microbatches') // '2 microbatches'
 */
export function plural(count: number, one: string, many?: string): string {
  if (typeof (count as unknown) !== 'number') throw notNumber('plural', count);
  for (const noun of [one, many ?? ''])
    if (typeof (noun as unknown) !== 'string')
      throw new ScheduleError('BAD_OPTION', `plural: the noun is ${show(noun)}; give it as a string`);
  return `${count} ${count === 1 ? one : (many ?? `${one}s`)}`;
}

function notNumber(where: string, value: unknown): ScheduleError {
  return new ScheduleError('BAD_OPTION', `${where}: give a number, not a ${typeof value}`);
}
