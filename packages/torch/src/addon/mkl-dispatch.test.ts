/** @file Which kernels MKL chooses, and that their products are right. */
import { execFileSync } from 'node:child_process';
import { readFileSync } from 'node:fs';
import { expect, test } from 'vitest';
import { manualSeed, mm, noGrad, randn, scope } from '../index.ts';

/** What the processor says of itself. */
const processor = process.platform === 'linux' ? readFileSync('/proc/cpuinfo', 'utf8') : '';
const isIntel = /GenuineIntel/.test(processor);
const hasAvx512 = ['avx512f', 'avx512dq', 'avx512bw', 'avx512vl'].every((name) => processor.includes(name));

/** How MKL chooses in a process of its own, after a product. */
function choiceWith(wish: string): string {
  const index = new URL('../../dist/index.js', import.meta.url).href;
  const addon = new URL('../../dist/addon/addon.js', import.meta.url).href;
  const code = `const { mm, ones } = await import('${index}'); const { native } = await import('${addon}');
    mm(ones([64, 64]), ones([64, 64])); console.log(native.mklDispatch());`;
  const env = { ...process.env, PIPEWRIGHT_MKL: wish };
  return execFileSync(process.execPath, ['--input-type=module', '-e', code], { env, encoding: 'utf8' }).trim();
}

test('MKL goes by the features of the processor, or by its vendor where that is asked for', () => {
  const [usual, asked] = [choiceWith(''), choiceWith('vendor')];
  if (usual === '') return expect(asked).toBe(''); // this libtorch has no MKL, or one that does not ask
  expect(usual).toBe(isIntel || hasAvx512 ? 'features' : 'vendor');
  expect(asked).toBe(isIntel ? 'features' : 'vendor');
});

test.each([
  [1, 1, 1],
  [3, 129, 5],
  [17, 33, 65],
  [64, 64, 64],
  [31, 257, 130],
])('products of %i x %i and %i columns are the sums of their terms', (m, k, n) => {
  manualSeed(m + k + n);
  for (const dtype of ['float32', 'float64'] as const)
    scope(() =>
      noGrad(() => {
        const [a, b] = [randn([m, k], { dtype }), randn([n, k], { dtype })];
        const got = mm(a, b.t()).toArray() as number[][];
        const [rows, columns] = [a.toArray() as number[][], b.toArray() as number[][]];
        const unit = dtype === 'float32' ? 2 ** -24 : 2 ** -53;
        rows.forEach((row, i) => {
          columns.forEach((column, j) => {
            const terms = row.map((value, at) => value * column[at]!);
            const [sum, size] = [terms.reduce((x, y) => x + y, 0), terms.reduce((x, y) => x + Math.abs(y), 0)];
            // A sum of k terms is off by k units of their size at most; twice, because this sum is rounded too.
            expect(Math.abs(got[i]![j]! - sum)).toBeLessThanOrEqual(2 * k * unit * size);
          });
        });
      }),
    );
});
