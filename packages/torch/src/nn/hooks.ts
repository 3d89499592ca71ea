/**
 * @file Hooks of modules. A module without hooks pays nothing: the first hook puts a wrapper over its `forward`, the
 * removal of the last one takes it away.
 */
import { FunctionContext } from '../autograd/function.ts';
import '../generated/methods.ts';
import { unscoped } from '../tensor/scope.ts';
import { Tensor } from '../tensor/tensor.ts';
import type { Module } from './module.ts';

/** Takes the module and the arguments of `forward`; may return other arguments (an array, or the only one). */
export type ForwardPreHook = (module: Module, inputs: unknown[]) => unknown;

/** Takes the module, the arguments and the result of `forward`; may return another result. */
export type ForwardHook = (module: Module, inputs: unknown[], output: unknown) => unknown;

/** Takes the module and the gradients of its inputs and outputs; may return other gradients of the inputs. */
export type BackwardHook = (
  module: Module,
  gradInputs: (Tensor | null)[],
  gradOutputs: (Tensor | null)[],
) => (Tensor | null)[] | Tensor | void;

/** Takes the module and the gradients of its outputs; may return others. */
export type BackwardPreHook = (module: Module, gradOutputs: (Tensor | null)[]) => (Tensor | null)[] | Tensor | void;

/** Takes a hook away again. */
export interface HookHandle {
  remove(): void;
  [Symbol.dispose](): void;
}

/** The hooks of one module. */
export interface Hooks {
  readonly forwardPre: ForwardPreHook[];
  readonly forward: ForwardHook[];
  readonly backward: BackwardHook[];
  readonly backwardPre: BackwardPreHook[];
  /** A `forward` that was an own property of the module before it was wrapped. */
  original: PropertyDescriptor | undefined;
}

type HookLists = Omit<Hooks, 'original'>;

/** Adds a hook; hooks run in the order in which they were added. */
export function addHook<K extends keyof HookLists>(
  module: Module,
  hooks: Hooks,
  kind: K,
  hook: HookLists[K][number],
): HookHandle {
  const list = hooks[kind] as unknown[];
  if (count(hooks) === 0) wrap(module, hooks);
  list.push(hook);
  let here = true;
  const remove = (): void => {
    if (!here) return;
    here = false;
    list.splice(list.indexOf(hook), 1);
    if (count(hooks) === 0) unwrap(module, hooks);
  };
  return { remove, [Symbol.dispose]: remove };
}

/** The hooks of a module for a copy of it; null where there are none. */
export function copyHooks(hooks: Hooks | null, copy: Module): Hooks | null {
  if (hooks === null || count(hooks) === 0) return null;
  const { forwardPre, forward, backward, backwardPre, original } = hooks;
  if (original !== undefined) Object.defineProperty(copy, 'forward', original);
  const made: Hooks = {
    forwardPre: [...forwardPre],
    forward: [...forward],
    backward: [...backward],
    backwardPre: [...backwardPre],
    original: undefined,
  };
  wrap(copy, made);
  return made;
}

function count(hooks: Hooks): number {
  return hooks.forwardPre.length + hooks.forward.length + hooks.backward.length + hooks.backwardPre.length;
}

function wrap(module: Module, hooks: Hooks): void {
  hooks.original = Object.getOwnPropertyDescriptor(module, 'forward');
  const forward = module.forward as (...inputs: unknown[]) => unknown;
  const value = (...inputs: unknown[]): unknown => run(module, hooks, (given) => forward.apply(module, given), inputs);
  Object.defineProperty(module, 'forward', { value, writable: true, enumerable: false, configurable: true });
}

function unwrap(module: Module, hooks: Hooks): void {
  if (hooks.original === undefined) Reflect.deleteProperty(module, 'forward');
  else Object.defineProperty(module, 'forward', hooks.original);
}

function run(module: Module, hooks: Hooks, forward: (inputs: unknown[]) => unknown, given: unknown[]): unknown {
  let inputs = given;
  for (const hook of [...hooks.forwardPre]) {
    const changed = hook(module, inputs);
    if (changed !== undefined) inputs = Array.isArray(changed) ? (changed as unknown[]) : [changed];
  }
  const watch = hooks.backward.length + hooks.backwardPre.length === 0 ? null : new BackwardWatch(module, hooks);
  if (watch !== null) inputs = watch.enter(inputs);
  let output = forward(inputs);
  for (const hook of [...hooks.forward]) {
    const changed = hook(module, inputs, output);
    if (changed !== undefined) output = changed;
  }
  return watch === null ? output : watch.leave(output);
}

type Grads = (Tensor | null)[];

/** Sends tensors through a function of its own, so that backward comes by. */
function pass(values: readonly unknown[], onGrads: (grads: Grads) => Grads): unknown[] {
  const places = values.flatMap((value, i) => (value instanceof Tensor && value.requiresGrad ? [i] : []));
  if (places.length === 0) return [...values];
  const spread = (grads: readonly (Tensor | null)[]): Grads => {
    const all: Grads = values.map(() => null);
    places.forEach((place, i) => {
      all[place] = grads[i] ?? null;
    });
    return all;
  };
  const passed = FunctionContext.run(
    {
      name: 'ModuleHook',
      forward(ctx: FunctionContext, ...tensors: Tensor[]): Tensor[] {
        ctx.setMaterializeGrads(false);
        return tensors.map((tensor) => tensor.viewAs(tensor));
      },
      backward(_ctx: FunctionContext, ...grads: Tensor[]): Grads {
        const changed = onGrads(spread(grads));
        return places.map((place) => changed[place] ?? null);
      },
    },
    places.map((place) => values[place] as Tensor),
  );
  const result = [...values];
  places.forEach((place, i) => {
    result[place] = passed[i];
  });
  return result;
}

function asGrads(changed: Grads | Tensor | void, before: Grads): Grads {
  if (changed === undefined) return before;
  return changed instanceof Tensor ? [changed] : changed;
}

/** One call of a module with backward hooks: gradients of its outputs come first, then those of its inputs. */
class BackwardWatch {
  private readonly module: Module;
  /** The hooks that there were when the module was called: one that is taken away later still runs. */
  private readonly hooks: Pick<Hooks, 'backward' | 'backwardPre'>;
  private inputs: readonly unknown[] = [];
  private gradOutputs: Grads = [];

  constructor(module: Module, hooks: Hooks) {
    this.module = module;
    this.hooks = { backward: [...hooks.backward], backwardPre: [...hooks.backwardPre] };
  }

  enter(inputs: unknown[]): unknown[] {
    this.inputs = inputs;
    return pass(inputs, (grads) => this.report(grads));
  }

  leave(output: unknown): unknown {
    const outputs = Array.isArray(output) ? (output as unknown[]) : [output];
    const passed = pass(outputs, (grads) => {
      let changed = grads;
      for (const hook of this.hooks.backwardPre) changed = asGrads(hook(this.module, changed), changed);
      this.gradOutputs = changed.map((grad) => (grad === null ? null : unscoped(() => grad.alias()))); // this callback's scope ends before the other's begins
      const reachesInputs = this.inputs.some((input) => input instanceof Tensor && input.requiresGrad);
      if (!reachesInputs) this.report(this.inputs.map(() => null));
      return changed;
    });
    return Array.isArray(output) ? passed : passed[0];
  }

  private report(gradInputs: Grads): Grads {
    let changed = gradInputs;
    for (const hook of this.hooks.backward) changed = asGrads(hook(this.module, changed, this.gradOutputs), changed);
    for (const grad of this.gradOutputs) grad?.dispose();
    return changed;
  }
}
