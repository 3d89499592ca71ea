import { expect, test } from 'vitest';
import { fromTypedArray, liveTensors, manualSeed, nn, randn, scope } from '../index.ts';
import { copyTensors, hashRanges, scanBytes, viewBytes } from './bytes.ts';

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

test('many ranges by several threads give what each gives alone, with and without special instructions', () => {
  scope(() => {
    manualSeed(1);
    const data = randn([5_000_003]).view('uint8');
    const ranges = Array.from({ length: 41 }, (_, i) => ({ offset: i * 487_651, length: 400_000 + i * 13 }));
    const found = hashRanges(data, ranges);
    expect(new Set(found).size).toBe(41);
    expect(found).toEqual(ranges.map((range) => scanBytes(data, range).hash));
    expect(hashRanges(data, ranges, { portable: true })).toEqual(found);
    // Two stripes exchanged, and two words exchanged within one: the sums of their words stay the same.
    for (const [size, far] of [
      [64, 64],
      [64, 1024],
      [64, 4096],
      [8, 16],
    ] as const) {
      const whole = (data.toTypedArray() as Uint8Array).slice(0, 8192);
      const first = whole.slice(0, size);
      const other = Uint8Array.from(whole);
      other.copyWithin(0, far, far + size);
      other.set(first, far);
      expect(scanBytes(fromTypedArray(other)).hash).not.toBe(scanBytes(fromTypedArray(whole)).hash);
    }
    expect(() => hashRanges(data, [{ offset: 20_000_000, length: 13 }])).toThrow(/outside/);
    expect(hashRanges(data, [])).toEqual([]);
  });
});

test('tensors are copied: plain ones by several threads, others as copy_ does, and autograd knows that they changed', () => {
  scope(() => {
    manualSeed(2);
    const large = randn([4_000_000]);
    const parameter = new nn.Parameter(randn([4_000_000]));
    const pairs = [
      [parameter, large],
      [randn([3, 4]).t(), randn([4, 3])],
      [randn([2, 2]).to('float64'), randn([2, 2])],
      [fromTypedArray(new Float32Array(0)), fromTypedArray(new Float32Array(0))],
    ] as const;
    const product = parameter.mul(parameter);
    copyTensors(
      pairs.map(([to]) => to),
      pairs.map(([, from]) => from),
    );
    for (const [to, from] of pairs) expect(to.detach().to('float32').equal(from)).toBe(true);
    expect(() => product.sum().backward()).toThrow(/modified by an inplace operation/);
  });
});
