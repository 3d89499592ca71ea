import { readFileSync } from 'node:fs';
import { expect, test } from 'vitest';
import { callOp, type DTypeName, fromTypedArray, setPrintOptions, Tensor, tensor, zeros } from '../index.ts';

interface Case {
  dtype: DTypeName;
  shape: number[];
  values: (number | string | boolean | [number | string, number | string])[];
  requiresGrad: boolean;
  text: string;
}

// What PyTorch printed for the same values.
const cases = JSON.parse(readFileSync(new URL('../../../../testdata/print.json', import.meta.url), 'utf8')) as Case[];

function number(value: unknown): number {
  if (typeof value === 'string')
    return value === 'nan' ? Number.NaN : value === 'inf' ? Number.POSITIVE_INFINITY : Number.NEGATIVE_INFINITY;
  return Number(value);
}

function make({ dtype, shape, values, requiresGrad }: Case): Tensor {
  const flat = dtype.startsWith('complex')
    ? fromTypedArray(Float64Array.from(values.flat(), number), [...shape], { dtype: 'complex128' })
    : dtype === 'int64'
      ? fromTypedArray(
          BigInt64Array.from(values, (value) => BigInt(value as number)),
          shape,
        )
      : fromTypedArray(Float64Array.from(values, number), shape);
  const made = callOp('aten::to.dtype', [flat, dtype]) as Tensor;
  return requiresGrad ? made.requiresGrad_() : made;
}

test.each(cases.filter(({ text }) => !text.includes('9007199254740993')))(
  'prints as PyTorch does: $dtype $shape',
  (one) => {
    expect(make(one).toString()).toBe(one.text);
  },
);

test('int64 beyond 2^53 is printed in full', () => {
  expect(tensor([9007199254740993n]).toString()).toBe('tensor([9007199254740993])');
});

test('says how a tensor was made, and that it is gone', () => {
  const x = tensor([1, 2], { dtype: 'float32', requiresGrad: true });
  expect(x.mul(x).toString()).toMatchInlineSnapshot(`"tensor([1., 4.], grad_fn=<MulBackward0>)"`);
  x.dispose();
  expect(String(x)).toBe('tensor(<disposed>)');
  expect(zeros([2, 3], { device: 'meta' }).toString()).toBe("tensor(..., device='meta', size=(2, 3))");
});

test('numbers exactly between two are printed with an even last digit, and types wrap where PyTorch wraps them', () => {
  expect(String(tensor([-37.90625, 0.5]))).toBe('tensor([-37.9062,   0.5000])');
  expect(String(tensor([0.03125, 0.09375]))).toBe('tensor([0.0312, 0.0938])');
  const values = Array.from({ length: 22 }, (_, i) => 100 + i);
  expect(String(tensor(values, { dtype: 'int32' }))).toBe(
    'tensor([100, 101, 102, 103, 104, 105, 106, 107, 108, 109, 110, 111, 112, 113,\n        114, 115, 116, 117, 118, 119, 120, 121], dtype=torch.int32)',
  );
});

test('is text in templates, and no number: comparing with operators of JavaScript is an error, not false', () => {
  const x = tensor([1, 2]);
  expect(`${x}`).toBe('tensor([1, 2])');
  expect('x = ' + String(x)).toBe('x = tensor([1, 2])');
  expect(JSON.stringify({ [String(x)]: [x].join() })).toBe('{"tensor([1, 2])":"tensor([1, 2])"}');
  const one = tensor(3) as unknown as number;
  for (const use of [
    () => one > 0,
    () => 0 <= one,
    () => +one,
    () => one * 2,
    () => one - one,
    () => Number(one),
    () => Math.max(one),
  ])
    expect(use).toThrow(
      /^Tensor: JavaScript's operators .* do not work on tensors, got one of shape \[\]; use methods \(x\.gt\(0\).*x\.item\(\) > 0$/,
    );
  expect(() => one > 0).toThrow(expect.objectContaining({ code: 'BAD_ARGUMENT' }));
});

test('a line holds as many elements as fit by the width of those that are neither zero nor infinite', () => {
  const wide = tensor([0.25, -0, 1000.5, Number.POSITIVE_INFINITY, 0.5, 0.00005, -0], { dtype: 'float32' });
  expect(String(wide)).toBe(
    'tensor([2.5000e-01, -0.0000e+00, 1.0005e+03,        inf, 5.0000e-01, 5.0000e-05,\n        -0.0000e+00])',
  );
  const complex = tensor([
    { re: -6.5633e8, im: 4.8432e8 },
    { re: -3.4189e8, im: 1.9904e8 },
    { re: 2.3086e8, im: 5.9157e8 },
  ]);
  expect(String(complex)).toBe('tensor([-6.5633e+08+4.8432e+08j, -3.4189e+08+1.9904e+08j,  2.3086e+08+5.9157e+08j])');
});

test('numbers from 1e21 on are written out where scientific notation is switched off', () => {
  setPrintOptions({ sciMode: false });
  try {
    expect(String(tensor([1e21, 2.5], { dtype: 'float64' }))).toBe(
      'tensor([1000000000000000000000.0000,                      2.5000],\n       dtype=torch.float64)',
    );
    expect(String(tensor([-3e22], { dtype: 'float64' }))).toBe(
      'tensor([-30000000000000000000000.], dtype=torch.float64)',
    );
  } finally {
    setPrintOptions({ sciMode: null });
  }
});
