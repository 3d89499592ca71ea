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

test.each([
  [[300], 'int8', /^tensor: 300 does not fit into int8/],
  [[-129], 'int8', /-129 does not fit/],
  [[256.5], 'uint8', /256.5 does not fit/],
  [[2 ** 31], 'int32', /2147483648 does not fit into int32/],
  [[2 ** 63], 'int64', /does not fit into int64/],
  [[2n ** 64n], 'uint64', /does not fit into uint64/],
  [[1, Number.NaN], 'int64', /NaN does not fit/],
  [[Number.POSITIVE_INFINITY], 'int16', /Infinity does not fit/],
  [[1, { re: 1, im: 0 }], 'float32', /a complex number cannot become a real one/],
  [[{ re: 1, im: 2 }], 'int64', /a complex number cannot become a real one/],
] as const)('%o is refused as %s, instead of becoming other numbers', (values, dtype, message) => {
  expect(() => tensor(values, { dtype })).toThrow(expect.objectContaining({ code: 'DTYPE' }));
  expect(() => tensor(values, { dtype })).toThrow(message);
});

test('what a type holds is taken up to its bounds; fractions are cut off, negative numbers wrap around in unsigned types', () => {
  expect(tensor([-128, 127.9, -0.5], { dtype: 'int8' }).toArray()).toEqual([-128, 127, 0]);
  expect(tensor([255, -1], { dtype: 'uint8' }).toArray()).toEqual([255, 255]);
  expect(tensor([-(2n ** 63n), 2n ** 63n - 1n], { dtype: 'int64' }).toArray()).toEqual([-(2n ** 63n), 2n ** 63n - 1n]);
  expect(tensor([2n ** 64n - 1n], { dtype: 'uint64' }).toArray()).toEqual([2n ** 64n - 1n]);
  expect(tensor([-(2 ** 63)], { dtype: 'int64' }).toArray()).toEqual([-(2n ** 63n)]);
  expect(tensor([1e6], { dtype: 'float16' }).toArray()).toEqual([Number.POSITIVE_INFINITY]);
});

test('a number written at a mask is held to the same bounds', () => {
  const [bytes, mask] = [zeros([2], { dtype: 'uint8' }), tensor([true, false])];
  expect(() => bytes.set_([mask], 300)).toThrow(/300 does not fit into uint8/);
  expect(() => zeros([2]).set_([mask], { re: 1, im: 2 })).toThrow(/complex number/);
  expect(bytes.toArray()).toEqual([0, 0]);
});

test('bytes read as booleans are true unless zero', () => {
  const flags = fromTypedArray(Uint8Array.of(0, 1, 2, 255), [4], { dtype: 'bool' });
  expect([flags.toArray(), flags.sum().item()]).toEqual([[false, true, true, true], 3]);
});
