/**
 * @file Cases that PyTorch computed: JSON lines beside a safetensors file, in testdata/ and, where the environment variable
 * PIPEWRIGHT_CASES names a folder, those that tools/python/cases wrote there.
 */
import { existsSync, readFileSync } from 'node:fs';
import { join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { float } from '../src/base/float-scalar.ts';
import { loadSafetensors } from '../src/files/safetensors.ts';
import { Tensor } from '../src/tensor/tensor.ts';

/** A value as the files write it. */
export type Json = null | boolean | string | number | readonly Json[] | JsonObject;
export type JsonObject = { readonly [key: string]: Json };

/** What every case has. */
export interface Numbered {
  readonly case: number;
}

/** A call of an operator. */
export interface OpCase extends Numbered {
  readonly op: string;
  readonly args: readonly Json[];
  readonly kwargs: JsonObject;
  readonly out: Json;
  readonly changed?: JsonObject;
  readonly gradOfSum?: JsonObject;
}

/** A module, how it is made and called, and what came of it. */
export interface ModuleCase extends Numbered {
  readonly module: string;
  readonly training: boolean;
  readonly args: readonly Json[];
  readonly options: JsonObject;
  readonly state: JsonObject;
  readonly input: readonly Json[];
  readonly inputOptions: JsonObject;
  readonly text: string;
  readonly output: Json;
  readonly grads: JsonObject;
  readonly inputGrads: readonly Json[];
  readonly stateAfter?: JsonObject;
  /** Lazy modules draw their values at the first input: `state` is what they have then, and this is how they print. */
  readonly textAfter?: string;
}

const stored = new Map<Numbered, ReadonlyMap<string, Tensor>>();

function read<C extends Numbered>(path: string): C[] {
  const tensors = loadSafetensors(`${path}.safetensors`);
  const lines = readFileSync(`${path}.jsonl`, 'utf8').trim().split('\n');
  const cases = lines.map((line) => JSON.parse(line) as C);
  for (const item of cases) stored.set(item, tensors);
  return cases;
}

/** The cases of a file of testdata/, by its path without ending. @example readCases<OpCase>('golden/ops') */
export function readCases<C extends Numbered>(name: string): C[] {
  return read(fileURLToPath(new URL(`../../../testdata/${name}`, import.meta.url)));
}

/** The cases that tools/python/cases wrote; none where PIPEWRIGHT_CASES is not set. @example moreCases<OpCase>('ops') */
export function moreCases<C extends Numbered>(name: string): C[] {
  const folder = process.env['PIPEWRIGHT_CASES'];
  return folder !== undefined && existsSync(join(folder, `${name}.jsonl`)) ? read(join(folder, name)) : [];
}

/** How values are read: numbers with a point as `float()` (the default) or as plain numbers; tensors as copies, or what `visit` makes of them. */
export interface Reading {
  readonly marks?: boolean;
  readonly visit?: (copy: Tensor) => Tensor;
}

/** The JavaScript value of one of the file's. */
export function decode(item: Numbered, value: Json, reading: Reading = {}): unknown {
  if (Array.isArray(value)) return (value as readonly Json[]).map((each) => decode(item, each, reading));
  if (typeof value !== 'object' || value === null) return value;
  const [key, content] = Object.entries(value)[0] as [string, Json];
  switch (key) {
    case 'tensor': {
      const found = stored.get(item)?.get(`${item.case}.${String(content)}`);
      if (found === undefined) throw new Error(`case ${item.case} has no ${String(content)}`);
      return reading.visit?.(found.clone()) ?? found.clone();
    }
    case 'float': {
      const number = Number(String(content).replace('inf', 'Infinity').replace('nan', 'NaN'));
      return reading.marks === false ? number : float(number);
    }
    case 'complex':
      return { re: Number((content as Json[])[0]), im: Number((content as Json[])[1]) };
    default:
      return typeof content === 'string' ? content.replace('torch.', '') : content;
  }
}

/** The values of an object, under the same names. */
export function decodeAll(item: Numbered, values: JsonObject, reading?: Reading): Record<string, unknown> {
  return Object.fromEntries(Object.entries(values).map(([key, value]) => [key, decode(item, value, reading)]));
}

/** Named arguments of an operator, under our names. */
export function decodeNamed(item: OpCase, reading?: Reading): Record<string, unknown> {
  const named = Object.entries(decodeAll(item, item.kwargs, reading));
  return Object.fromEntries(named.map(([key, value]) => [camelCase(key), value]));
}

function camelCase(name: string): string {
  return name.replace(/(?<=[a-z0-9A-Z])_+([a-z0-9])/g, (_, letter: string) => letter.toUpperCase());
}

/** The tensors in a result. */
export function tensorsIn(value: unknown): Tensor[] {
  if (value instanceof Tensor) return [value];
  return Array.isArray(value) ? value.flatMap(tensorsIn) : [];
}
