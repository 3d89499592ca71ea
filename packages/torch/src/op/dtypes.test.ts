/** @file The rules of docs/reference/dtypes.md: its examples are run, its tables are checked. */
import { readFileSync } from 'node:fs';
import { afterEach, describe, expect, test } from 'vitest';
import * as torch from '../index.ts';

const text = readFileSync(new URL('../../../../docs/reference/dtypes.md', import.meta.url), 'utf8');

afterEach(() => torch.setDefaultDtype('float32'));

/** Evaluates an expression over the exports of the package. */
function evaluate(expression: string): unknown {
  const names = Object.keys(torch).filter((name) => /^[A-Za-z]\w*$/.test(name) && name !== 'var');
  // oxlint-disable-next-line typescript/no-implied-eval -- the examples of a document of ours
  const body = new Function(...names, `return (${expression});`);
  return body(...names.map((name) => (torch as Record<string, unknown>)[name]));
}

describe('docs/reference/dtypes.md', () => {
  const examples = [...text.matchAll(/`(\w+\([^`]+\))` is (bool|int64|float32|float64|complex64)/g)].map((match) => [
    match[1] as string,
    match[2] as string,
  ]);
  test.each(examples)('%s is %s', (expression, dtype) => {
    expect((evaluate(expression) as torch.Tensor).dtype.name).toBe(dtype);
  });
  test('has examples', () => expect(examples.length).toBeGreaterThan(8));

  const pairs = [...text.matchAll(/^\| (\w+) \| (\w+) \| (\w+) \|$/gm)].map(
    (match) => match.slice(1, 4) as [torch.DTypeName, torch.DTypeName, torch.DTypeName],
  );
  test.each(pairs.filter(([a]) => torch.dtypes.has(a)))('%s with %s is %s', (a, b, result) => {
    expect(torch.ones(2, { dtype: a }).add(torch.ones(2, { dtype: b })).dtype.name).toBe(result);
  });
});

describe('numbers', () => {
  const { float, ones, tensor } = torch;
  const cases: [torch.DTypeName, torch.Scalar, torch.DTypeName][] = [
    ['float32', 2, 'float32'],
    ['float32', 2.5, 'float32'],
    ['bfloat16', float(2), 'bfloat16'],
    ['int64', 2, 'int64'],
    ['int64', 2.5, 'float32'],
    ['int64', float(2), 'float32'],
    ['uint8', 2, 'uint8'],
    ['bool', 2, 'int64'],
    ['bool', true, 'bool'],
    ['float32', { re: 0, im: 1 }, 'complex64'],
    ['float64', { re: 0, im: 1 }, 'complex128'],
    ['int64', 2n ** 60n, 'int64'],
    ['int64', Number.NaN, 'float32'],
  ];
  test.each(cases)('%s times %s is %s', (dtype, number, result) => {
    expect(ones(2, { dtype }).mul(number).dtype.name).toBe(result);
    expect((torch.callOp('aten::mul.Tensor', [ones(2, { dtype }), number]) as torch.Tensor).dtype.name).toBe(result);
  });

  test('a tensor without dimensions gives way', () => {
    expect(ones(2).add(tensor(1, { dtype: 'float64' })).dtype.name).toBe('float32');
  });

  test('in place, the type stays', () => {
    const counts = tensor([1, 2]);
    expect(() => counts.mul_(2.5)).toThrow(/can't be cast/);
    expect(counts.div(1).dtype.name).toBe('float32');
  });

  test('64-bit integers are exact', () => {
    expect(torch.full([1], 2n ** 60n).itemValue()).toBe(2n ** 60n);
    expect(torch.callOp('aten::add.Scalar', [tensor(2n ** 60n), 1n])).toSatisfy(
      (sum: torch.Tensor) => sum.itemValue() === 2n ** 60n + 1n,
    );
  });

  test('the default type', () => {
    torch.setDefaultDtype('float64');
    expect([
      torch.zeros(1).dtype.name,
      tensor(0.5).dtype.name,
      tensor([1, 2]).div(2).dtype.name,
      torch.getDefaultDtype().name,
    ]).toEqual(Array(4).fill('float64'));
    expect(() => torch.setDefaultDtype('int64')).toThrow(/cannot be the default/);
  });
});
