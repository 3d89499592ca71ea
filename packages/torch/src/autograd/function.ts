/** @file Custom functions: an operator of one's own with a forward and a backward in TypeScript. */
import { native } from '../addon/addon.ts';
import { TorchError } from '../base/errors.ts';
import { type FunctionGradients, type FunctionOutput, recorder } from '../tensor/recorder.ts';
import { Scope } from '../tensor/scope.ts';
import { Tensor } from '../tensor/tensor.ts';
import { addCallback, collectCallbacks } from './callbacks.ts';
import { synchronous } from './modes.ts';
import { engine } from './native.ts';

/** A class with a static `forward` and `backward`. */
export interface FunctionType<Args extends unknown[], Output extends FunctionOutput> {
  readonly name: string;
  forward(ctx: FunctionContext, ...args: Args): Output;
  backward(ctx: FunctionContext, ...grads: Tensor[]): FunctionGradients;
}

/** Carries what `forward` leaves for `backward`. Plain values may be set on it: `ctx.alpha = 2`. */
export class FunctionContext {
  [key: string]: unknown;

  #saved: readonly (Tensor | null)[] = [];
  #dirty: readonly Tensor[] = [];
  #nonDifferentiable: readonly Tensor[] = [];
  #materialize = true;
  #needs: readonly boolean[];
  #phase: 'forward' | 'backward' | 'idle' = 'forward';
  readonly #tensorArguments: readonly number[];

  constructor(args: readonly unknown[]) {
    this.#needs = args.map((arg) => arg instanceof Tensor && arg.requiresGrad);
    this.#tensorArguments = args.flatMap((arg, i) => (arg instanceof Tensor ? [i] : []));
  }

  /** Keeps tensors for `backward`; a change of one in place in between is an error there. Use it rather than a field: a field's tensor may be freed by a scope. */
  saveForBackward(...tensors: (Tensor | null)[]): void {
    this.#duringForward('saveForBackward');
    for (const item of tensors) {
      if (item !== null && !(item instanceof Tensor))
        throw new TorchError(
          'BAD_ARGUMENT',
          `saveForBackward: expected tensors, got a ${typeof item}; set other values on ctx`,
        );
    }
    this.#saved = tensors;
  }

  /** What was saved, in order; in `backward` only. Each read unpacks it anew. */
  get savedTensors(): Tensor[] {
    if (this.#phase !== 'backward')
      throw new TorchError('NOT_IN_BACKWARD', 'savedTensors: can be read only inside backward');
    return engine
      .functionSaved()
      .map((handle) => (handle === null ? (null as unknown as Tensor) : Tensor.adopt(handle)));
  }

  /** For each argument of `forward`: whether its gradient is wanted. */
  get needsInputGrad(): readonly boolean[] {
    return this.#needs;
  }

  /** Says which arguments `forward` changed in place; they must be among its results. */
  markDirty(...tensors: Tensor[]): void {
    this.#duringForward('markDirty');
    this.#dirty = tensors;
  }

  /** Says which results have no gradient, such as indices. */
  markNonDifferentiable(...tensors: Tensor[]): void {
    this.#duringForward('markNonDifferentiable');
    this.#nonDifferentiable = tensors;
  }

  /** Whether `backward` gets zeros (the default) or null for results that nobody used. */
  setMaterializeGrads(on: boolean): void {
    this.#duringForward('setMaterializeGrads');
    this.#materialize = on;
  }

  #duringForward(where: string): void {
    if (this.#phase !== 'forward')
      throw new TorchError('NOT_IN_FORWARD', `${where}: can be called only inside forward`);
  }

  /** Runs `forward` without recording and gives its results a history. */
  static run<Args extends unknown[], Output extends FunctionOutput>(
    type: FunctionType<Args, Output>,
    args: Args,
  ): Output {
    if (recorder !== null)
      return recorder.customFunction(type as unknown as FunctionType<unknown[], FunctionOutput>, args) as Output;
    const ctx = new FunctionContext(args);
    const inner = new Scope();
    let handles: (number | null)[];
    let single: boolean;
    try {
      const before = native.setGradEnabled(false);
      let output: Output;
      try {
        output = synchronous(`${type.name}.forward`, type.forward(ctx, ...args));
      } finally {
        native.setGradEnabled(before);
        ctx.#phase = 'idle';
      }
      single = output instanceof Tensor;
      const outputs = checkedOutputs(type.name, output);
      const id = addCallback((grads) =>
        ctx.#backward(type as unknown as FunctionType<unknown[], FunctionOutput>, grads, args.length),
      );
      handles = engine.wrapFunction(
        `${type.name}Backward`,
        ctx.#tensorArguments.map((i) => (args[i] as Tensor).handle),
        outputs.map((item) => item?.handle ?? null),
        ctx.#dirty.map((item) => item.handle),
        ctx.#nonDifferentiable.map((item) => item.handle),
        ctx.#saved.map((item) => item?.handle ?? null),
        id,
        ctx.#materialize,
      );
      ctx.#saved = [];
      ctx.#dirty = [];
      ctx.#nonDifferentiable = [];
    } finally {
      inner.close();
    }
    const results = handles.map((handle) => (handle === null ? null : Tensor.adopt(handle)));
    collectCallbacks();
    return (single ? results[0] : results) as unknown as Output;
  }

  #backward(
    type: FunctionType<unknown[], FunctionOutput>,
    grads: (Tensor | null)[],
    argCount: number,
  ): (Tensor | null)[] {
    const wanted = engine.functionNeeds();
    const outer = [this.#phase, this.#needs] as const;
    const needs = new Array<boolean>(argCount).fill(false);
    this.#tensorArguments.forEach((arg, i) => {
      needs[arg] = wanted[i] === true;
    });
    this.#phase = 'backward';
    this.#needs = needs;
    try {
      const result = synchronous(`${type.name}.backward`, type.backward(this, ...(grads as Tensor[])));
      const list = result instanceof Tensor || result === null ? [result] : (result ?? []);
      return this.#checkedGradients(type.name, list, argCount);
    } finally {
      [this.#phase, this.#needs] = outer;
    }
  }

  #checkedGradients(name: string, list: readonly (Tensor | null | undefined)[], argCount: number): (Tensor | null)[] {
    const extra = list.slice(argCount).some((item) => item !== null && item !== undefined);
    if (!Array.isArray(list) || list.length < argCount || extra) {
      throw new TorchError(
        'ARGUMENT_COUNT',
        `${name}.backward: returned ${list.length} gradients for ${argCount} arguments of forward; return one for each, null for those without`,
      );
    }
    list.forEach((item, i) => {
      if (item === null || item === undefined) return;
      if (!(item instanceof Tensor))
        throw new TorchError('BAD_ARGUMENT', `${name}.backward: gradient ${i} is not a tensor but a ${typeof item}`);
      if (i < argCount && !this.#tensorArguments.includes(i)) {
        throw new TorchError(
          'BAD_ARGUMENT',
          `${name}.backward: gradient ${i} is a tensor, but argument ${i} of forward was not; return null there`,
        );
      }
    });
    return this.#tensorArguments.map((i) => list[i] ?? null);
  }
}

/**
 * An operator of one's own: static `forward` and `backward`, called through `apply`.
 *
 * @example
 * class Square extends AutogradFunction {
 *   static forward(ctx: FunctionContext, x: Tensor) { ctx.saveForBackward(x); return x.mul(x); }
 *   static backward(ctx: FunctionContext, grad: Tensor) { const [x] = ctx.savedTensors; return grad.mul(x).mul(2); }
 * }
 * Square.apply(x)
 */
export abstract class AutogradFunction {
  /** Runs `forward` on the arguments; `backward` gives the gradients of those that are tensors. */
  static apply<Args extends unknown[], Output extends FunctionOutput>(
    this: FunctionType<Args, Output>,
    ...args: Args
  ): Output {
    if (typeof this.forward !== 'function' || typeof this.backward !== 'function') {
      throw new TorchError(
        'BAD_ARGUMENT',
        `${this.name}: a custom function needs a static forward and a static backward`,
      );
    }
    return FunctionContext.run(this, args);
  }
}

function checkedOutputs(name: string, output: FunctionOutput): readonly (Tensor | null)[] {
  const list = output instanceof Tensor ? [output] : output;
  if (!Array.isArray(list))
    throw new TorchError(
      'BAD_ARGUMENT',
      `${name}.forward: must return a tensor or an array of tensors, got a ${typeof output}`,
    );
  list.forEach((item, i) => {
    if (item !== null && !(item instanceof Tensor))
      throw new TorchError('BAD_ARGUMENT', `${name}.forward: result ${i} is not a tensor but a ${typeof item}`);
  });
  return list as readonly (Tensor | null)[];
}
