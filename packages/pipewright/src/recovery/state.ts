/** @file The objects that make up the state of a rank: takes snapshots of them and restores them. */
import { deserialize, serialize } from 'node:v8';
import { Generator, getRngState, nn, noGrad, optim, scope, setRngState, Tensor, unscoped } from '@pipewright/torch';
import { show } from '../base/checks.ts';
import { PipelineError } from '../base/errors.ts';
import { flatten, isPlainObject, type TreeSpec, unflatten } from '../base/tree.ts';
import { isSharded } from '../parallel/fully-shard.ts';
import { replicationOf } from '../parallel/replicate.ts';
import { type Part, partOf, type Snapshot } from './snapshot.ts';

/** Anything with a state dict: learning rate schedules, loaders, scalers. */
export interface Stateful {
  stateDict(): unknown;
  loadStateDict(state: never): unknown;
}

/** One object of the state: a module, an optimizer, a generator, anything with `stateDict`, a plain object of numbers and texts, or a list of these. */
export type StateObject = nn.Module | Generator | Stateful | { [key: string]: unknown } | readonly StateObject[];

/** All objects of a rank's state, by names that all ranks of one stage share. */
export type TrainState = Readonly<Record<string, StateObject>>;

/** A part of one object's state, and how to restore it. */
interface Entry {
  readonly name: string;
  /** Whether it is the same on all replicas of this rank. */
  readonly shared: boolean;
  take(): unknown;
  put(value: unknown): void;
}

/** The state of a rank. */
export class RankState {
  private readonly objects: readonly (readonly [string, StateObject])[];

  constructor(state: TrainState) {
    if (!isPlainObject(state))
      throw new PipelineError(
        'BAD_OPTION',
        `trainLoop: state is ${show(state)}; give an object such as { model, optimizer }`,
      );
    this.objects = Object.entries(state).flatMap(([name, object]) => named(name, object));
    this.entries(); // what cannot be remembered is refused at once
  }

  /** A copy of the state, in the memory of the host. */
  take(step: number): Snapshot {
    const entries = this.entries();
    const part = (shared: boolean): Part =>
      unscoped(() => noGrad(() => packed(entries.filter((entry) => entry.shared === shared))));
    return { step, shared: part(true), own: part(false) };
  }

  /** Restores the state from a snapshot; gradients are dropped. */
  put({ shared, own }: Snapshot): void {
    const values = new Map([...unpacked(shared), ...unpacked(own)]);
    for (const { name, put } of this.entries()) {
      if (!values.has(name))
        throw new PipelineError(
          'STATE_LOST',
          `trainLoop: the copy of this rank's state has no ${name}; give all ranks the same state`,
        );
      noGrad(() => put(values.get(name)));
    }
    for (const [, object] of this.objects)
      if (object instanceof nn.Module) for (const parameter of object.parameters()) parameter.grad = null;
  }

  /** A key that the replicas of this rank share; null where there are none. */
  replicaKey(): string | null {
    const groups = this.modules().map((module) => replicationOf(module)?.group);
    const keys = groups.flatMap((group) => (group === undefined || group.size < 2 ? [] : [group.name]));
    return keys.length === 0 ? null : keys.join(' ');
  }

  /** Whether any parameter is sharded: then this rank has only its part of the initial values. */
  hasShards(): boolean {
    return this.modules().some(isSharded);
  }

  private modules(): nn.Module[] {
    return this.objects.flatMap(([, object]) => (object instanceof nn.Module ? [object] : []));
  }

  private entries(): Entry[] {
    const replicated = new Set<Tensor>(
      this.modules()
        .filter((module) => (replicationOf(module)?.group.size ?? 1) > 1)
        .flatMap((module) => module.parameters()),
    );
    return [
      { name: 'default generator', shared: false, take: getRngState, put: (state) => setRngState(state as Tensor) },
      ...this.objects.flatMap(([name, object]) => entriesOf(name, object, replicated)),
    ];
  }
}

function named(name: string, object: StateObject): [string, StateObject][] {
  return Array.isArray(object)
    ? object.flatMap((one, i) => named(`${name}[${i}]`, one as StateObject))
    : [[name, object]];
}

function entriesOf(name: string, object: StateObject, replicated: ReadonlySet<Tensor>): Entry[] {
  if (typeof (object as unknown) !== 'object' || object === null) throw unfit(name, object);
  if (object instanceof nn.Module) return moduleEntries(name, object, replicated);
  if (object instanceof Generator)
    return [{ name, shared: false, take: () => object.getState(), put: (state) => object.setState(state as Tensor) }];
  if (object instanceof optim.Optimizer) {
    const parameters = object.paramGroups.flatMap(({ params }) => params);
    return [
      {
        name,
        shared: parameters.every((parameter) => replicated.has(parameter)),
        take: () => object.stateDict(),
        put: (state) => putOptimizer(object, state as optim.OptimizerState),
      },
    ];
  }
  if (isStateful(object))
    return [
      {
        name,
        shared: false,
        take: () => object.stateDict(),
        put: (state) => object.loadStateDict(copied(state) as Parameters<typeof object.loadStateDict>[0]),
      },
    ];
  if (isPlainObject(object))
    return [{ name, shared: false, take: () => ({ ...object }), put: (value) => replace(object, value) }];
  throw unfit(name, object);
}

function unfit(name: string, object: unknown): PipelineError {
  return new PipelineError(
    'BAD_OPTION',
    `trainLoop: state.${name} is ${show(object)}; give modules, optimizers, generators, what has stateDict and loadStateDict, plain objects, or lists of them`,
  );
}

/** Parameters may be the same on all replicas; buffers are each rank's own. */
function moduleEntries(name: string, module: nn.Module, replicated: ReadonlySet<Tensor>): Entry[] {
  const parameters = (): Tensor[] => [...new Set<Tensor>(module.parameters())];
  const buffers = (): Tensor[] => [...new Set<Tensor>(module.buffers())];
  const put = (into: readonly Tensor[]) => (values: unknown) =>
    into.forEach((tensor, i) => void tensor.copy_((values as Tensor[])[i]!));
  const all = parameters();
  return [
    {
      name: `${name}.parameters`,
      shared: all.length > 0 && all.every((one) => replicated.has(one)),
      take: () => all.map((tensor) => tensor.detach()),
      put: put(all),
    },
    {
      name: `${name}.buffers`,
      shared: false,
      take: () => buffers().map((tensor) => tensor.detach()),
      put: (values) => put(buffers())(values),
    },
  ];
}

/** The state is copied by the optimizer; a learning rate that is a tensor would become its own. */
function putOptimizer(optimizer: optim.Optimizer, { state, paramGroups }: optim.OptimizerState): void {
  optimizer.loadStateDict({ state, paramGroups: copied(paramGroups) as optim.OptimizerState['paramGroups'] });
}

function copied(value: unknown): unknown {
  const { leaves, spec } = flatten(value);
  return unflatten(
    spec,
    leaves.map((leaf) => (leaf instanceof Tensor ? unscoped(() => leaf.clone()) : leaf)),
  );
}

function replace(object: { [key: string]: unknown }, value: unknown): void {
  for (const key of Object.keys(object)) if (!(key in (value as object))) delete object[key];
  Object.assign(object, value);
}

function isStateful(object: object): object is Stateful {
  return (
    'stateDict' in object &&
    typeof object.stateDict === 'function' &&
    'loadStateDict' in object &&
    typeof object.loadStateDict === 'function'
  );
}

/** Values of entries as one part: tensors, copied, and all else as bytes. */
function packed(entries: readonly Entry[]): Part {
  const tensors: Tensor[] = [];
  const described = entries.map(({ name, take }) => {
    const { leaves, spec } = scope(() => {
      const flat = flatten(take());
      return {
        spec: flat.spec,
        leaves: flat.leaves.map((leaf) => (leaf instanceof Tensor ? kept(leaf, tensors) : { leaf })),
      };
    });
    return { name, spec, leaves };
  });
  return partOf(serialize(described), tensors);
}

/** A leaf of a described tree: a value, or the place of a tensor. */
type Leaf = { readonly leaf: unknown } | number;

function kept(tensor: Tensor, tensors: Tensor[]): number {
  return tensors.push(unscoped(() => tensor.detach().to({ device: 'cpu', copy: true }))) - 1;
}

function unpacked({ bytes, tensors }: Part): [string, unknown][] {
  const described = deserialize(bytes) as { name: string; spec: TreeSpec; leaves: Leaf[] }[];
  return described.map(({ name, spec, leaves }) => [
    name,
    unflatten(
      spec,
      leaves.map((leaf) => (typeof leaf === 'number' ? tensors[leaf] : leaf.leaf)),
    ),
  ]);
}
