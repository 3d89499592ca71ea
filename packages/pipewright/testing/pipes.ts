/** @file What the tests of pipes share: small models, and the comparison of a pipe with its model. */
import { manualSeed, nn, scope, stack, type Tensor } from '@pipewright/torch';
import { expect } from 'vitest';
import { tensorsIn } from '../src/base/tree.ts';
import { type Pipe, type PipelineOptions, pipeline } from '../src/index.ts';

/** A linear layer beside its input. */
export class Block extends nn.Module {
  fc: nn.Linear;
  constructor(width = 4) {
    super();
    this.fc = new nn.Linear(width, width);
  }
  forward(x: Tensor): Tensor {
    return x.add(this.fc.forward(x).tanh());
  }
}

/** Blocks one after the other. */
export class Chain extends nn.Module {
  layers: nn.ModuleList<Block>;
  constructor(count = 4) {
    super();
    this.layers = new nn.ModuleList(Array.from({ length: count }, () => new Block()));
  }
  forward(x: Tensor): Tensor {
    let y = x;
    for (const layer of this.layers) y = layer.forward(y);
    return y;
  }
}

/** What each stage takes and gives, in short. */
export function shape(pipe: Pipe): string[] {
  return pipe.split.stages.map(({ inputs, outputs, attributes }) => {
    const from = inputs.map(({ name, stage }) => `${name}<${stage ?? 'in'}`).join(' ');
    const to = outputs.map(({ name, to: users }) => `${name}>${users.join()}`).join(' ');
    return `${from} -> ${to} [${attributes.map(({ target }) => target).join(' ')}]`;
  });
}

type Forward = { forward(...args: unknown[]): unknown };

/** Outputs and gradients by parameter name; those of copies of one parameter are added. */
function behaviour(model: Forward, args: readonly Tensor[], gradients: () => Record<string, unknown>): unknown {
  return scope(() => {
    manualSeed(0);
    const result = model.forward(...args);
    const outputs = tensorsIn(result);
    const roots = outputs.filter((each) => each.requiresGrad).map((each) => each.mul(each.detach().add(1)).sum());
    if (roots.length > 0) stack(roots).sum().backward();
    return { outputs: outputs.map((each) => each.detach().toArray()), gradients: gradients() };
  });
}

/** Gradients by name, which are then dropped. */
export function gradientsOf(model: nn.Module): Record<string, unknown> {
  const found: Record<string, unknown> = {};
  for (const [name, parameter] of model.namedParameters()) {
    found[name] = parameter.grad?.toArray() ?? null;
    parameter.grad = null;
  }
  return found;
}

/** Gradients of a pipe under the names of the unsplit model. */
export function pipeGradients(pipe: Pipe): Record<string, unknown> {
  return scope(() => {
    const sums = new Map<string, Tensor | null>();
    const first = new Map<string, string>();
    for (const { name, stages } of pipe.replicatedParams)
      for (const [stage, locals] of stages) for (const local of locals) first.set(`${stage} ${local}`, name);
    pipe.split.stages.forEach((_, stage) => {
      const locals = new Map<Tensor, string[]>();
      for (const [local, parameter] of pipe.getStageModule(stage).namedParameters({ removeDuplicate: false }))
        locals.set(parameter, [...(locals.get(parameter) ?? []), local]);
      for (const [{ grad }, own] of locals) {
        const tied = own.flatMap((local) => first.get(`${stage} ${local}`) ?? []);
        for (const name of new Set(tied.length > 0 ? tied : own)) {
          const before = sums.get(name) ?? null;
          sums.set(name, grad === null ? before : before === null ? grad : before.add(grad));
        }
      }
    });
    const found = Object.fromEntries([...sums].map(([name, grad]) => [name, grad?.toArray() ?? null]));
    for (const parameter of pipe.parameters()) parameter.grad = null;
    return found;
  });
}

/** Equal up to rounding: a parameter of several stages is summed in another order. */
export function expectClose(got: unknown, want: unknown): void {
  if (typeof got === 'number' && typeof want === 'number') {
    if (Math.abs(got - want) > 1e-12 * Math.max(1, Math.abs(want))) expect(got).toBe(want);
  } else if (typeof got === 'object' && typeof want === 'object' && got !== null && want !== null) {
    expect(Object.keys(got)).toEqual(Object.keys(want));
    for (const key of Object.keys(want)) expectClose(Reflect.get(got, key), Reflect.get(want, key));
  } else expect(got).toEqual(want);
}

/** A pipe equals its model, outputs and gradients. */
export function expectEqual(model: nn.Module, args: readonly Tensor[], options: Omit<PipelineOptions, 'mbArgs'>): Pipe {
  const pipe = pipeline(model, { mbArgs: args, ...options });
  const names = model.namedParameters().map(([name]) => name);
  const want = behaviour(model as Forward, args, () => gradientsOf(model));
  const got = behaviour(pipe as Forward, args, () => {
    const all = pipeGradients(pipe);
    return Object.fromEntries(names.map((name) => [name, all[name] ?? null]));
  });
  expectClose(got, want);
  return pipe;
}
