/** @file Tensors of typed arrays, whichever context of `node:vm` made them. */
import { runInNewContext } from 'node:vm';
import { expect, test } from 'vitest';
import { fromTypedArray, permute, type TypedArray, tensor, zeros } from '../index.ts';

const arrays: Record<string, string> = {
  Float32Array: 'float32',
  Float64Array: 'float64',
  Int8Array: 'int8',
  Int16Array: 'int16',
  Int32Array: 'int32',
  BigInt64Array: 'int64',
  Uint8Array: 'uint8',
  Uint8ClampedArray: 'uint8',
  Uint16Array: 'uint16',
  Uint32Array: 'uint32',
  BigUint64Array: 'uint64',
};

test.each(Object.entries(arrays))('a %s of another context gives %s', (name, dtype) => {
  const n = name.startsWith('Big') ? 'n' : '';
  const data = runInNewContext(`${name}.of(1${n}, 2${n}, 3${n})`) as TypedArray;
  expect(fromTypedArray(data).dtype.name).toBe(dtype);
  expect(fromTypedArray(data).toArray()).toEqual([1, 2, 3]);
  expect(tensor(data).dtype.name).toBe(dtype);
});

test('sizes and numbers of another context are those of their array', () => {
  const order = runInNewContext('Int32Array.of(1, 0)') as Int32Array;
  expect(permute(zeros([2, 3]), order as unknown as number[]).shape).toEqual([3, 2]);
});
