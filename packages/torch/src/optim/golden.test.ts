/** @file Every optimizer of golden/optim.jsonl and nn/optim.jsonl, as PyTorch 2.15 ran it: the parameters after each step. */
import { readFileSync } from 'node:fs';
import { fileURLToPath } from 'node:url';
import { expect, test } from 'vitest';
import { float, loadSafetensors, optim, scope, type Tensor } from '../index.ts';

type Json = null | boolean | number | string | readonly Json[] | { readonly [key: string]: Json };

interface Case {
  readonly case: number;
  readonly optimizer: string;
  readonly options: { readonly [key: string]: Json };
  readonly params: readonly Json[];
  readonly grads: readonly (readonly Json[])[];
  readonly after: readonly (readonly Json[])[];
}

const testdata = (name: string): string => fileURLToPath(new URL(`../../../../testdata/${name}`, import.meta.url));
const stored = new Map<Case, ReadonlyMap<string, Tensor>>();
function read(name: string): Case[] {
  const tensors = loadSafetensors(testdata(`${name}.safetensors`));
  const lines = readFileSync(testdata(`${name}.jsonl`), 'utf8')
    .trim()
    .split('\n');
  const found = lines.map((line) => JSON.parse(line) as Case);
  for (const item of found) stored.set(item, tensors);
  return found;
}
const cases = [...read('golden/optim'), ...read('nn/optim')];

function tensorOf(item: Case, name: string): Tensor {
  const found = stored.get(item)?.get(`${item.case}.${name}`);
  if (found === undefined) throw new Error(`case ${item.case} has no ${name}`);
  return found;
}

function decode(item: Case, value: Json): unknown {
  if (Array.isArray(value)) return (value as readonly Json[]).map((each) => decode(item, each));
  if (typeof value !== 'object' || value === null) return value;
  const [key, content] = Object.entries(value)[0] as [string, Json];
  if (key === 'tensor') return tensorOf(item, String(content)).clone();
  return key === 'float' ? float(Number(content)) : content;
}

type Type = new (params: Tensor[], options: object) => optim.Optimizer;

test.each(cases.map((item) => [`${item.optimizer} ${JSON.stringify(item.options)}`, item] as const))(
  '%s',
  (_, item) => {
    const params = item.params.map((value) => (decode(item, value) as Tensor).requiresGrad_());
    const type = (optim as unknown as Record<string, Type>)[item.optimizer] as Type;
    const options = Object.fromEntries(Object.entries(item.options).map(([key, value]) => [key, decode(item, value)]));
    using optimizer = new type(params, options);
    item.grads.forEach((grads, step) =>
      scope(() => {
        grads.forEach((grad, i) => {
          (params[i] as Tensor).grad = decode(item, grad) as Tensor;
        });
        optimizer.step();
        params.forEach((param, i) => {
          // Muon makes its updates orthogonal in bfloat16, whose products differ from processor to processor.
          const rounding = item.optimizer === 'Muon' ? 1e-3 : 0;
          const want = Array.from((decode(item, item.after[step]?.[i] as Json) as Tensor).toTypedArray(), Number);
          Array.from(param.toTypedArray(), Number).forEach((value, e) => {
            expect(Math.abs(value - (want[e] as number))).toBeLessThanOrEqual(1e-12 * Math.abs(value) + rounding);
          });
        });
      }),
    );
  },
);
