/** @file Groups of parameters: their options as callers write and change them, and as the numbers of a step. */
import { noGrad } from '../autograd/modes.ts';
import '../generated/methods.ts';
import { show } from '../base/checks.ts';
import { checkOptions, TorchError } from '../base/errors.ts';
import { FloatScalar } from '../base/float-scalar.ts';
import { readOptions } from '../base/options.ts';
import { unscoped } from '../tensor/scope.ts';
import { Tensor } from '../tensor/tensor.ts';
import type { BaseOptions, Kind } from './optimizer-kind.ts';

/** Parameters and their options, which may be changed between steps. `initialLr` is set by schedules. */
export type ParamGroup<O> = O & {
  params: Tensor[];
  paramNames?: string[];
  initialLr?: number;
  [extra: string]: unknown;
};

/** A number; `float()` markers are accepted wherever options are. */
export type Rate = number | FloatScalar | Tensor;

/** Options as callers write them: all can be left out. */
export type GivenOptions<O> = { [K in keyof O]?: Loose<O[K]> | undefined };
type Loose<V> = V extends number
  ? number | FloatScalar
  : V extends readonly number[]
    ? readonly (number | FloatScalar)[]
    : V extends number | Tensor
      ? Rate
      : V;

/** Parameters with options of their own. */
export type GroupInput<O> = GivenOptions<O> & { params: Tensor | Iterable<Tensor | readonly [string, Tensor]> };

/** What an optimizer takes: parameters, parameters with names, or groups of them. */
export type ParamsInput<O> = Iterable<Tensor> | Iterable<readonly [string, Tensor]> | Iterable<GroupInput<O>>;

/** Options with markers taken off, checked. */
export function readGroup<O extends BaseOptions>(kind: Kind<O>, given: GivenOptions<O> | undefined, defaults: O): O {
  checkOptions(kind.name, given, Object.keys(kind.defaults));
  const { lr, ...rest } = (given ?? {}) as Record<string, unknown>;
  const plain = Object.fromEntries(
    Object.entries(rest).map(([key, value]) => [key, Array.isArray(value) ? value.map(unmark) : value]),
  ) as { [K in keyof O]?: unknown };
  const options = {
    ...readOptions(kind.name, plain, { ...defaults, lr: 0 } as unknown as O),
    lr: lr === undefined ? defaults.lr : unmark(lr),
  } as O;
  const rate: unknown = options.lr;
  if (rate instanceof Tensor ? rate.numel() !== 1 : !(typeof rate === 'number' && rate >= 0)) {
    throw new TorchError(
      'BAD_ARGUMENT',
      `${kind.name}: lr is a number of at least 0, or a tensor of one element, got ${rate instanceof Tensor ? `a tensor of ${rate.numel()}` : String(rate)}`,
    );
  }
  kind.check(options);
  return options;
}

function unmark(value: unknown): unknown {
  return value instanceof FloatScalar ? value.float : value;
}

/** Writes the numbers of a group's step: booleans as 0 or 1, null and a learning rate that is a tensor as NaN. */
export function writeNumbers<O extends BaseOptions>(
  kind: Kind<O>,
  groups: readonly ParamGroup<O>[],
  g: number,
  to: Float64Array,
): void {
  const options = groups[g]!;
  for (let i = 0; i < kind.numbers.length; i++) {
    const name = kind.numbers[i]!;
    const value = kind.numberOf?.(name, options) ?? valueOf(options, name);
    const number = typeof value === 'number' || typeof value === 'boolean' ? Number(value) : Number.NaN;
    if (Number.isNaN(number) && !(name === 'lr' && value instanceof Tensor) && !isNullable(kind, name, value))
      throw new TorchError(
        'BAD_ARGUMENT',
        `${kind.name}.step: ${name} of group ${g} is ${show(value)}; set it to a number`,
      );
    to[i] = number;
  }
}

/** An option by name; `betas.1` is of the array `betas`. */
function valueOf(options: object, name: string): unknown {
  const dot = name.indexOf('.');
  if (dot < 0) return Reflect.get(options, name);
  const list: unknown = Reflect.get(options, name.slice(0, dot));
  return Array.isArray(list) ? (list as unknown[])[Number(name.slice(dot + 1))] : list;
}

/** Whether a value is null where that has a meaning: where the default is null. */
function isNullable<O extends BaseOptions>({ defaults }: Kind<O>, name: string, value: unknown): boolean {
  return value === null && valueOf(defaults, name) === null;
}

/** Gives a group saved options; a learning rate that is a tensor there stays the same tensor and gets the value. */
export function assignOptions(group: object, saved: Readonly<Record<string, unknown>>, copy: boolean): void {
  for (const [name, value] of Object.entries(saved)) {
    const own: unknown = Reflect.get(group, name);
    if (name === 'params' || own === value) continue;
    if (own instanceof Tensor)
      noGrad(() => own.fill_(new FloatScalar(value instanceof Tensor ? value.item() : Number(value))));
    else if (value instanceof Tensor && copy)
      Reflect.set(
        group,
        name,
        unscoped(() => noGrad(() => value.clone())),
      );
    else Reflect.set(group, name, Array.isArray(value) ? [...(value as unknown[])] : value);
  }
}
