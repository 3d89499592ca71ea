/** @file Restores a run's state, from a checkpoint or from a copy in memory. */
import { type DTypeName, empty, noGrad, type optim, scope, Tensor } from '@pipewright/torch';
import { copyTensors } from '@pipewright/torch/internal';
import { PipelineError } from '../../base/errors.ts';
import { decode, type Json } from '../format/codec.ts';
import type { Part } from '../format/piece.ts';
import { type SavedOptimizer, type StateTensor, slotPart } from './state-tensors.ts';
import type { CollectedState } from './training-state.ts';

/** A source of stored tensors. */
export interface TensorSource {
  /** The key of the first name that is stored; undefined where none is. */
  keyOf(names: readonly string[]): string | undefined;
  /** Shape of the whole. */
  shapeOf(key: string): readonly number[];
  /** Names of the optimizer state that is stored for a parameter: its slots. */
  slotsOf(key: string): readonly string[];
  dtypeOf(key: string): string;
  /** Checks that parts can be read. */
  check(parts: readonly Wanted[]): void;
  /** What to copy from where, so that a tensor holds a part; to be used before the source is gone. */
  copies(key: string, part: Part, target: Tensor): Iterable<readonly [to: Tensor, from: Tensor]>;
  /** Options of the group that a parameter is in, as they are stored; null where no optimizer was saved. */
  optionsOf(names: readonly string[], optimizer: number): Json | null;
}

/** A tensor that is to be read. */
export interface Wanted {
  readonly key: string;
  readonly part: Part;
}

/** The tensors of an optimizer's state, by parameter and slot. */
interface OptimizerPlan {
  readonly optimizer: SavedOptimizer;
  readonly slots: readonly ReadonlyMap<string, Wanted>[];
  readonly options: readonly Readonly<Record<string, unknown>>[];
}

/**
 * Finds everything that a run needs, checks that it is there and undamaged, and only then changes anything. `first` runs after the
 * checks and before the first change: if it throws, no tensor has changed.
 */
export function restoreTensors(where: string, run: CollectedState, source: TensorSource, first: () => void): void {
  const weights = run.weights.map((weight) => ({ weight, wanted: findWeight(where, weight, source) }));
  const byTensor = new Map(run.weights.map((weight) => [weight.tensor, weight]));
  const optimizers = run.optimizers.map((optimizer, at) => planOptimizer(where, { optimizer, at, byTensor, source }));
  source.check([
    ...weights.map(({ wanted }) => wanted),
    ...optimizers.flatMap(({ slots }) => slots.flatMap((map) => [...map.values()])),
  ]);
  noGrad(() =>
    scope(() => {
      const states = optimizers.map((plan) => stateFor(plan, source));
      optimizers.forEach((plan, at) => checkOptimizer(where, at, plan, states[at]!.state));
      const pairs = [
        ...weights.map(({ weight, wanted }) => ({ wanted, target: weight.tensor.detach() })),
        ...states.flatMap(({ targets }) => targets),
      ].flatMap(({ wanted, target }) => [...source.copies(wanted.key, wanted.part, target)]);
      first();
      copyTensors(
        pairs.map(([to]) => to),
        pairs.map(([, from]) => from),
      );
      optimizers.forEach((plan, i) => loadOptimizer(plan, states[i]?.state ?? {}));
    }),
  );
}

function findWeight(where: string, weight: StateTensor, source: TensorSource): Wanted {
  const key = source.keyOf([weight.key, ...weight.aliases]);
  if (key === undefined)
    throw new PipelineError(
      'CHECKPOINT_STATE',
      `${where}: '${weight.key}' of stage ${weight.stage} is not in the checkpoint; names are those of the whole model: see the option names of PipelineStage`,
      { name: weight.key, stage: weight.stage },
    );
  checkShape(where, weight.key, { stored: source.shapeOf(key), wanted: weight.part.shape });
  return { key, part: weight.part };
}

function checkShape(
  where: string,
  name: string,
  { stored, wanted }: { readonly stored: readonly number[]; readonly wanted: readonly number[] },
): void {
  if (stored.join() === wanted.join()) return;
  throw new PipelineError(
    'CHECKPOINT_STATE',
    `${where}: '${name}' is [${wanted.join(', ')}] here and [${stored.join(', ')}] in the checkpoint; load it into the model that saved it`,
    { name },
  );
}

interface OptimizerContext {
  readonly optimizer: SavedOptimizer;
  readonly at: number;
  readonly byTensor: ReadonlyMap<Tensor, StateTensor>;
  readonly source: TensorSource;
}

function planOptimizer(where: string, { optimizer, at, byTensor, source }: OptimizerContext): OptimizerPlan {
  const slots: ReadonlyMap<string, Wanted>[] = [];
  const options: Readonly<Record<string, unknown>>[] = [];
  for (const group of optimizer.paramGroups) {
    let found: Json | null = null;
    for (const parameter of group.params) {
      const owner = byTensor.get(parameter)!;
      const names = [owner.key, ...owner.aliases];
      const own = source.optionsOf(names, at);
      if (own === null)
        throw new PipelineError(
          'CHECKPOINT_STATE',
          `${where}: the checkpoint has no state of optimizer ${at} for '${owner.key}'; leave the optimizer out, or save it too`,
          { name: owner.key },
        );
      if (found !== null && JSON.stringify(found) !== JSON.stringify(own))
        throw new PipelineError(
          'CHECKPOINT_STATE',
          `${where}: a group of optimizer ${at} has parameters that were saved with different options, '${owner.key}' among them; make the groups as they were`,
          { name: owner.key },
        );
      found = own;
      slots.push(slotsFor(where, owner, source));
    }
    options.push(found === null ? {} : (decode(found) as Readonly<Record<string, unknown>>));
  }
  return { optimizer, slots, options };
}

function slotsFor(where: string, owner: StateTensor, source: TensorSource): Map<string, Wanted> {
  const key = source.keyOf([owner.key, ...owner.aliases])!;
  return new Map(
    source.slotsOf(key).map((slot) => {
      const shape = source.shapeOf(`${key}/${slot}`);
      const isLike = shape.join() === owner.part.shape.join();
      const part = isLike ? owner.part : slotPart(owner, slot, { shape });
      if (isLike) checkShape(where, `${owner.key}/${slot}`, { stored: shape, wanted: part.shape });
      return [slot, { key: `${key}/${slot}`, part }];
    }),
  );
}

/** The tensors for an optimizer's state: those that it has already, where they fit, because new memory costs more than copying. */
function stateFor(
  { optimizer, slots }: OptimizerPlan,
  source: TensorSource,
): { state: OptimizerTensors; targets: { readonly wanted: Wanted; readonly target: Tensor }[] } {
  const held = optimizer.stateDict().state as OptimizerTensors;
  const state: OptimizerTensors = {};
  const targets: { readonly wanted: Wanted; readonly target: Tensor }[] = [];
  slots.forEach((map, index) => {
    for (const [slot, wanted] of map) {
      const { key, part } = wanted;
      const own = held[index]?.[slot];
      const isFit = own?.shape.join() === part.local.join() && own.dtype.name === source.dtypeOf(key);
      const target = isFit ? own : empty([...part.local], { dtype: source.dtypeOf(key) as DTypeName });
      (state[index] ??= {})[slot] = target;
      targets.push({ wanted, target });
    }
  });
  return { state, targets };
}

type OptimizerTensors = Record<number, Record<string, Tensor>>;

/** Refuses state that an optimizer would refuse, before anything is changed. */
function checkOptimizer(where: string, at: number, plan: OptimizerPlan, state: OptimizerTensors): void {
  try {
    plan.optimizer.checkStateDict?.(stateDictOf(plan, state, (_, options) => ({ ...options })));
  } catch (cause) {
    throw new PipelineError(
      'CHECKPOINT_STATE',
      `${where}: the checkpoint's state of optimizer ${at} is not for this one: ${cause instanceof Error ? cause.message : String(cause)}`,
      { optimizer: at },
      { cause },
    );
  }
}

function loadOptimizer(plan: OptimizerPlan, state: OptimizerTensors): void {
  plan.optimizer.loadStateDict(stateDictOf(plan, state, keepTensors), { copy: false });
}

/** The state dict for an optimizer: its state, and the options of its groups. */
function stateDictOf(
  { optimizer, options }: OptimizerPlan,
  state: OptimizerTensors,
  optionsOf: (group: object, options: Readonly<Record<string, unknown>>) => Record<string, unknown>,
): optim.OptimizerState {
  let next = 0;
  const paramGroups = optimizer.paramGroups.map((group, g) => ({
    ...optionsOf(group, options[g]!),
    params: group.params.map(() => next++),
  }));
  return { state, paramGroups };
}

/** Options of a group; a learning rate that is a tensor here stays the same tensor and gets the value. */
function keepTensors(group: object, options: Readonly<Record<string, unknown>>): Record<string, unknown> {
  return Object.fromEntries(
    Object.entries(options).map(([name, value]) => {
      const own: unknown = Reflect.get(group, name);
      if (!(own instanceof Tensor)) return [name, value instanceof Tensor ? value.item() : value];
      own.fill_(value instanceof Tensor ? value.item() : Number(value));
      return [name, own];
    }),
  );
}
