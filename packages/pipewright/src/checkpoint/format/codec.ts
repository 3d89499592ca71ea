/** @file States of schedulers, loaders and the like as JSON, including tensors and numbers that JSON does not have. */
import { dtypes, fromTypedArray, scope, Tensor } from '@pipewright/torch';
import { viewBytes } from '@pipewright/torch/internal';
import { show } from '../../base/checks.ts';
import { PipelineError } from '../../base/errors.ts';
import { isPlainObject } from '../../base/tree.ts';

/** Any JSON value. */
export type Json = null | boolean | number | string | readonly Json[] | { readonly [key: string]: Json };

const MARK = '$pipewright';

/** A value as JSON; what cannot be stored is an error with its place. */
export function encode(value: unknown, place: string): Json {
  if (value === null || typeof value === 'boolean' || typeof value === 'string') return value;
  if (typeof value === 'number')
    return Number.isFinite(value) && !Object.is(value, -0) ? value : { [MARK]: 'number', value: numberText(value) };
  if (typeof value === 'bigint') return { [MARK]: 'bigint', value: String(value) };
  if (value === undefined) return { [MARK]: 'undefined' };
  if (value instanceof Tensor) return encodeTensor(value);
  if (value instanceof Uint8Array) return { [MARK]: 'bytes', value: Buffer.from(value).toString('base64') };
  if (Array.isArray(value)) return value.map((item, i) => encode(item, `${place}[${i}]`));
  if (value instanceof Map)
    return {
      [MARK]: 'map',
      value: [...(value as Map<unknown, unknown>)].map(([key, item]) => [
        encode(key, `${place} key`),
        encode(item, `${place}.${String(key)}`),
      ]),
    };
  if (!isPlainObject(value) || Object.hasOwn(value, MARK))
    throw new PipelineError(
      'CHECKPOINT_STATE',
      `checkpoint: ${place} is ${show(value)}, which cannot be stored; use plain objects, arrays, texts, numbers and tensors`,
      { place },
    );
  return Object.fromEntries(Object.entries(value).map(([key, item]) => [key, encode(item, `${place}.${key}`)]));
}

/** The value that `encode` was called with. */
export function decode(json: Json): unknown {
  if (typeof json !== 'object' || json === null) return json;
  if (Array.isArray(json)) return json.map(decode);
  const record = json as Readonly<Record<string, Json>>;
  const { [MARK]: mark, value } = record;
  if (mark === undefined) return Object.fromEntries(Object.entries(record).map(([key, item]) => [key, decode(item)]));
  if (mark === 'undefined') return undefined;
  if (mark === 'number' && typeof value === 'string') return Number(value);
  if (mark === 'bigint' && typeof value === 'string' && /^-?\d{1,400}$/.test(value)) return BigInt(value);
  if (mark === 'bytes' && typeof value === 'string') return new Uint8Array(Buffer.from(value, 'base64'));
  if (mark === 'map' && Array.isArray(value) && value.every((pair) => Array.isArray(pair) && pair.length === 2))
    return new Map(value.map((pair) => [decode((pair as Json[])[0] as Json), decode((pair as Json[])[1] as Json)]));
  if (mark === 'tensor') return decodeTensor(record);
  throw new PipelineError('BAD_CHECKPOINT', `checkpoint: a stored state has a part of the unknown kind ${show(mark)}`);
}

function numberText(value: number): string {
  return Object.is(value, -0) ? '-0' : String(value);
}

function encodeTensor(tensor: Tensor): Json {
  return scope(() => {
    const bytes = tensor.detach().cpu().contiguous().reshape([-1]).view('uint8').toTypedArray() as Uint8Array;
    const value = Buffer.from(bytes.buffer, bytes.byteOffset, bytes.byteLength).toString('base64');
    return { [MARK]: 'tensor', dtype: tensor.dtype.name, shape: tensor.shape, value };
  });
}

function decodeTensor({ dtype, shape, value }: Readonly<Record<string, Json>>): Tensor {
  const type = typeof dtype === 'string' ? dtypes.get(dtype) : undefined;
  const isShape =
    Array.isArray(shape) &&
    shape.length <= 64 &&
    shape.every((size) => Number.isSafeInteger(size) && Number(size) >= 0);
  const bytes = typeof value === 'string' ? new Uint8Array(Buffer.from(value, 'base64')) : null;
  const needed = isShape ? (shape as number[]).reduce((product, size) => product * size, type?.itemSize ?? 1) : -1;
  if (type === undefined || bytes === null || needed !== bytes.length)
    throw new PipelineError(
      'BAD_CHECKPOINT',
      'checkpoint: a tensor in a stored state has no sound type, shape or bytes',
    );
  if (bytes.length === 0) return fromTypedArray(new Float32Array(0), shape as number[]).to(type);
  return scope(() => viewBytes(fromTypedArray(bytes), { offset: 0, dtype: type, shape: shape as number[] }).clone());
}
