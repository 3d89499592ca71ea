/**
 * @file An operator by its public name, with all its overloads. Nothing is looked up or bound before the first call; the
 * overload a call means is remembered by the kinds of its arguments.
 */
import { overloads as table } from '../generated/overloads.ts';
import type { Tensor } from '../tensor.ts';
import { type BoundOp, bindOp, callBound } from './bind.ts';
import { isOptions, kindOf } from './kind.ts';
import { type CallKinds, type Choice, chooseOverload, noOverload, type Overload, parseOverload } from './overload.ts';

/** A choice with its operator bound. */
interface Target extends Choice {
  readonly op: BoundOp;
}

/** One name with all its overloads. */
class Operator {
  readonly name: string;
  private parsed: Overload[] | undefined;
  private readonly targets = new Map<string, Target>();

  constructor(name: string) {
    this.name = name;
  }

  get overloads(): readonly Overload[] {
    this.parsed ??= (table[this.name] as string).split('\n').map(parseOverload);
    return this.parsed;
  }

  call(args: unknown[]): unknown {
    while (args.length > 0 && args[args.length - 1] === undefined) args.pop();
    let named: Record<string, unknown> | undefined;
    const last = args[args.length - 1];
    if (args.length > 0 && isOptions(last)) {
      named = last;
      args.pop();
    }
    const target = this.choose(args, named);
    const { op, overload } = target;
    const positional = target.spreads ? [...args.slice(0, overload.spread), args.slice(overload.spread)] : args;
    if (named === undefined) return callBound(op, positional);
    if (!overload.isFactory || !('requiresGrad' in named)) return callBound(op, positional, named);
    const { requiresGrad, ...rest } = named;
    const made = callBound(op, positional, rest) as Tensor;
    return requiresGrad === true ? made.requiresGrad_(true) : made;
  }

  private choose(args: readonly unknown[], named: Record<string, unknown> | undefined): Target {
    let positional = '';
    for (let i = 0; i < args.length; i++) positional += kindOf(args[i]);
    let key = positional;
    let names: string[] = [];
    let kinds = '';
    if (named !== undefined) {
      names = Object.keys(named);
      for (const name of names) kinds += kindOf(named[name]);
      key = `${positional} ${kinds} ${names.join(' ')}`;
    }
    const known = this.targets.get(key);
    if (known !== undefined) return known;
    const target = this.resolve({ positional, names, named: kinds });
    if (this.targets.size < 4096) this.targets.set(key, target);
    return target;
  }

  private resolve(call: CallKinds): Target {
    const { overloads } = this;
    const choice = chooseOverload(overloads, call);
    if (choice !== undefined) return { ...choice, op: bindOp(choice.overload.fullName) };
    throw noOverload(this.name, overloads, call);
  }
}

const operators = new Map<string, Operator>();

function operator(name: string): Operator {
  let found = operators.get(name);
  if (found === undefined) {
    found = new Operator(name);
    operators.set(name, found);
  }
  return found;
}

/** The function of an operator that takes any form of call. */
export function genericFunction(name: string): (...args: unknown[]) => unknown {
  let op: Operator | undefined;
  return (...args) => (op ??= operator(name)).call(args);
}

/** The method of an operator that takes any form of call. */
export function genericMethod(name: string): (this: Tensor, ...args: unknown[]) => unknown {
  let op: Operator | undefined;
  return function (this: Tensor, ...args: unknown[]): unknown {
    args.unshift(this);
    return (op ??= operator(name)).call(args);
  };
}
