/**
 * @file Every module of golden/modules.jsonl and nn/modules.jsonl, and of tools/python/cases where they were written, as PyTorch
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
import { differenceOf, largestIn } from '../../../testing/rounding.ts';
import { manualSeed, nn, noGrad, scope, type Tensor } from '../../index.ts';

const ours = [...readCases<ModuleCase>('golden/modules'), ...readCases<ModuleCase>('nn/modules')];
const cases = [...ours, ...moreCases<ModuleCase>('modules')];

function compare(item: ModuleCase, got: unknown, want: Json, where: string): string[] {
  if (want === null) return got === null ? [] : [`${where}: expected null`];
  if (Array.isArray(want))
    return want.flatMap((each, i) => compare(item, (got as unknown[])[i], each as Json, `${where}[${i}]`));
  const text = differenceOf(got, decode(item, want) as Tensor, { terms: termsOf(item) });
  return text === '' ? [] : [`${where}: ${text}`];
}

const termSizes = new Map<ModuleCase, number>();

/**
 * The size of the terms that a module adds up: its largest input, parameter, output or gradient, and 1, the gradient of the
 * sum from which backward starts. Gradients of normalizing modules are sums of such terms that cancel altogether.
 */
function termsOf(item: ModuleCase): number {
  const known = termSizes.get(item);
  if (known !== undefined) return known;
  const values = [item.state, item.stateAfter ?? {}, item.grads].flatMap((each) => Object.values(each));
  const tensors = [...values, item.input, item.output, item.inputGrads].map((each) => decode(item, each as Json));
  const size = Math.max(1, largestIn(...tensorsIn(tensors)));
  termSizes.set(item, size);
  return size;
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
  const terms = termsOf(item);
  const isLazy = item.textAfter !== undefined;
  const state = module.stateDict();
  if (!isLazy && [...state.keys()].join() !== Object.keys(item.state).join())
    wrong.push(`state has ${[...state.keys()].join()}, expected ${Object.keys(item.state).join()}`);
  for (const [name, want] of Object.entries(isLazy ? {} : item.state)) {
    // Drawn from the same numbers: some units of the largest value off, where logarithms and cosines were computed otherwise.
    const text = differenceOf(state.get(name), decode(item, want) as Tensor, { units: 16 });
    if (text !== '') wrong.push(`state ${name}: ${text}`);
  }
  if (module.toString() !== item.text) wrong.push(`prints ${module.toString()}, expected ${item.text}`);
  // From here on with PyTorch's values, so that what differs in the start values does not grow.
  if (!isLazy)
    noGrad(() => {
      for (const [name, want] of Object.entries(item.state)) state.get(name)?.copy_(decode(item, want) as Tensor);
    });
  const before = new Map([...state].map(([name, value]) => [name, value.clone()]));
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
    const text =
      changed === undefined && !isLazy
        ? differenceOf(after.get(name), before.get(name)!, { units: 0, terms: 0 })
        : differenceOf(after.get(name), decode(item, changed ?? want) as Tensor, { terms });
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
