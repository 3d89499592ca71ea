/** @file How the generated hot operators hand lists to the addon: through the array it shares with TypeScript. */
import { native } from '../addon/addon.ts';
import { HOT_LIST, HOT_LIST_LONGEST } from '../addon/generated/border.ts';
import { Tensor } from '../tensor/tensor.ts';

const shared = native.metaArray;

/** The handle of an optional tensor. */
export function handleOrZero(value: Tensor | null | undefined): number {
  if (value === undefined || value === null) return 0;
  return value.handle;
}

/** Writes an array of numbers to the shared list and returns its length, or -1 when it is no such array. */
export function list(values: unknown): number {
  if (!Array.isArray(values)) return -1;
  const { length } = values;
  if (length > HOT_LIST_LONGEST) return -1;
  for (let i = 0; i < length; i++) {
    const value: unknown = values[i];
    if (typeof value !== 'number') return -1;
    shared[HOT_LIST + i] = value;
  }
  return length;
}

/** The same, where a number alone is a list of one. */
export function listOrOne(values: unknown): number {
  if (typeof values !== 'number') return list(values);
  shared[HOT_LIST] = values;
  return 1;
}

/** Writes the first `count` of six numbers to the shared list and returns `count`, or -1 when one is no number. */
export function spread(count: number, ...values: unknown[]): number {
  if (count > values.length) return -1;
  for (let i = 0; i < count; i++) {
    const value = values[i];
    if (typeof value !== 'number') return -1;
    shared[HOT_LIST + i] = value;
  }
  return count;
}

/** Writes the handles of an array of tensors to the shared list and returns its length, or -1. */
export function tensors(values: unknown): number {
  if (!Array.isArray(values)) return -1;
  const { length } = values;
  if (length > HOT_LIST_LONGEST) return -1;
  for (let i = 0; i < length; i++) {
    const value: unknown = values[i];
    if (!(value instanceof Tensor)) return -1;
    shared[HOT_LIST + i] = value.handle;
  }
  return length;
}
