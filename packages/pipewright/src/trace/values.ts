/** @file Values of a trace: what is known of tensors, and plain values as arguments of nodes. */
import { DType, FloatScalar, Tensor } from '@pipewright/torch';
import type { GraphArgument, ValueMeta } from '../graph/graph.ts';

/** What is known of a value. */
export function metaOf(value: unknown): ValueMeta {
  if (value instanceof Tensor) {
    const meta = { dtype: value.dtype.name, shape: value.shape };
    return value.requiresGrad ? { ...meta, requiresGrad: true } : meta;
  }
  return null;
}

/** A float as an argument of a node. */
export function encodeFloat(value: number): GraphArgument {
  if (Number.isNaN(value)) return { float: 'nan' };
  if (!Number.isFinite(value)) return { float: value > 0 ? 'inf' : '-inf' };
  return { float: value };
}

/** A whole number, or a float. */
export function encodeNumber(value: number | bigint): GraphArgument {
  if (typeof value === 'bigint')
    return BigInt(Number(value)) === value && Number.isSafeInteger(Number(value))
      ? Number(value)
      : { int: value.toString() };
  return Number.isSafeInteger(value) && !Object.is(value, -0) ? value : encodeFloat(value);
}

/** A number, string, boolean or null as an argument of a node; nothing for anything else. */
export function encodePlain(value: unknown): GraphArgument | undefined {
  if (value === null || typeof value === 'boolean' || typeof value === 'string') return value;
  if (typeof value === 'number' || typeof value === 'bigint') return encodeNumber(value);
  if (value instanceof FloatScalar) return encodeFloat(value.float);
  if (value instanceof DType) return { dtype: value.name };
  if (typeof value === 'object' && value !== null && 're' in value && 'im' in value)
    return { complex: [value.re as number, value.im as number] };
  return undefined;
}
