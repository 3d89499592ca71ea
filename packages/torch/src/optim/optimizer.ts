/**
 * @file The base of all optimizers: groups of parameters with their options, the state of each parameter, and one
 * native call per step, group, device and element type. State lives beside the kernels, so it outlives every scope.
 */

import { type NativeBucket, type NativeStep, native } from '../addon/addon.ts';
import { META_DEVICE_INDEX, META_DEVICE_TYPE, META_DTYPE, STEP_NUMBERS_LONGEST } from '../addon/generated/border.ts';
import { noGrad } from '../autograd/modes.ts';
import { checkGiven, checkIterable, checkObject, show } from '../base/checks.ts';
import { checkOptions, TorchError } from '../base/errors.ts';
import { float32, float64, getDefaultDtype } from '../tensor/dtype.ts';
import '../generated/methods.ts';
import { FloatScalar } from '../base/float-scalar.ts';
import { readOptions } from '../base/options.ts';
import { scope, unscoped } from '../tensor/scope.ts';
import { isShard } from '../tensor/shard-marks.ts';
import { Tensor } from '../tensor/tensor.ts';
import { adapt, checkState, misfitsOf, type OptimizerState, type Slot, slotKinds } from './optimizer-state.ts';

/** A number; `float()` markers are accepted wherever options are. */
export type Rate = number | FloatScalar | Tensor;

/** What every optimizer has: the learning rate, as a number or as a tensor of one element that graphs can read. */
export interface BaseOptions {
  lr: number | Tensor;
  maximize: boolean;
}

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

/** Parameters and their options, which may be changed between steps. `initialLr` is set by schedules. */
export type ParamGroup<O> = O & {
  params: Tensor[];
  paramNames?: string[];
  initialLr?: number;
  [extra: string]: unknown;
};

/** Parameters of one group that are stepped together. */
interface Bucket {
  readonly native: NativeBucket;
  /** Positions in the group. */
  readonly positions: readonly number[];
}

/** Where a group is stepped. */
interface Prepared {
  readonly group: object;
  readonly key: number;
  readonly slots: readonly Slot[];
  readonly buckets: readonly Bucket[];
  /** The parameters, in order. */
  readonly parameters: readonly Tensor[];
  /** The tensors they are: a parameter may become another one, as when it is sharded or moved to another device. */
  readonly handles: readonly number[];
  /** Their devices and element types, which may change without the tensor becoming another one. */
  readonly places: readonly number[];
}

/** What a kind of optimizer is. */
export interface Kind<O> {
  readonly name: string;
  readonly defaults: O;
  readonly step: NativeStep;
  /** Refuses options that make no sense. */
  check(options: O): void;
  /** Computes with whole tensors, rows and columns of matrices for example, so that a shard is not enough. */
  readonly needsWhole?: boolean;
  /** Refuses parameters that it cannot move. */
  checkParameter?(parameter: Tensor): void;
  /** What is remembered of each parameter, in the order that native/optim wants. */
  slots(options: O): readonly Slot[];
  /** Changes when `slots` would give something else. */
  slotKey?(options: O): number;
  /** Names of the numbers of a step, in the order that native/optim wants; the first is the learning rate. */
  readonly numbers: readonly string[];
  /** The number of an option that is no number, boolean or array of numbers; undefined for the others. */
  numberOf?(name: string, options: O): number | undefined;
}

/** The base of all optimizers. @example const optimizer = new AdamW(model.parameters(), { lr: 3e-4 }); optimizer.step() */
export abstract class Optimizer<O extends BaseOptions = BaseOptions> {
  readonly defaults: O;
  readonly paramGroups: ParamGroup<O>[] = [];
  private readonly kind: Kind<O>;
  /** The numbers of a step, per group. */
  private readonly numbers: Float64Array[] = [];
  private readonly checked = new WeakSet<Tensor>();
  private prepared: readonly Prepared[] = [];

  constructor(kind: Kind<O>, params: ParamsInput<O>, options: GivenOptions<O> | undefined) {
    checkObject('Optimizer', 'its kind', kind, 'what an optimizer is: use SGD, Adam and so on');
    checkObject('Optimizer', 'the defaults', kind.defaults);
    this.kind = kind;
    this.defaults = readGroup(kind, options, kind.defaults);
    const given = Array.isArray(params)
      ? (params as unknown[])
      : params instanceof Tensor
        ? [params]
        : listOfParameters(kind.name, params);
    if (given.length === 0)
      throw new TorchError('BAD_ARGUMENT', `${kind.name}: the list of parameters is empty; pass model.parameters()`);
    const isGroups = typeof given[0] === 'object' && given[0] !== null && 'params' in given[0];
    if (isGroups) for (const group of given) this.addParamGroup(group as GroupInput<O>);
    else this.addParamGroup({ params: given } as unknown as GroupInput<O>);
  }

  /** Adds parameters with options of their own, for example when layers are unfrozen. */
  addParamGroup(input: GroupInput<O>): void {
    const { name } = this.kind;
    checkObject(`${name}.addParamGroup`, 'the group', input, 'an object with params');
    const { params, ...options } = input;
    const items =
      params instanceof Tensor ? [params] : (listOfParameters(name, params) as (Tensor | [string, Tensor])[]);
    const paramNames = items.flatMap((item) => (Array.isArray(item) ? [item[0] as string] : []));
    const tensors = items.map((item) => (Array.isArray(item) ? item[1] : item) as Tensor);
    this.checkParameters([...this.paramGroups.flatMap((group) => group.params), ...tensors]);
    const group = {
      params: tensors,
      ...readGroup(this.kind, options as unknown as GivenOptions<O>, this.defaults),
    } as ParamGroup<O>;
    if (paramNames.length > 0) group.paramNames = paramNames;
    this.paramGroups.push(group);
  }

  /** Refuses what cannot be a parameter, and parameters that are there twice. */
  private checkParameters(parameters: readonly Tensor[]): void {
    const { name } = this.kind;
    const known = new Set<Tensor>();
    for (const tensor of parameters) {
      if (!(tensor instanceof Tensor))
        throw new TorchError(
          'BAD_ARGUMENT',
          `${name}: parameters are tensors, got ${tensor === null ? 'null' : typeof tensor}; pass model.parameters()`,
        );
      if (known.has(tensor))
        throw new TorchError('BAD_ARGUMENT', `${name}: a parameter is given twice; each may be in one group only`);
      known.add(tensor);
      if (this.kind.needsWhole === true && isShard(tensor))
        throw new TorchError(
          'BAD_ARGUMENT',
          `${name}: a parameter is this rank's part of a sharded one, [${tensor.shape.join(', ')}], and ${name} computes with whole matrices; use replicate instead of fullyShard, or another optimizer, AdamW for example`,
        );
      if (this.checked.has(tensor)) continue;
      if (!tensor.isLeaf)
        throw new TorchError(
          'NOT_LEAF',
          `${name}: a parameter is the result of an operator and cannot be optimized; pass the tensors it was made of`,
        );
      this.kind.checkParameter?.(tensor);
    }
    for (const tensor of parameters) this.checked.add(tensor);
  }

  /** Moves every parameter that has a gradient. */
  step(): void {
    const { paramGroups, kind, numbers } = this;
    while (numbers.length < paramGroups.length) numbers.push(new Float64Array(STEP_NUMBERS_LONGEST));
    for (let g = 0; g < paramGroups.length; g++) writeNumbers(kind, paramGroups, g, numbers[g]!);
    const prepared = this.prepare();
    for (let g = 0; g < paramGroups.length; g++) {
      const { buckets } = prepared[g]!;
      const lr: number | Tensor = paramGroups[g]!.lr;
      const rate = typeof lr === 'number' ? null : lr.handle;
      for (let b = 0; b < buckets.length; b++) kind.step(buckets[b]!.native, numbers[g]!, rate);
    }
  }

  /** Drops all gradients; with `setToNone: false` they become zeros. */
  zeroGrad(options?: { setToNone?: boolean | undefined }): void {
    const setToNone = options?.setToNone ?? true;
    for (const { buckets } of this.prepare())
      for (const bucket of buckets) native.zeroBucketGrads(bucket.native, setToNone);
  }

  /** Where each group is stepped: made at first use, so that a model may move before, and anew when groups have changed. */
  private prepare(): readonly Prepared[] {
    const { paramGroups, prepared, kind } = this;
    let isReady = prepared.length === paramGroups.length;
    for (let g = 0; isReady && g < paramGroups.length; g++) isReady = isCurrent(kind, prepared[g]!, paramGroups[g]!);
    if (!isReady) this.prepared = this.renew();
    return this.prepared;
  }

  /** Prepares the groups that have changed. What is remembered of a parameter stays with it while it is in any group. */
  private renew(): readonly Prepared[] {
    const { paramGroups, kind } = this;
    for (const { params } of paramGroups)
      checkGiven(kind.name, Array.isArray(params), ["a group's params", params], 'an array of tensors');
    this.checkParameters(paramGroups.flatMap((group) => group.params));
    const before = new Map(this.prepared.map((known) => [known.group, known]));
    const made = paramGroups.map((group) => {
      const known = before.get(group);
      return known !== undefined && isCurrent(kind, known, group) ? known : prepareGroup(kind, group);
    });
    const kept = new Set(made);
    const left = this.prepared.filter((known) => !kept.has(known));
    const old = new Set(this.prepared);
    this.takeOver(
      made.filter((one) => !old.has(one)),
      left,
    );
    for (const { buckets } of left) for (const bucket of buckets) native.clearBucket(bucket.native);
    return made;
  }

  /** Goes on with what is remembered, where parameters are in other places or have become others of the same shapes. */
  private takeOver(made: readonly Prepared[], left: readonly Prepared[]): void {
    noGrad(() =>
      scope(() => {
        const remembered = new Map<Tensor, Record<string, Tensor>>();
        for (const known of left)
          for (const [position, record] of this.readState(known)) remembered.set(known.parameters[position]!, record);
        if (remembered.size === 0) return;
        for (const prepared of made) {
          const { slots, parameters } = prepared;
          const state = new Map<number, Record<string, Tensor>>();
          parameters.forEach((parameter, position) => {
            const record = remembered.get(parameter);
            if (record === undefined) return;
            const [misfit] = misfitsOf(slots, parameter, record);
            if (misfit !== undefined)
              throw new TorchError(
                'STATE_DICT',
                `${this.kind.name}: parameter ${position} is [${parameter.shape.join(', ')}] now, and was another one when this optimizer took a step: ${misfit}; make the optimizer after what changes parameters, such as fullyShard`,
              );
            state.set(position, adapt(record, { parameter, slots, copy: false }));
          });
          this.writeState(prepared, state);
        }
      }),
    );
  }

  /** State of a group's parameters, by their position in the group. */
  private readState({ buckets, slots }: Prepared): Map<number, Record<string, Tensor>> {
    const found = new Map<number, Record<string, Tensor>>();
    for (const { native: bucket, positions } of buckets) {
      slots.forEach((slot, s) => {
        native.bucketState(bucket, s).forEach((handle, i) => {
          if (handle === null) return;
          const position = positions[i]!;
          const record = found.get(position) ?? {};
          record[slot.name] = Tensor.adopt(handle);
          found.set(position, record);
        });
      });
    }
    return found;
  }

  private writeState({ buckets, slots }: Prepared, state: ReadonlyMap<number, Readonly<Record<string, Tensor>>>): void {
    for (const { native: bucket, positions } of buckets) {
      slots.forEach((slot, s) => {
        native.setBucketState(
          bucket,
          s,
          positions.map((position) => state.get(position)?.[slot.name]?.handle ?? null),
        );
      });
    }
  }

  /** What the optimizer remembers of a parameter, under PyTorch's names; the tensors are the optimizer's own. */
  stateOf(parameter: Tensor): Record<string, Tensor> {
    for (let g = 0; g < this.paramGroups.length; g++) {
      const position = this.paramGroups[g]!.params.indexOf(parameter);
      if (position >= 0) return this.readState(this.prepare()[g]!).get(position) ?? {};
    }
    throw new TorchError('NOT_FOUND', `${this.kind.name}: the tensor is not a parameter of this optimizer`);
  }

  /** Everything needed to go on later; the tensors share memory with the optimizer. */
  stateDict(): OptimizerState {
    const state: Record<number, Record<string, Tensor>> = {};
    let start = 0;
    const prepared = this.prepare();
    const paramGroups = this.paramGroups.map((group, g) => {
      const first = start;
      for (const [position, record] of this.readState(prepared[g]!)) state[first + position] = record;
      const { params, ...options } = group;
      start += params.length;
      return { ...options, params: params.map((_, i) => first + i) };
    });
    return { state, paramGroups };
  }

  /**
   * Goes on where `stateDict` was taken. Options and state are copied; with `{ copy: false }` tensors of the right type and device
   * become the optimizer's own.
   */
  loadStateDict(source: OptimizerState, options?: { readonly copy?: boolean | undefined }): void {
    checkOptions(`${this.kind.name}.loadStateDict`, options, ['copy']);
    this.checkStateDict(source);
    const copy = options?.copy !== false;
    source.paramGroups.forEach((saved, g) => assignOptions(this.paramGroups[g]!, saved, copy));
    this.prepare().forEach((prepared, g) => {
      noGrad(() =>
        scope(() => {
          const state = new Map<number, Record<string, Tensor>>();
          source.paramGroups[g]!.params.forEach((index, i) => {
            const record = source.state[index];
            const parameter = prepared.parameters[i]!;
            if (record !== undefined) state.set(i, adapt(record, { parameter, slots: prepared.slots, copy }));
          });
          this.writeState(prepared, state);
        }),
      );
    });
  }

  /**
   * Refuses what `loadStateDict` would refuse, and changes nothing: state of other parameters, or of another kind of optimizer.
   *
   * @example optimizer.checkStateDict(saved); model.loadStateDict(weights); optimizer.loadStateDict(saved)
   */
  checkStateDict(source: OptimizerState): void {
    const { name } = this.kind;
    checkObject(`${name}.loadStateDict`, 'the state', source, 'what stateDict() gives');
    const isGroups =
      Array.isArray(source.paramGroups) && source.paramGroups.every((group) => Array.isArray(group?.params));
    checkGiven(
      `${name}.loadStateDict`,
      isGroups && typeof source.state === 'object' && source.state !== null,
      ['the state', source],
      'what stateDict() gives',
    );
    const sizes = (groups: readonly { readonly params: readonly unknown[] }[]): string =>
      groups.map((group) => group.params.length).join(', ');
    if (sizes(source.paramGroups) !== sizes(this.paramGroups)) {
      throw new TorchError(
        'STATE_DICT',
        `${name}.loadStateDict: the groups of this optimizer have ${sizes(this.paramGroups)} parameters, those of the state ${sizes(source.paramGroups)}`,
      );
    }
    source.paramGroups.forEach(({ params, ...options }, g) => {
      const group = { ...this.paramGroups[g]!, ...options };
      this.kind.check(group);
      checkState(
        { name, slots: this.kind.slots(group) },
        group.params,
        params.map((index) => source.state[index]),
      );
    });
  }

  /** Frees what the optimizer remembers. */
  dispose(): void {
    for (const { buckets } of this.prepared) for (const bucket of buckets) native.clearBucket(bucket.native);
    this.prepared = [];
  }

  [Symbol.dispose](): void {
    this.dispose();
  }

  /** The optimizer as PyTorch prints it. */
  toString(): string {
    const groups = this.paramGroups.map((group, g) => {
      const lines = Object.keys(group)
        .filter((key) => key !== 'params' && key !== 'paramNames')
        .sort()
        .map((key) => `    ${key}: ${printed(group[key])}`);
      return `Parameter Group ${g}\n${lines.join('\n')}\n`;
    });
    return `${this.constructor.name} (\n${groups.join('\n')})`;
  }
}

function printed(value: unknown): string {
  return value instanceof Tensor ? String(value.item()) : JSON.stringify(value);
}

/** What parameters are given as, as an array. */
function listOfParameters(name: string, params: unknown): unknown[] {
  checkIterable(name, 'the first argument', params, 'the parameters: model.parameters()');
  return [...(params as Iterable<unknown>)];
}

/** Options with markers taken off, checked. */
function readGroup<O extends BaseOptions>(kind: Kind<O>, given: GivenOptions<O> | undefined, defaults: O): O {
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
function writeNumbers<O extends BaseOptions>(
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

/** Refuses numbers below zero, by name. */
export function checkNotNegative(where: string, options: object, names: readonly string[]): void {
  for (const name of names) {
    const value = Reflect.get(options, name) as number;
    if (!(value >= 0)) throw new TorchError('BAD_ARGUMENT', `${where}: ${name} must be at least 0, got ${value}`);
  }
}

/** Refuses betas that are not two numbers from 0 up to 1. */
export function checkBetas(where: string, betas: readonly number[]): void {
  if (Array.isArray(betas) && betas.length === 2 && betas.every((beta) => beta >= 0 && beta < 1)) return;
  throw new TorchError(
    'BAD_ARGUMENT',
    `${where}: betas are two numbers of at least 0 and less than 1, got ${JSON.stringify(betas)}`,
  );
}

/** Gives a group saved options; a learning rate that is a tensor there stays the same tensor and gets the value. */
function assignOptions(group: object, saved: Readonly<Record<string, unknown>>, copy: boolean): void {
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

/** Makes what a group is stepped with; nothing is remembered yet. */
function prepareGroup<O extends BaseOptions>(kind: Kind<O>, group: ParamGroup<O>): Prepared {
  const slots = kind.slots(group);
  const numberType = getDefaultDtype() === float64 ? float64 : float32;
  const codes = slots.flatMap((slot) => [
    slotKinds[slot.kind],
    slot.begin ?? 0,
    (slot.kind === 'number' ? numberType : float32).code,
  ]);
  const parameters = [...group.params];
  const handles = parameters.map((parameter) => parameter.handle);
  const places = handles.map(placeOf);
  const positionsOf = new Map<number, number[]>();
  places.forEach((place, i) => {
    const list = positionsOf.get(place);
    if (list === undefined) positionsOf.set(place, [i]);
    else list.push(i);
  });
  const buckets = [...positionsOf.values()].map((positions): Bucket => {
    const bucket = native.createBucket(
      positions.map((i) => handles[i]!),
      codes,
    );
    return { native: bucket, positions };
  });
  return { group, key: kind.slotKey?.(group) ?? 0, slots, buckets, parameters, handles, places };
}

/** Whether a group is still the one that was prepared, with the same parameters, and what is remembered is still the same. */
function isCurrent<O extends BaseOptions>(kind: Kind<O>, known: Prepared, group: ParamGroup<O>): boolean {
  const { parameters, handles, places } = known;
  const { params } = group;
  if (known.group !== group || known.key !== (kind.slotKey?.(group) ?? 0)) return false;
  if (params.length !== parameters.length) return false;
  for (let i = 0; i < parameters.length; i++) {
    const parameter = params[i]!;
    if (parameter !== parameters[i]) return false;
    const { handle } = parameter;
    if (handle !== handles[i] || placeOf(handle) !== places[i]) return false;
  }
  return true;
}

const meta = native.metaArray;

/** Device and element type as one number: read at every step, so without making texts. */
function placeOf(handle: number): number {
  native.meta(handle);
  return (meta[META_DTYPE]! * 256 + meta[META_DEVICE_TYPE]!) * 256 + meta[META_DEVICE_INDEX]!;
}
