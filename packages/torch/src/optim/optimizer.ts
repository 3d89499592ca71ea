/** @file The base of all optimizers: groups of parameters with their options, and one native call per step, group, device and element type. */

import { native } from '../addon/addon.ts';
import { STEP_NUMBERS_LONGEST } from '../addon/generated/border.ts';
import { noGrad } from '../autograd/modes.ts';
import { checkFunction, checkGiven, checkIterable, checkObject, checkText } from '../base/checks.ts';
import { checkOptions, TorchError } from '../base/errors.ts';
import { scope } from '../tensor/scope.ts';
import { isShard } from '../tensor/shard-marks.ts';
import { Tensor } from '../tensor/tensor.ts';
import type { BaseOptions, Kind } from './optimizer-kind.ts';
import { adapt, checkState, type OptimizerState } from './optimizer-state.ts';
import {
  assignOptions,
  type GivenOptions,
  type GroupInput,
  type ParamGroup,
  type ParamsInput,
  readGroup,
  writeNumbers,
} from './param-group.ts';
import { type PreparedGroup, prepareGroups } from './prepared-group.ts';

/** The base of all optimizers. @example const optimizer = new AdamW(model.parameters(), { lr: 3e-4 }); optimizer.step() */
export abstract class Optimizer<O extends BaseOptions = BaseOptions> {
  readonly defaults: O;
  readonly paramGroups: ParamGroup<O>[] = [];
  private readonly kind: Kind<O>;
  /** The numbers of a step, per group. */
  private readonly numbers: Float64Array[] = [];
  private readonly checked = new WeakSet<Tensor>();
  private prepared: readonly PreparedGroup<O>[] = [];

  constructor(kind: Kind<O>, params: ParamsInput<O>, options: GivenOptions<O> | undefined) {
    checkObject('Optimizer', 'its kind', kind, 'what an optimizer is: use SGD, Adam and so on');
    checkText('Optimizer', 'the name of its kind', kind.name);
    checkFunction('Optimizer', kind.check, 'the check of its kind');
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
  private prepare(): readonly PreparedGroup<O>[] {
    const { paramGroups, prepared, kind } = this;
    let isReady = prepared.length === paramGroups.length;
    for (let g = 0; isReady && g < paramGroups.length; g++) isReady = prepared[g]!.isCurrent(paramGroups[g]!);
    if (isReady) return prepared;
    for (const { params } of paramGroups)
      checkGiven(kind.name, Array.isArray(params), ["a group's params", params], 'an array of tensors');
    this.checkParameters(paramGroups.flatMap((group) => group.params));
    this.prepared = prepareGroups(kind, paramGroups, prepared);
    return this.prepared;
  }

  /** What the optimizer remembers of a parameter, under PyTorch's names; the tensors are the optimizer's own. */
  stateOf(parameter: Tensor): Record<string, Tensor> {
    for (let g = 0; g < this.paramGroups.length; g++) {
      const position = this.paramGroups[g]!.params.indexOf(parameter);
      if (position >= 0) return this.prepare()[g]!.readState().get(position) ?? {};
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
      for (const [position, record] of prepared[g]!.readState()) state[first + position] = record;
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
          prepared.writeState(state);
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
    for (const known of this.prepared) known.clear();
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
