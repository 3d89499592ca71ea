/**
 * @file A group of parameters as it is stepped: one native bucket for each device and element type, which holds what is remembered
 * of its parameters. State lives beside the kernels, so it outlives every scope.
 */
import { type NativeBucket, native } from '../addon/addon.ts';
import { META_DEVICE_INDEX, META_DEVICE_TYPE, META_DTYPE } from '../addon/generated/border.ts';
import { noGrad } from '../autograd/modes.ts';
import { TorchError } from '../base/errors.ts';
import { float32, float64, getDefaultDtype } from '../tensor/dtype.ts';
import { scope } from '../tensor/scope.ts';
import { Tensor } from '../tensor/tensor.ts';
import type { BaseOptions, Kind } from './optimizer-kind.ts';
import { adapt, misfitsOf, type Slot, slotKinds } from './optimizer-state.ts';
import type { ParamGroup } from './param-group.ts';

/** A group as it is stepped, until the group or its parameters change. */
export class PreparedGroup<O extends BaseOptions> {
  readonly group: ParamGroup<O>;
  readonly slots: readonly Slot[];
  readonly buckets: readonly Bucket[];
  /** The parameters, in order. */
  readonly parameters: readonly Tensor[];
  private readonly kind: Kind<O>;
  private readonly key: number;
  /** The tensors they are: a parameter may become another one, as when it is sharded or moved to another device. */
  private readonly handles: readonly number[];
  /** Their devices and element types, which may change without the tensor becoming another one. */
  private readonly places: readonly number[];

  /** Nothing is remembered yet. */
  constructor(kind: Kind<O>, group: ParamGroup<O>) {
    this.kind = kind;
    this.group = group;
    this.key = kind.slotKey?.(group) ?? 0;
    this.slots = kind.slots(group);
    this.parameters = [...group.params];
    this.handles = this.parameters.map((parameter) => parameter.handle);
    this.places = this.handles.map(placeOf);
    const numberType = getDefaultDtype() === float64 ? float64 : float32;
    const codes = this.slots.flatMap((slot) => [
      slotKinds[slot.kind],
      slot.begin ?? 0,
      (slot.kind === 'number' ? numberType : float32).code,
    ]);
    const positionsOf = new Map<number, number[]>();
    this.places.forEach((place, i) => {
      const list = positionsOf.get(place);
      if (list === undefined) positionsOf.set(place, [i]);
      else list.push(i);
    });
    this.buckets = [...positionsOf.values()].map((positions): Bucket => {
      const bucket = native.createBucket(
        positions.map((i) => this.handles[i]!),
        codes,
      );
      return { native: bucket, positions };
    });
  }

  /** Whether a group is still the one that was prepared, with the same parameters, and what is remembered is still the same. */
  isCurrent(group: ParamGroup<O>): boolean {
    const { parameters, handles, places } = this;
    const { params } = group;
    if (this.group !== group || this.key !== (this.kind.slotKey?.(group) ?? 0)) return false;
    if (params.length !== parameters.length) return false;
    for (let i = 0; i < parameters.length; i++) {
      const parameter = params[i]!;
      if (parameter !== parameters[i]) return false;
      const { handle } = parameter;
      if (handle !== handles[i] || placeOf(handle) !== places[i]) return false;
    }
    return true;
  }

  /** State of the parameters, by their position in the group. */
  readState(): Map<number, Record<string, Tensor>> {
    const found = new Map<number, Record<string, Tensor>>();
    for (const { native: bucket, positions } of this.buckets) {
      this.slots.forEach((slot, s) => {
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

  /** Goes on with state, by position in the group; the tensors are taken as they are. */
  writeState(state: ReadonlyMap<number, Readonly<Record<string, Tensor>>>): void {
    for (const { native: bucket, positions } of this.buckets) {
      this.slots.forEach((slot, s) => {
        native.setBucketState(
          bucket,
          s,
          positions.map((position) => state.get(position)?.[slot.name]?.handle ?? null),
        );
      });
    }
  }

  /** Frees what is remembered. */
  clear(): void {
    for (const bucket of this.buckets) native.clearBucket(bucket.native);
  }
}

/** Parameters of one group that are stepped together. */
interface Bucket {
  readonly native: NativeBucket;
  /** Positions in the group. */
  readonly positions: readonly number[];
}

/** Prepares the groups that have changed. What is remembered of a parameter stays with it while it is in any group. */
export function prepareGroups<O extends BaseOptions>(
  kind: Kind<O>,
  groups: readonly ParamGroup<O>[],
  before: readonly PreparedGroup<O>[],
): readonly PreparedGroup<O>[] {
  const preparedOf = new Map(before.map((known) => [known.group, known]));
  const prepared = groups.map((group) => {
    const known = preparedOf.get(group);
    return known?.isCurrent(group) === true ? known : new PreparedGroup(kind, group);
  });
  const kept = new Set(prepared);
  const old = new Set(before);
  const left = before.filter((known) => !kept.has(known));
  const made = prepared.filter((one) => !old.has(one));
  takeOver(kind, made, left);
  for (const known of left) known.clear();
  return prepared;
}

/** Goes on with what is remembered, where parameters are in other places or have become others of the same shapes. */
function takeOver<O extends BaseOptions>(
  { name }: Kind<O>,
  made: readonly PreparedGroup<O>[],
  left: readonly PreparedGroup<O>[],
): void {
  noGrad(() =>
    scope(() => {
      const remembered = new Map<Tensor, Record<string, Tensor>>();
      for (const known of left)
        for (const [position, record] of known.readState()) remembered.set(known.parameters[position]!, record);
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
              `${name}: parameter ${position} is [${parameter.shape.join(', ')}] now, and was another one when this optimizer took a step: ${misfit}; make the optimizer after what changes parameters, such as fullyShard`,
            );
          state.set(position, adapt(record, { parameter, slots, copy: false }));
        });
        prepared.writeState(state);
      }
    }),
  );
}

const meta = native.metaArray;

/** Device and element type as one number: read at every step, so without making texts. */
function placeOf(handle: number): number {
  native.meta(handle);
  return (meta[META_DTYPE]! * 256 + meta[META_DEVICE_TYPE]!) * 256 + meta[META_DEVICE_INDEX]!;
}
