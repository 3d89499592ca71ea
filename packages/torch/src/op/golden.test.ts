/**
 * @file Every call of golden/ops.jsonl, and of scripts/python-cases where they were written: what PyTorch 2.15 returned, changed in
 * place and gave as gradients.
 */
import { describe, expect, test } from 'vitest';
import { decode, decodeNamed, type Json, moreCases, type OpCase, readCases, tensorsIn } from '../../testing/cases.ts';
import { native } from '../base/addon.ts';
import { callOp, type DType, type Element, float32, scope, Tensor } from '../index.ts';

const golden = readCases<OpCase>('golden/ops');
const cases = [...golden, ...moreCases<OpCase>('ops')];

/** Replaces tensors in arguments, in order. */
function replace(value: unknown, from: readonly Tensor[], to: readonly Tensor[]): unknown {
  if (value instanceof Tensor) return to[from.indexOf(value)];
  return Array.isArray(value) ? value.map((each) => replace(each, from, to)) : value;
}

/** Distance between a number and the next of its type, at the larger of the two values. */
function unit(dtype: DType, size: number): number {
  const [digits, smallest] = dtype.name === 'bfloat16' ? [7, -133] : [10, -24];
  return 2 ** Math.max(Math.floor(Math.log2(size)) - digits, smallest);
}

function allowed(dtype: DType, size: number): number {
  switch (dtype.name) {
    case 'float64':
    case 'complex128':
      return 1e-12 * size;
    case 'float32':
    case 'complex64':
      return 1e-5 * size;
    case 'float16':
    case 'bfloat16':
      return unit(dtype, size);
    default:
      return 0;
  }
}

function numbers(x: Tensor): number[] {
  const flat = (value: unknown): Element[] => (Array.isArray(value) ? value.flatMap(flat) : [value as Element]);
  return flat(x.toArray()).flatMap((value) => (typeof value === 'object' ? [value.re, value.im] : [Number(value)]));
}

/** Says where two tensors differ, or nothing. */
function difference(got: Tensor, want: Tensor): string {
  if (got.dtype !== want.dtype) return `dtype ${got.dtype.name}, expected ${want.dtype.name}`;
  if (got.shape.join() !== want.shape.join()) return `shape [${got.shape}], expected [${want.shape}]`;
  const a = numbers(got);
  const b = numbers(want);
  // Two units in the last place of the largest value: gelu(-2.9) = 0.5 x (1 + erf(x / sqrt 2)) cancels, so AVX2 and
  // AVX-512 kernels differ by 9e-5 there, in PyTorch as here.
  const largest = want.dtype === float32 ? 2 ** -22 * Math.max(0, ...b.filter(Number.isFinite).map(Math.abs)) : 0;
  for (let i = 0; i < a.length; i++) {
    const [x, y] = [a[i] as number, b[i] as number];
    if (Object.is(x, y) || x === y) continue;
    if (Math.abs(x - y) <= allowed(want.dtype, Math.max(Math.abs(x), Math.abs(y))) + largest) continue;
    return `element ${i}: ${x}, expected ${y}`;
  }
  return '';
}

function compare(item: OpCase, got: unknown, want: Json, where: string): string[] {
  if (Array.isArray(want)) {
    if (!Array.isArray(got) || got.length !== want.length) return [`${where}: not an array of ${want.length}`];
    return (want as readonly Json[]).flatMap((each, i) => compare(item, got[i], each, `${where}[${i}]`));
  }
  const expected = decode(item, want);
  if (expected instanceof Tensor) {
    if (!(got instanceof Tensor)) return [`${where}: not a tensor`];
    const text = difference(got, expected);
    return text === '' ? [] : [`${where}: ${text}`];
  }
  const plain = typeof expected === 'object' && expected !== null && 'float' in expected ? expected.float : expected;
  const [found, wanted] = [got, plain].map((value) => (Object.is(value, -0) ? '-0' : JSON.stringify(value)));
  return found === wanted ? [] : [`${where}: ${found}, expected ${wanted}`];
}

/** Runs one case and returns what is wrong. */
function run(item: OpCase): string[] {
  const tensors: Tensor[] = [];
  const visit = (copy: Tensor): Tensor => {
    tensors.push(copy);
    return copy;
  };
  const args = item.args.map((value) => decode(item, value, { visit }));
  const options = decodeNamed(item, { visit });
  const before = tensors.map((each) => each.clone());
  const got = callOp(item.op, args, options);
  const wrong = compare(item, got, item.out, 'out');
  for (const [position, want] of Object.entries(item.changed ?? {})) {
    wrong.push(...compare(item, tensors[Number(position)], want, `argument ${position}`));
  }
  if (item.gradOfSum === undefined) return wrong;

  const positions = Object.keys(item.gradOfSum).map(Number);
  const leaves = positions.map((position) => (before[position] as Tensor).requiresGrad_());
  const inputs = before.map((each) => (each.requiresGrad ? each.clone() : each)); // an in-place operator may not change a leaf
  const again = callOp(
    item.op,
    args.map((value) => replace(value, tensors, inputs)),
    Object.fromEntries(Object.entries(options).map(([key, value]) => [key, replace(value, tensors, inputs)])),
  );
  const sums = tensorsIn(again)
    .filter((each) => each.requiresGrad)
    .map((each) => (halves.has(each.dtype.name) ? each.to(float32) : each).sum());
  const total = sums.reduce((sum, each) => sum.add(each));
  const grads = native.gradOf(
    [total.handle],
    leaves.map((leaf) => leaf.handle),
    null,
    false,
    false,
    true,
  );
  positions.forEach((position, i) => {
    const handle = grads[i] as number | null;
    const want = (item.gradOfSum as Record<string, Json>)[position] as Json;
    wrong.push(...compare(item, handle === null ? null : Tensor.adopt(handle), want, `gradient ${position}`));
  });
  return wrong;
}

const halves = new Set(['float16', 'bfloat16']);
const byOp = new Map<string, OpCase[]>();
for (const item of cases) byOp.set(item.op, [...(byOp.get(item.op) ?? []), item]);

describe('golden operators', () => {
  test.each([...byOp.keys()])('%s', (op) => {
    const wrong = (byOp.get(op) as OpCase[]).flatMap((item) =>
      scope(() => run(item)).map((text) => `case ${item.case}: ${text}`),
    );
    expect(wrong).toEqual([]);
  });

  test('all cases are there', () => {
    expect([golden.length, new Set(golden.map((item) => item.op)).size]).toEqual([645, 222]);
  });
});
