/** @file Amounts that were typed: numbers with or without units, and what is wrong with them. */
import { plural } from '@pipewright/schedule';
import { parseAmounts } from './settings.ts';

/** What an amount is measured in. */
export type Unit = 'ms' | 'GB';

/** Units that may be typed, by the unit of the field. */
const factors: Readonly<Record<Unit, Readonly<Record<string, number>>>> = {
  ms: { s: 1000, ms: 1, us: 1e-3, µs: 1e-3 },
  GB: { tb: 1000, gb: 1, mb: 1e-3, kb: 1e-6 },
};

/**
 * Amounts in a unit; null where the text is something else.
 * @example readAmounts('20 GB, 500 MB', 'GB') // [20, 0.5]
 */
export function readAmounts(text: string, unit: Unit): readonly number[] | null {
  let isKnown = true;
  const plain = text.replace(/([\d.])\s*([a-zµ]+)(?=[\s,]|$)/giu, (whole: string, digit: string, name: string) => {
    const factor = factors[unit][name.toLowerCase()];
    if (factor === undefined) isKnown = false;
    return factor === undefined ? whole : `${digit}*${factor}`;
  });
  if (!isKnown) return null;
  const factorOf = (item: string): number => Number(item.split('*')[1] ?? 1);
  const values = parseAmounts(plain.replace(/\*[\d.e-]+/g, ''));
  const items = plain.trim().split(/\s*,\s*|\s+/);
  return values?.map((value, i) => Number((value * factorOf(items[i] ?? '')).toPrecision(12))) ?? null;
}

/** What is wrong with a text that should be amounts; null where nothing is. */
export function amountsProblem(text: string, unit: Unit): string | null {
  return readAmounts(text, unit) === null ? `numbers of at least 0, such as 2 or 1.5 ${unit}` : null;
}

/** What becomes of a wrong number of values; null where there is one for all or one for each. */
export function countProblem(given: number, wanted: number, of: string): string | null {
  if (given <= 1 || given === wanted) return null;
  const much = `${given} values for ${plural(wanted, of)}`;
  return given < wanted ? `${much}: the last is used for the rest` : `${much}: the last ${given - wanted} ignored`;
}

/** What is wrong with a text that should be a whole number; null where nothing is. */
export function wholeProblem(text: string, most: number): string | null {
  const value = Number(text);
  const isFine = text.trim() !== '' && Number.isInteger(value) && value >= 1 && value <= most;
  return isFine ? null : `a whole number from 1 to ${most}`;
}
