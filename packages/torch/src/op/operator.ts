/**
 * @file An operator by its public name, with all its overloads. Nothing is looked up or bound before the first call; the
 * overload a call means is remembered by the kinds of its arguments.
 */

import type { BoundOp } from '../addon/bound-op.ts';
import { TorchError } from '../base/errors.ts';
import type { Tensor } from '../tensor/tensor.ts';
import { bindOp, callGiven, signature } from './bind.ts';
import { overloads as table } from './generated/overloads.ts';
import { isOptions, kindOf } from './kind.ts';
import { type CallKinds, type Choice, chooseOverload, noOverload, type Overload, parseOverload } from './overload.ts';

/** A choice with its operator bound, and where each argument goes. */
interface Target extends Choice {
  readonly op: BoundOp;
  /** Names of the keyword arguments in the order of the call, without `requiresGrad`. */
  readonly names: readonly string[];
  /** Their positions in the schema. */
  readonly positions: readonly number[];
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
    this.parsed ??= table[this.name]!.split('\n').map(parseOverload);
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
    const { op, overload, spreads, names, positions } = this.choose(args, named);
    const given = new Array<unknown>(op.args.length);
    if (spreads) {
      for (let i = 0; i < overload.spread; i++) given[i] = args[i];
      given[overload.spread] = args.slice(overload.spread);
    } else {
      for (let i = 0; i < args.length; i++) given[i] = args[i];
    }
    if (named === undefined) return callGiven(op, given);
    for (let i = 0; i < names.length; i++) given[positions[i]!] = named[names[i]!];
    const made = callGiven(op, given);
    return overload.isFactory && named['requiresGrad'] === true ? (made as Tensor).requiresGrad_(true) : made;
  }

  private choose(args: readonly unknown[], named: Record<string, unknown> | undefined): Target {
    let key = '';
    for (let i = 0; i < args.length; i++) key += kindOf(args[i]);
    if (named !== undefined) for (const name in named) key += ` ${name} ${kindOf(named[name])}`;
    const known = this.targets.get(key);
    if (known !== undefined) return known;
    const target = this.resolve(args, named ?? {});
    if (this.targets.size < 4096) this.targets.set(key, target);
    return target;
  }

  private resolve(args: readonly unknown[], named: Record<string, unknown>): Target {
    const { overloads } = this;
    const names = Object.keys(named);
    const call: CallKinds = {
      positional: args.map(kindOf).join(''),
      names,
      named: names.map((name) => kindOf(named[name])).join(''),
    };
    const choice = chooseOverload(overloads, call);
    if (choice === undefined) throw noOverload(this.name, overloads, call);
    const op = bindOp(choice.overload.fullName);
    const own = names.filter((name) => name !== 'requiresGrad' || !choice.overload.isFactory);
    return { ...choice, op, names: own, positions: own.map((name) => positionOf(op, name)) };
  }
}

/** The position of an argument in the schema of the libtorch that is loaded, which may be another version's. */
function positionOf(op: BoundOp, name: string): number {
  const position = op.positions.get(name);
  if (position !== undefined) return position;
  throw new TorchError(
    'UNKNOWN_OPTION',
    `${op.fullName}: this version of libtorch has no argument '${name}'; it takes ${signature(op)}`,
  );
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
