/** @file Tensors inside arrays, plain objects and maps, nested, in order. Everything else is left as it is. */
import { TorchError } from '../base/errors.ts';
import { Tensor } from './tensor.ts';

/** How deep structures may be nested; deeper ones most likely contain themselves. */
const MAX_DEPTH = 500;

/**
 * The same structure with every tensor replaced; other values stay as they are.
 *
 * @example mapTensors({ x, step: 3 }, (t) => t.detach())
 */
export function mapTensors(value: unknown, change: (tensor: Tensor) => unknown): unknown {
  if (typeof change !== 'function')
    throw new TorchError(
      'BAD_ARGUMENT',
      `mapTensors: the second argument is a ${typeof change}; give a function of a tensor`,
    );
  return map(value, change, 0);
}

function map(value: unknown, change: (tensor: Tensor) => unknown, depth: number): unknown {
  if (value instanceof Tensor) return change(value);
  if (typeof value !== 'object' || value === null) return value;
  if (depth > MAX_DEPTH)
    throw new TorchError(
      'TREE_DEPTH',
      `mapTensors: the value is nested more than ${MAX_DEPTH} levels deep; does it contain itself?`,
    );
  if (Array.isArray(value)) return value.map((item) => map(item, change, depth + 1));
  if (value instanceof Map) return new Map([...value].map(([key, item]) => [key, map(item, change, depth + 1)]));
  if (!isPlainObject(value)) return value;
  return Object.fromEntries(Object.entries(value).map(([key, item]) => [key, map(item, change, depth + 1)]));
}

/** The tensors of a structure, in order. @example tensorsIn([x, { y, n: 3 }]) // [x, y] */
export function tensorsIn(value: unknown): Tensor[] {
  const found: Tensor[] = [];
  mapTensors(value, (tensor) => {
    found.push(tensor);
    return tensor;
  });
  return found;
}

/** Whether a value is an object written as `{ ... }`, not one of a class. @example isPlainObject({ a: 1 }) // true */
export function isPlainObject(value: unknown): value is Record<string, unknown> {
  if (typeof value !== 'object' || value === null) return false;
  const prototype: unknown = Object.getPrototypeOf(value);
  return prototype === Object.prototype || prototype === null;
}
