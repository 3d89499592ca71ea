/**
 * @file Every module of golden/modules.jsonl and nn/modules.jsonl, and of scripts/python-cases where they were written, as PyTorch
 * 2.15 ran it: construction under a seed, output, gradients, buffers and printed text.
 */
import { describe, expect, test } from 'vitest';
import {
  decode,
  decodeAll,
  type Json,
  type ModuleCase,
  moreCases,
  readCases,
  tensorsIn,
} from '../../../testing/cases.ts';
import { manualSeed, nn, scope, Tensor } from '../../index.ts';

const ours = [...readCases<ModuleCase>('golden/modules'), ...readCases<ModuleCase>('nn/modules')];
const cases = [...ours, ...moreCases<ModuleCase>('modules')];

function numbers(x: Tensor): number[] {
  const flat = (value: unknown): number[] => (Array.isArray(value) ? value.flatMap(flat) : [Number(value)]);
  return flat(x.toArray());
}

/** Where two tensors differ, or nothing. Sums that cancel to nothing keep the rounding of their terms. */
function difference(got: unknown, want: Tensor, isExact = false): string {
  if (!(got instanceof Tensor)) return 'not a tensor';
  if (got.dtype !== want.dtype) return `dtype ${got.dtype.name}, expected ${want.dtype.name}`;
  if (got.shape.join() !== want.shape.join()) return `shape [${got.shape}], expected [${want.shape}]`;
  const expected = numbers(want);
  const found = numbers(got).findIndex((x, i) => {
    const y = expected[i] as number;
    const allowed = isExact || !want.isFloatingPoint() ? 0 : 1e-5 * Math.max(Math.abs(x), Math.abs(y)) + 1e-6;
    return !(Object.is(x, y) || Math.abs(x - y) <= allowed);
  });
  return found < 0 ? '' : `element ${found}: ${numbers(got)[found]}, expected ${expected[found]}`;
}

function compare(item: ModuleCase, got: unknown, want: Json, where: string): string[] {
  if (want === null) return got === null ? [] : [`${where}: expected null`];
  if (Array.isArray(want))
    return want.flatMap((each, i) => compare(item, (got as unknown[])[i], each as Json, `${where}[${i}]`));
  const text = difference(got, decode(item, want) as Tensor);
  return text === '' ? [] : [`${where}: ${text}`];
}

type AnyModule = nn.Module & { forward(...inputs: unknown[]): unknown };

function build(item: ModuleCase, marks: boolean): AnyModule {
  const type = (nn as unknown as Record<string, new (...args: unknown[]) => AnyModule>)[item.module];
  if (type === undefined) throw new Error(`no class ${item.module}`);
  const { inputSize, hiddenSize, ...options } = decodeAll(item, item.options, { marks });
  const sizes = inputSize === undefined ? [] : [inputSize, hiddenSize];
  manualSeed(0);
  return new type(
    ...item.args.map((arg) => decode(item, arg, { marks })),
    ...sizes,
    ...(Object.keys(options).length > 0 ? [options] : []),
  ).train(item.training);
}

/** Runs one case and returns what is wrong. */
function run(item: ModuleCase, marks: boolean): string[] {
  const wrong: string[] = [];
  const module = build(item, marks);
  const isLazy = item.textAfter !== undefined;
  const state = module.stateDict();
  if (!isLazy && [...state.keys()].join() !== Object.keys(item.state).join())
    wrong.push(`state has ${[...state.keys()].join()}, expected ${Object.keys(item.state).join()}`);
  for (const [name, want] of Object.entries(isLazy ? {} : item.state)) {
    const text = difference(state.get(name), decode(item, want) as Tensor, true);
    if (text !== '') wrong.push(`state ${name}: ${text}`);
  }
  if (module.toString() !== item.text) wrong.push(`prints ${module.toString()}, expected ${item.text}`);
  const inputs = item.input.map((value) => decode(item, value, { marks }));
  const leaves = tensorsIn(inputs).filter((each) => each.isFloatingPoint());
  for (const leaf of leaves) leaf.requiresGrad_();
  const options = decodeAll(item, item.inputOptions, { marks });
  if (isLazy) manualSeed(3);
  const output = module.forward(...inputs, ...(Object.keys(options).length > 0 ? [options] : []));
  wrong.push(...compare(item, output, item.output, 'output'));
  const sums = tensorsIn(output)
    .filter((each) => each.requiresGrad)
    .map((each) => each.sum());
  if (sums.length > 0) sums.reduce((sum, each) => sum.add(each)).backward();
  const parameters = new Map(module.namedParameters());
  for (const [name, want] of Object.entries(item.grads))
    wrong.push(...compare(item, parameters.get(name)?.grad, want, `gradient of ${name}`));
  item.inputGrads.forEach((want, i) =>
    wrong.push(...compare(item, leaves[i]?.grad ?? null, want, `gradient of input ${i}`)),
  );
  if (isLazy && module.toString() !== item.textAfter)
    wrong.push(`prints ${module.toString()} afterwards, expected ${item.textAfter}`);
  const after = module.stateDict();
  for (const [name, want] of Object.entries(item.state)) {
    const changed = item.stateAfter?.[name];
    const text = difference(after.get(name), decode(item, changed ?? want) as Tensor, changed === undefined && !isLazy);
    if (text !== '') wrong.push(`${name} afterwards: ${text}`);
  }
  module.dispose();
  return wrong;
}

describe('modules as PyTorch has them', () => {
  const byModule = new Map<string, ModuleCase[]>();
  for (const item of cases) byModule.set(item.module, [...(byModule.get(item.module) ?? []), item]);
  test('362 cases of 94 classes', () =>
    expect([ours.length, new Set(ours.map((item) => item.module)).size]).toEqual([362, 94]));
  test.each([...byModule])('%s', (_, items) => {
    const wrong = items.flatMap((item) =>
      [true, false].flatMap((marks) => scope(() => run(item, marks).map((text) => `case ${item.case}: ${text}`))),
    );
    expect(wrong).toEqual([]);
  });
});
