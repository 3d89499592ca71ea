/** @file Every module of nn, as in the golden file of PyTorch's module tests: traced, it does what it did untraced. */
import { readFileSync } from 'node:fs';
import { fileURLToPath } from 'node:url';
import { float, loadSafetensors, manualSeed, nn, noGrad, randn, scope, type Tensor } from '@pipewright/torch';
import { expect, test } from 'vitest';
import { PipelineError } from '../base/errors.ts';
import { flatten, tensorsIn } from '../base/tree.ts';
import { GraphModule, traceModule } from '../index.ts';

type Json = null | boolean | string | number | readonly Json[] | { readonly [key: string]: Json };
type JsonObject = { readonly [key: string]: Json };

interface Case {
  readonly case: number;
  readonly module: string;
  readonly training: boolean;
  readonly args: readonly Json[];
  readonly options: JsonObject;
  readonly input: readonly Json[];
  readonly inputOptions: JsonObject;
}

const golden = (name: string): string => fileURLToPath(new URL(`../../../../testdata/golden/${name}`, import.meta.url));
const tensors = loadSafetensors(golden('modules.safetensors'));
const cases = readFileSync(golden('modules.jsonl'), 'utf8')
  .trim()
  .split('\n')
  .map((line) => JSON.parse(line) as Case);

function decode(item: Case, value: Json, marks: boolean): unknown {
  if (Array.isArray(value)) return (value as readonly Json[]).map((each) => decode(item, each, marks));
  if (typeof value !== 'object' || value === null) return value;
  const [key, content] = Object.entries(value)[0] as [string, Json];
  if (key === 'tensor') return tensors.get(`${item.case}.${String(content)}`)!.clone();
  if (key === 'float') return marks ? float(Number(content)) : Number(content);
  return content;
}

function decodeAll(item: Case, values: JsonObject): Record<string, unknown> {
  return Object.fromEntries(Object.entries(values).map(([key, value]) => [key, decode(item, value, false)]));
}

type AnyModule = nn.Module & { forward(...inputs: unknown[]): unknown };

function build(item: Case): AnyModule {
  const type = (nn as unknown as Record<string, new (...args: unknown[]) => AnyModule>)[item.module];
  const { inputSize, hiddenSize, ...options } = decodeAll(item, item.options);
  const sizes = inputSize === undefined ? [] : [inputSize, hiddenSize];
  manualSeed(0);
  if (type === undefined) throw new Error(`no class ${item.module}`);
  const rest = Object.keys(options).length > 0 ? [options] : [];
  return new type(...item.args.map((arg) => decode(item, arg, true)), ...sizes, ...rest).train(item.training);
}

function inputsOf(item: Case): unknown[] {
  const inputs = item.input.map((value) => decode(item, value, false));
  for (const leaf of tensorsIn(inputs)) if (leaf.isFloatingPoint()) leaf.requiresGrad_();
  const options = decodeAll(item, item.inputOptions);
  return Object.keys(options).length > 0 ? [...inputs, options] : inputs;
}

/** Outputs, gradients and buffers, as text. */
function behaviour(of: { forward(...inputs: unknown[]): unknown }, item: Case, owner: nn.Module): string {
  return scope(() => {
    for (const parameter of owner.parameters()) parameter.grad = null;
    const buffers = owner.buffers();
    const before = noGrad(() => buffers.map((buffer) => buffer.clone()));
    const inputs = inputsOf(item);
    manualSeed(1);
    const result = of.forward(...inputs);
    const outputs = tensorsIn(result);
    const sums = outputs.filter((each) => each.requiresGrad).map((each) => each.sum());
    if (sums.length > 0) sums.reduce((sum, each) => sum.add(each)).backward();
    const shown = [
      ...outputs.map((each) => each.detach()),
      ...[...owner.parameters(), ...tensorsIn(inputs)].map((each) => each.grad),
      ...buffers,
    ];
    const text = `${JSON.stringify(flatten(result).spec)} ${shown.map((each) => each?.toTypedArray().join() ?? 'none').join(';')}`;
    noGrad(() => buffers.forEach((buffer, i) => buffer.copy_(before[i] as Tensor)));
    return text;
  });
}

test('every module does traced what it does', () => {
  const wrong: string[] = [];
  const refused = new Set<string>();
  for (const item of cases) {
    const name = `case ${item.case} ${item.module}`;
    const module = build(item);
    try {
      const program = traceModule(module, inputsOf(item));
      const traced = new GraphModule(program.graph, program.state).train(item.training);
      if (behaviour(traced, item, module) !== behaviour(module, item, module)) wrong.push(`${name}: differs`);
    } catch (error) {
      if (error instanceof PipelineError && error.code === 'TRACE_READS_VALUE') refused.add(item.module);
      else wrong.push(`${name}: ${(error as Error).message.slice(0, 300)}`);
    }
  }
  expect(wrong).toEqual([]);
  // The first weighs by its count of batches, the second looks for negative variances.
  expect([...refused]).toEqual(['BatchNorm1d', 'GaussianNLLLoss']);
});

test('a Transformer that would look whether its mask is causal takes it as it is', () => {
  manualSeed(0);
  const module = new nn.Transformer({
    dModel: 8,
    nhead: 2,
    numEncoderLayers: 1,
    numDecoderLayers: 1,
    dimFeedforward: 16,
    dropout: 0,
    batchFirst: true,
  }).double();
  const tgtMask = nn.Transformer.generateSquareSubsequentMask(4).double();
  const inputs = [randn([2, 4, 8]).double(), randn([2, 4, 8]).double(), { tgtMask }];
  const { graph, state } = traceModule(module, inputs);
  const traced = new GraphModule(graph, state).forward(...inputs) as Tensor;
  const plain = (module as AnyModule).forward(...inputs) as Tensor;
  expect(traced.sub(plain).abs().max().item()).toBeLessThan(1e-12);
});
