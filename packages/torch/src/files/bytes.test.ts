import { expect, test } from 'vitest';
import { fromTypedArray, liveTensors, scope } from '../index.ts';
import { scanBytes, viewBytes } from './bytes.ts';

const bytes = Uint8Array.from({ length: 200 }, (_, i) => (i * 37) % 251);

test('every single bit, and the length, change the hash; the place in memory does not', () => {
  const seen = new Set<string>();
  scope(() => {
    const hashOf = (data: Uint8Array): string => scanBytes(fromTypedArray(data)).hash;
    seen.add(hashOf(bytes));
    for (let bit = 0; bit < bytes.length * 8; bit++) {
      const changed = Uint8Array.from(bytes);
      changed[bit >> 3]! ^= 1 << (bit & 7);
      seen.add(hashOf(changed));
    }
    for (let length = 0; length < bytes.length; length++) seen.add(hashOf(bytes.subarray(0, length)));
    expect(seen.size).toBe(1 + bytes.length * 9);
    const whole = fromTypedArray(bytes);
    expect(scanBytes(whole, { offset: 3, length: 131 }).hash).toBe(hashOf(bytes.slice(3, 134)));
  });
});

test('finite or not, by type', () => {
  const before = liveTensors();
  scope(() => {
    for (const dtype of ['float32', 'float64', 'float16', 'bfloat16'] as const)
      for (const value of [1, Number.NaN, Number.POSITIVE_INFINITY, Number.NEGATIVE_INFINITY]) {
        const data = fromTypedArray(new Float64Array([0, -1e4, value, 3])).to(dtype);
        const seen = scanBytes(data.view('uint8'), { dtype });
        expect(seen.finite, `${dtype} ${value}`).toBe(value === 1);
      }
    expect(scanBytes(fromTypedArray(new Uint8Array(16).fill(255)), { dtype: 'int64' }).finite).toBe(true);
  });
  expect(liveTensors()).toBe(before);
});

test('tensors over shared memory are written through', () => {
  scope(() => {
    const shared = new SharedArrayBuffer(64);
    const memory = fromTypedArray(new Uint8Array(shared), [64], { share: true });
    viewBytes(memory, { offset: 8, dtype: 'float64', shape: [2] }).fill_(2.5);
    expect([...new Float64Array(shared)]).toEqual([0, 2.5, 2.5, 0, 0, 0, 0, 0]);
    expect(() => viewBytes(memory, { offset: 60, dtype: 'float64', shape: [1] })).toThrow(/outside/);
    expect(() => scanBytes(memory, { offset: 60, length: 5 })).toThrow(/outside/);
  });
});
