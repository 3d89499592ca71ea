/** @file Exports of many kinds of models by PyTorch 2.15 (tools/python/exports): outputs, gradients and buffers as it has them. */
import { readdirSync, readFileSync } from 'node:fs';
import { fileURLToPath } from 'node:url';
import { float64, liveTensors, loadSafetensors, manualSeed, type nn, noGrad, scope, Tensor } from '@pipewright/torch';
import { callGiven, type Recorder, withRecorder } from '@pipewright/torch/internal';
import { describe, expect, it } from 'vitest';
import { type GraphModule, loadPt2, type Pipe, PipelineError, pipeline } from '../index.ts';

const folder = fileURLToPath(new URL('../../../../testdata/exports/', import.meta.url));
const names = readdirSync(folder)
  .filter((file) => file.endsWith('.pt2'))
  .map((file) => file.slice(0, -4));

type Json = null | boolean | number | string | readonly Json[] | { readonly [key: string]: Json };

interface Call {
  readonly args: readonly Json[];
  readonly kwargs: { readonly [key: string]: Json };
  readonly out: Json;
  readonly loss?: number;
  readonly grads: { readonly [parameter: string]: string };
  readonly buffers: { readonly [buffer: string]: string };
}

/** The JavaScript value of one of the file's; tensors are copies. */
function decode(value: Json, stored: ReadonlyMap<string, Tensor>): unknown {
  if (Array.isArray(value)) return (value as readonly Json[]).map((item) => decode(item, stored));
  if (typeof value !== 'object' || value === null) return value;
  const record = value as { readonly [key: string]: Json };
  if ('tensor' in record) return stored.get(record['tensor'] as string)!.clone();
  if ('float' in record) return record['float'];
  return dict(record['dict'] as { readonly [key: string]: Json }, stored);
}

function dict(values: { readonly [key: string]: Json }, stored: ReadonlyMap<string, Tensor>): Record<string, unknown> {
  return Object.fromEntries(Object.entries(values).map(([key, item]) => [key, decode(item, stored)]));
}

/** Says where two values differ, or nothing. */
function differences(got: unknown, want: unknown, path: string, tolerance: number): string[] {
  if (want instanceof Tensor) {
    if (!(got instanceof Tensor)) return [`${path} is not a tensor`];
    const [a, b] = [`${got.dtype.name}[${got.shape}]`, `${want.dtype.name}[${want.shape}]`];
    if (a !== b) return [`${path} is ${a}, expected ${b}`];
    return far(got.detach(), want, tolerance) ? [`${path} is ${got.toString()}, expected ${want.toString()}`] : [];
  }
  if (typeof want !== 'object' || want === null) return Object.is(got, want) ? [] : [`${path} is ${String(got)}`];
  const [keys, found] = [Object.keys(want), Object.keys((got ?? {}) as object)];
  if (keys.join() !== found.join() || Array.isArray(got) !== Array.isArray(want))
    return [`${path} has ${found.join()}, expected ${keys.join()}`];
  return keys.flatMap((key) =>
    differences(Reflect.get(got as object, key), Reflect.get(want, key), `${path}.${key}`, tolerance),
  );
}

function far(got: Tensor, want: Tensor, tolerance: number): boolean {
  if (want.numel() === 0) return false;
  const [a, b] = want.isComplex() ? [got.abs(), want.abs()] : [got.to(float64), want.to(float64)];
  const same = a.eq(b).logicalOr(a.isnan().logicalAnd(b.isnan()));
  const finite = b.nanToNum(0, 0, 0);
  const size = Math.max(finite.abs().max().item() as number, 1e-6);
  const near = a
    .sub(b)
    .abs()
    .le(tolerance * size)
    .logicalOr(same);
  return near.logicalNot().any().toArray() as boolean;
}

function tensorsIn(value: unknown): Tensor[] {
  if (value instanceof Tensor) return [value];
  return typeof value === 'object' && value !== null ? Object.values(value).flatMap(tensorsIn) : [];
}

/** Lets everything happen that it sees. */
const passThrough: Recorder = {
  operator: (op, given) => withRecorder(null, () => callGiven(op, given)),
  customFunction: () => {
    throw new Error('an export has no custom functions');
  },
  checkpoint: (body) => body(),
  alias: (tensor) => withRecorder(null, () => tensor.alias()),
  deviceOf: (tensor) => withRecorder(null, () => tensor.device),
  beforeAccess: () => undefined,
};

/** The gradients of a module by name. */
function gradientsOf(model: GraphModule): Map<string, Tensor | null> {
  return new Map(model.namedParameters({ removeDuplicate: false }).map(([name, { grad }]) => [name, grad]));
}

/** The gradients of a pipe by the names of the unsplit model: those of copies of one parameter are added. */
function pipeGradients(pipe: Pipe): Map<string, Tensor | null> {
  const sums = new Map<string, Tensor | null>();
  pipe.split.stages.forEach((_, stage) => {
    const copies = new Map(
      pipe.replicatedParams.flatMap(({ name, stages }) => (stages.get(stage) ?? []).map((local) => [local, name])),
    );
    const seen = new Set<string>();
    for (const [local, { grad }] of pipe.getStageModule(stage).namedParameters({ removeDuplicate: false })) {
      const name = copies.get(local) ?? local;
      if (grad === null || seen.has(name)) continue;
      seen.add(name);
      sums.set(name, sums.get(name)?.add(grad) ?? grad);
    }
  });
  return sums;
}

interface Callable extends nn.Module {
  forward(...args: unknown[]): unknown;
}

/** Makes one call and says what is wrong with its outputs and its loss. */
function callOf(model: Callable, call: Call, stored: ReadonlyMap<string, Tensor>): string[] {
  const args = call.args.map((value) => decode(value, stored));
  if (Object.keys(call.kwargs).length > 0) args.push(dict(call.kwargs, stored));
  manualSeed(7);
  const out = model.forward(...args);
  const wrong = differences(out, decode(call.out, stored), 'output', 1e-5);
  const trained = tensorsIn(out).filter((tensor) => tensor.isFloatingPoint() && tensor.requiresGrad);
  if (call.loss !== undefined) {
    const loss = trained.map((tensor) => tensor.to(float64).square().mean()).reduce((sum, term) => sum.add(term));
    if (Math.abs((loss.item() as number) - call.loss) > 1e-5 * Math.abs(call.loss))
      wrong.push(`loss is ${loss.item()}`);
    loss.backward();
  }
  return wrong;
}

function gradientProblems(
  found: Map<string, Tensor | null>,
  call: Call,
  stored: ReadonlyMap<string, Tensor>,
): string[] {
  return Object.entries(call.grads).flatMap(([name, key]) =>
    differences(found.get(name), stored.get(key), `gradient of ${name}`, 1e-4),
  );
}

/** Makes one call and says what is wrong. */
function run(
  model: GraphModule,
  call: Call,
  stored: ReadonlyMap<string, Tensor>,
  watcher: Recorder | null = null,
): string[] {
  const wrong = withRecorder(watcher, () => callOf(model, call, stored));
  wrong.push(...gradientProblems(gradientsOf(model), call, stored));
  const parameters = new Map(model.namedParameters({ removeDuplicate: false }));
  const learned = new Set(Object.keys(call.grads).map((name) => parameters.get(name)));
  for (const [name, parameter] of parameters)
    if (parameter.grad !== null && !learned.has(parameter)) wrong.push(`${name} has a gradient, but should not`);
  for (const [name, buffer] of model.namedBuffers())
    if (name in call.buffers)
      wrong.push(...differences(buffer, stored.get(call.buffers[name] as string), `buffer ${name}`, 1e-5));
  for (const parameter of model.parameters()) parameter.grad = null;
  return wrong;
}

describe.each(names)('%s', (name) => {
  const stored = loadSafetensors(`${folder}${name}.safetensors`);
  const calls = JSON.parse(readFileSync(`${folder}${name}.json`, 'utf8')) as Call[];

  it('computes what the original module computes', () => {
    for (const call of calls) {
      const atFirst = liveTensors();
      const model = loadPt2(`${folder}${name}.pt2`, { verify: true });
      const before = liveTensors();
      expect(scope(() => run(model, call, stored))).toEqual([]);
      expect(liveTensors()).toBe(before);
      model.dispose();
      expect(liveTensors()).toBe(atFirst);
    }
  });

  it('computes the same without gradients, again and again', () => {
    for (const call of calls) {
      const model = loadPt2(`${folder}${name}.pt2`);
      const before = liveTensors();
      // Values are freed otherwise from the second run on. Buffers go on changing, so only runs on fresh ones compare.
      const changes = Object.keys(call.buffers).length > 0;
      for (let i = 0; i < (changes ? 1 : 3); i++) {
        const wrong = scope(() => {
          const args = call.args.map((value) => decode(value, stored));
          if (Object.keys(call.kwargs).length > 0) args.push(dict(call.kwargs, stored));
          manualSeed(7);
          return differences(
            noGrad(() => model.forward(...args)),
            decode(call.out, stored),
            'output',
            1e-5,
          );
        });
        expect(wrong).toEqual([]);
        expect(liveTensors()).toBe(before);
      }
      model.dispose();
    }
  });

  it('computes the same in stages, as many as there can be up to three', () => {
    for (const stages of [2, 3]) {
      const model = loadPt2(`${folder}${name}.pt2`);
      const [call] = calls as [Call];
      try {
        const pipe = pipeline(model, { stages });
        expect(scope(() => callOf(pipe, call, stored))).toEqual([]);
        expect(scope(() => gradientProblems(pipeGradients(pipe), call, stored))).toEqual([]);
        for (const parameter of pipe.parameters()) parameter.grad = null;
        pipe.dispose();
      } catch (error) {
        if (!(error instanceof PipelineError) || error.code !== 'TOO_MANY_STAGES') throw error;
      }
      model.dispose();
    }
  });

  it('computes the same operator by operator, under the eyes of a recorder', () => {
    const model = loadPt2(`${folder}${name}.pt2`);
    const [call] = calls as [Call];
    const loops = /higher_order::(cond|while_loop|scan|map_impl)/.exec(JSON.stringify(model.graph));
    const recorded = (): string[] => scope(() => run(model, call, stored, passThrough));
    if (loops === null) expect(recorded()).toEqual([]);
    else expect(recorded).toThrow(`a graph with ${loops[0]} cannot be recorded by running it`);
    model.dispose();
  });
});

it('a decomposed model trains step after step: its buffers remember numbers, not how they came about', () => {
  const model = loadPt2(`${folder}averages_aten.pt2`);
  const stored = loadSafetensors(`${folder}averages_aten.safetensors`);
  const live = [1, 2, 3].map(() => {
    const [y, average] = scope(() => {
      const [x] = [...stored].flatMap(([key, value]) => (key.startsWith('i') ? [value] : []));
      model.forward(x).square().mean().backward();
      return [model.getParameter('0.linear.weight').grad !== null, model.getBuffer('1.average')];
    });
    expect([y, average.requiresGrad]).toEqual([true, false]);
    return liveTensors();
  });
  expect(live[2]).toBe(live[1]);
  model.dispose();
});

it('there are exports of many kinds', () => {
  expect(names.length).toBeGreaterThanOrEqual(33);
});
