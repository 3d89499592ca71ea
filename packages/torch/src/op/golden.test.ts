/**
 * @file Every call of golden/ops.jsonl, and of tools/python/cases where they were written: what PyTorch 2.15 returned, changed in
 * place and gave as gradients.
 */
import { describe, expect, test } from 'vitest';
import { decode, decodeNamed, type Json, moreCases, type OpCase, readCases, tensorsIn } from '../../testing/cases.ts';
import { differenceOf } from '../../testing/rounding.ts';
import { native } from '../addon/addon.ts';
import { callOp, float32, scope, Tensor } from '../index.ts';

const golden = readCases<OpCase>('golden/ops');
const cases = [...golden, ...moreCases<OpCase>('ops')];

/** Replaces tensors in arguments, in order. */
function replace(value: unknown, from: readonly Tensor[], to: readonly Tensor[]): unknown {
  if (value instanceof Tensor) return to[from.indexOf(value)];
  return Array.isArray(value) ? value.map((each) => replace(each, from, to)) : value;
}

function compare(item: OpCase, got: unknown, want: Json, where: string): string[] {
  if (Array.isArray(want)) {
    if (!Array.isArray(got) || got.length !== want.length) return [`${where}: not an array of ${want.length}`];
    return (want as readonly Json[]).flatMap((each, i) => compare(item, got[i], each, `${where}[${i}]`));
  }
  const expected = decode(item, want);
  if (expected instanceof Tensor) {
    if (!(got instanceof Tensor)) return [`${where}: not a tensor`];
    const text = differenceOf(got, expected);
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
    const wrong = byOp.get(op)!.flatMap((item) => scope(() => run(item)).map((text) => `case ${item.case}: ${text}`));
    expect(wrong).toEqual([]);
  });

  test('all cases are there', () => {
    expect([golden.length, new Set(golden.map((item) => item.op)).size]).toEqual([645, 222]);
  });
});
