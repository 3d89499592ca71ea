/**
 * @file The rule by which tests compare floating-point numbers that another processor computed. Kernels for AVX-512, AVX2
 * and plain instructions add in different orders and contract products differently, so results differ in their last
 * places: by some units in the last place of the value itself, and, where a value is a sum whose terms cancel, by some
 * units of the size of those terms. Integers, booleans, infinities and NaN are equal or wrong.
 */
import type { DType } from '../src/tensor/dtype.ts';
import { type Element, Tensor } from '../src/tensor/tensor.ts';

/** Digits after the leading one, the exponent of the smallest number, and how many units in the last place a function may be off. */
const formats: Readonly<Record<string, { digits: number; smallest: number; units: number }>> = {
  float64: { digits: 52, smallest: -1074, units: 4096 },
  complex128: { digits: 52, smallest: -1074, units: 4096 },
  float32: { digits: 23, smallest: -149, units: 96 },
  complex64: { digits: 23, smallest: -149, units: 96 },
  float16: { digits: 10, smallest: -24, units: 1 },
  bfloat16: { digits: 7, smallest: -133, units: 1 },
};

/** How many units of the size of its terms a sum may be off. */
const TERM_UNITS = 16;

/** The unit in the last place of numbers of this size. @example unitOf(float32, 1) // 2 ** -23 */
export function unitOf(dtype: DType, size: number): number {
  const format = formats[dtype.name];
  if (format === undefined || !Number.isFinite(size)) return 0;
  return 2 ** Math.max(Math.floor(Math.log2(size)) - format.digits, format.smallest);
}

/** What is known of the numbers that are compared. */
export interface Rounding {
  /** The size of the terms of which each value is a sum; by default the largest value of the tensor. */
  readonly terms?: number | undefined;
  /** Units in the last place of a value that it may be off; by default what functions of its type are off. */
  readonly units?: number | undefined;
}

/** How far apart two values of a type may lie. */
export function allowedDifference(dtype: DType, size: number, { terms = size, units }: Rounding = {}): number {
  const format = formats[dtype.name];
  if (format === undefined) return 0;
  const relative = size === 0 ? 0 : (units ?? format.units) * unitOf(dtype, size);
  return relative + (terms > 0 ? Math.min(TERM_UNITS, units ?? TERM_UNITS) * unitOf(dtype, terms) : 0);
}

/** All numbers of a tensor, in order; complex ones as two. */
export function numbersOf(tensor: Tensor): number[] {
  const flat = (value: unknown): Element[] => (Array.isArray(value) ? value.flatMap(flat) : [value as Element]);
  return flat(tensor.toArray()).flatMap((value) =>
    typeof value === 'object' ? [value.re, value.im] : [Number(value)],
  );
}

/** The largest finite absolute value in these tensors. */
export function largestIn(...tensors: readonly Tensor[]): number {
  let largest = 0;
  for (const tensor of tensors)
    for (const value of numbersOf(tensor)) if (Number.isFinite(value)) largest = Math.max(largest, Math.abs(value));
  return largest;
}

/** Says where a tensor is not what was computed elsewhere, or nothing. */
export function differenceOf(got: unknown, want: Tensor, rounding: Rounding = {}): string {
  if (!(got instanceof Tensor)) return 'not a tensor';
  if (got.dtype !== want.dtype) return `dtype ${got.dtype.name}, expected ${want.dtype.name}`;
  if (got.shape.join() !== want.shape.join()) return `shape [${got.shape}], expected [${want.shape}]`;
  const [found, expected] = [numbersOf(got), numbersOf(want)];
  const terms = rounding.terms ?? largestIn(want);
  for (let i = 0; i < expected.length; i++) {
    const [x, y] = [found[i] as number, expected[i] as number];
    if (Object.is(x, y) || x === y) continue;
    const size = Math.max(Math.abs(x), Math.abs(y));
    const allowed = allowedDifference(want.dtype, size, { ...rounding, terms });
    if (!(Math.abs(x - y) <= allowed))
      return `element ${i}: ${x}, expected ${y}; ${Math.abs(x - y)} apart, allowed ${allowed}`;
  }
  return '';
}
