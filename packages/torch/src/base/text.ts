/** @file Values as Python prints them: modules print as PyTorch's do, to the letter. */
import { show } from './checks.ts';
import { TorchError } from './errors.ts';
import { FloatScalar } from './float-scalar.ts';

/** A number with a default of its own kind: `2` prints as 2, `float(2)` as 2.0 where PyTorch would tell them apart. */
export type Real = number | FloatScalar;

/** The number itself. */
export function toNumber(value: Real): number {
  if (typeof value === 'number') return value;
  if (value instanceof FloatScalar) return value.float;
  throw new TorchError('BAD_ARGUMENT', `a number is needed, got ${show(value)}`);
}

/** A floating-point number as Python prints it. @example floatText(0.00001) // '1e-05' */
export function floatText(value: number): string {
  if (Number.isNaN(value)) return 'nan';
  if (!Number.isFinite(value)) return value > 0 ? 'inf' : '-inf';
  const [, sign = '', lead = '', tail = '', power = ''] = /^(-?)(\d)\.?(\d*)e(.*)$/.exec(value.toExponential()) ?? [];
  const exponent = Number(power);
  const digits = lead + tail;
  if (value !== 0 && (exponent < -4 || exponent >= 16)) {
    const size = String(Math.abs(exponent)).padStart(2, '0');
    return `${sign}${lead}${tail === '' ? '' : `.${tail}`}e${exponent < 0 ? '-' : '+'}${size}`;
  }
  const minus = Object.is(value, -0) ? '-' : sign;
  if (exponent < 0) return `${minus}0.${'0'.repeat(-exponent - 1)}${digits}`;
  return `${minus}${digits.slice(0, exponent + 1).padEnd(exponent + 1, '0')}.${digits.slice(exponent + 1) || '0'}`;
}

/** A number as given: whole ones without a point unless they are marked with `float()`. */
export function realText(value: Real): string {
  if (value instanceof FloatScalar) return floatText(value.float);
  return Number.isInteger(value) ? String(value) : floatText(value);
}

/** Anything an option can be, as Python's `repr` shows it; arrays are tuples. @example repr([3, null]) // '(3, None)' */
export function repr(value: unknown): string {
  if (value === null || value === undefined) return 'None';
  if (typeof value === 'boolean') return value ? 'True' : 'False';
  if (typeof value === 'string') return `'${value}'`;
  if (Array.isArray(value)) return tupleText(value);
  if (typeof value === 'number' || value instanceof FloatScalar) return realText(value);
  return String(value as bigint);
}

/** `(3,)`, `(3, 4)` */
export function tupleText(values: readonly unknown[]): string {
  return values.length === 1 ? `(${repr(values[0])},)` : `(${values.map(repr).join(', ')})`;
}

/** Indents all lines but the first. */
export function indent(text: string, by: number): string {
  return text.replaceAll('\n', `\n${' '.repeat(by)}`);
}
