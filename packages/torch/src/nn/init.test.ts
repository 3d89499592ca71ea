/**
 * @file Initial values are PyTorch's under the same seed, and draw as many random numbers. A drawn number is scaled and moved: with
 * instructions that do both at once it is rounded once, with others twice.
 */
import { readFileSync } from 'node:fs';
import { expect, test } from 'vitest';
import { allowedDifference } from '../../testing/rounding.ts';
import { type DTypeName, empty, manualSeed, nn, rand, scope, type Tensor, zeros } from '../index.ts';

interface Case {
  readonly name: string;
  readonly shape: readonly number[];
  readonly args: readonly number[];
  readonly options: Readonly<Record<string, unknown>>;
  readonly dtype: DTypeName;
  readonly values: readonly number[];
  /** The random number that comes next. */
  readonly next: number;
}

const cases = JSON.parse(readFileSync(new URL('../../../../testdata/nn/init.json', import.meta.url), 'utf8')) as Case[];
type Fill = (target: Tensor, ...rest: unknown[]) => Tensor;

test.each(cases.map((item) => [`${item.name} ${JSON.stringify([...item.args, item.options])}`, item] as const))(
  '%s',
  (_, item) => {
    const name = item.name.replace(/_([a-z])/g, (_, letter: string) => letter.toUpperCase()) as keyof typeof nn.init;
    scope(() => {
      manualSeed(3);
      const target = empty(item.shape, { dtype: item.dtype });
      const rest = Object.keys(item.options).length > 0 ? [...item.args, item.options] : item.args;
      expect((nn.init[name] as unknown as Fill)(target, ...rest)).toBe(target);
      const values = Array.from(target.toTypedArray(), Number);
      if (item.name === 'orthogonal_')
        values.forEach((value, i) => expect(value).toBeCloseTo(item.values[i] as number, 12));
      else {
        const largest = Math.max(...item.values.map(Math.abs));
        values.forEach((value, i) => {
          const want = item.values[i] as number;
          const allowed = allowedDifference(target.dtype, Math.abs(want), { terms: largest, units: 2 });
          expect(Math.abs(value - want), `element ${i}`).toBeLessThanOrEqual(allowed);
        });
      }
      expect(rand([]).item()).toBe(item.next);
    });
  },
);

test('gains and fans', () => {
  expect(['linear', 'tanh', 'relu', 'selu'].map((name) => nn.init.calculateGain(name))).toEqual([
    1,
    5 / 3,
    Math.SQRT2,
    0.75,
  ]);
  expect(nn.init.calculateGain('leaky_relu', 0.2)).toBe(Math.sqrt(2 / 1.04));
  expect(nn.init.calculateFanInAndFanOut(zeros([6, 4, 3, 2]))).toEqual([24, 36]);
  expect(() => nn.init.calculateGain('leaky-relu')).toThrowErrorMatchingInlineSnapshot(
    `[TorchError: calculateGain: there is no gain for 'leaky-relu' (did you mean 'leaky_relu'?)]`,
  );
  expect(() => nn.init.xavierUniform_(zeros([3]))).toThrowErrorMatchingInlineSnapshot(
    `[TorchError: calculateFanInAndFanOut: the tensor must have at least 2 dimensions, this one has 1]`,
  );
});

test('parameters are filled without a trace in the graph', () => {
  const parameter = new nn.Parameter(zeros([2, 2]));
  expect(nn.init.ones_(parameter)).toBe(parameter);
  expect([parameter.isLeaf, parameter.requiresGrad, parameter.sum().item()]).toEqual([true, true, 4]);
});

test.each(Object.keys(nn.init) as (keyof typeof nn.init)[])('%s refuses undefined, by its own name', (name) => {
  const call = nn.init[name] as (target: unknown) => unknown;
  expect(() => call(undefined)).toThrow(
    expect.objectContaining({ code: 'BAD_ARGUMENT', message: expect.stringMatching(`^${name}: `) }),
  );
});
