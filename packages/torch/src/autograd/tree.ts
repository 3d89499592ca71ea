/** @file Tensors inside arrays and plain objects, in order. */
import { Tensor } from '../tensor/tensor.ts';

/** Replaces every tensor in a structure of arrays and plain objects; other objects stay as they are. */
export function mapTensors(value: unknown, change: (tensor: Tensor) => Tensor): unknown {
  if (value instanceof Tensor) return change(value);
  if (Array.isArray(value)) return value.map((item) => mapTensors(item, change));
  if (isPlainObject(value))
    return Object.fromEntries(Object.entries(value).map(([key, item]) => [key, mapTensors(item, change)]));
  return value;
}

/** Every tensor of a structure, in the order in which `mapTensors` meets them. */
export function tensorsIn(value: unknown): Tensor[] {
  const found: Tensor[] = [];
  mapTensors(value, (tensor) => {
    found.push(tensor);
    return tensor;
  });
  return found;
}

function isPlainObject(value: unknown): value is Record<string, unknown> {
  if (typeof value !== 'object' || value === null) return false;
  const prototype: unknown = Object.getPrototypeOf(value);
  return prototype === Object.prototype || prototype === null;
}
