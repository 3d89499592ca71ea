/** @file What a checkpoint holds: collects and restores the parts of a training run that have a state. */
import { Generator, getRngState, scope, setRngState, Tensor } from '@pipewright/torch';
import { show } from '../../base/checks.ts';
import { PipelineError } from '../../base/errors.ts';
import type { PipelineStage } from '../../stage/pipeline-stage.ts';
import { decode, encode, type Json } from '../format/codec.ts';
import {
  type NamedGroup,
  optimizersOf,
  optimizerTensors,
  type SavedOptimizer,
  type StateTensor,
  stagesOf,
  weightsOf,
} from './state-tensors.ts';

/** Anything with a state dict: schedulers, scalers, loaders. */
export interface Stateful {
  stateDict(): unknown;
  // Each kind takes what its own stateDict gave.
  loadStateDict(state: never): unknown;
  /** Refuses what `loadStateDict` would refuse, and changes nothing. */
  checkStateDict?(state: never): unknown;
}

/** A source of random numbers, or anything with a state. */
export type SavedGenerator = Generator | Stateful;

/** The parts of a run on this rank. */
export interface TrainingState {
  /** The stages of this rank. */
  readonly stages: PipelineStage | readonly PipelineStage[];
  readonly optimizer?: SavedOptimizer | readonly SavedOptimizer[] | undefined;
  readonly scheduler?: Stateful | undefined;
  readonly scaler?: Stateful | undefined;
  readonly loader?: Stateful | undefined;
  /** By names of your own. The default generator of each rank is always included. */
  readonly generators?: Readonly<Record<string, SavedGenerator>> | undefined;
  /** Anything else that JSON can hold, tensors included. */
  readonly user?: unknown;
}

export const trainingStateNames: readonly string[] = [
  'stages',
  'optimizer',
  'scheduler',
  'scaler',
  'loader',
  'generators',
  'user',
];

/** A run's state on this rank, collected: tensors are those of the run itself. */
export interface CollectedState {
  readonly stages: readonly PipelineStage[];
  readonly optimizers: readonly SavedOptimizer[];
  readonly weights: readonly StateTensor[];
  readonly tensors: readonly StateTensor[];
  readonly groups: readonly NamedGroup[];
  /** Small states as JSON, by name: `scheduler`, `generators.dropout`. */
  readonly states: Readonly<Record<string, Json>>;
}

/** Collects the state of a run. */
export function collect(where: string, state: TrainingState): CollectedState {
  const stages = stagesOf(where, state.stages);
  const optimizers = optimizersOf(where, state.optimizer);
  const weights = weightsOf(stages);
  const { tensors, groups } = optimizerTensors(optimizers, weights);
  const states: Record<string, Json> = {};
  for (const [name, part] of statefulParts(where, state))
    states[name] =
      part instanceof Generator
        ? scope(() => encode(part.getState(), name))
        : scope(() => encode(part.stateDict(), name));
  states[DEFAULT_GENERATOR] = scope(() => encode(getRngState(), DEFAULT_GENERATOR));
  if (state.user !== undefined) states['user'] = encode(state.user, 'user');
  return { stages, optimizers, weights, tensors: [...weights, ...tensors], groups, states };
}

/** The default generator of a rank: its state is only for the same number of ranks. */
export const DEFAULT_GENERATOR = 'generator of the rank';

/**
 * Finds small states and checks them without changing anything; `find` returns what was stored under a name, or undefined. Calling
 * the result restores them, in the scope that this was called in.
 */
export function planStates(where: string, state: TrainingState, find: (name: string) => Json | undefined): () => void {
  const plans = statefulParts(where, state).map(([name, part]) => planState(where, name, part, find(name)));
  const own = find(DEFAULT_GENERATOR);
  return () => {
    for (const apply of plans) scope(apply);
    if (own === undefined) return;
    scope(() => {
      const value = decode(own);
      if (value instanceof Tensor) setRngState(value);
    });
  };
}

function planState(where: string, name: string, part: SavedGenerator, stored: Json | undefined): () => void {
  if (stored === undefined)
    throw new PipelineError('CHECKPOINT_STATE', `${where}: '${name}' was not saved; leave it out, or save it too`, {
      name,
    });
  const value = decode(stored);
  if (part instanceof Generator) {
    if (!(value instanceof Tensor))
      throw new PipelineError('CHECKPOINT_STATE', `${where}: what was saved as '${name}' is no generator`, { name });
    return () => void part.setState(value);
  }
  part.checkStateDict?.(value as never);
  return () => void part.loadStateDict(value as never);
}

function statefulParts(where: string, state: TrainingState): [string, SavedGenerator][] {
  const { scheduler, scaler, loader, generators } = state;
  const parts: [string, unknown][] = Object.entries({ scheduler, scaler, loader }).filter(
    ([, part]) => part !== undefined,
  );
  if (generators !== undefined && (typeof generators !== 'object' || generators === null || isStateful(generators)))
    throw new PipelineError(
      'BAD_OPTION',
      `${where}: generators is ${show(generators)}; give them by name: { generators: { dropout: generator } }`,
    );
  for (const [name, part] of Object.entries(generators ?? {})) parts.push([`generators.${name}`, part]);
  for (const [name, part] of parts)
    if (!(part instanceof Generator) && !isStateful(part))
      throw new PipelineError(
        'BAD_OPTION',
        `${where}: ${name} is ${show(part)}; give something with stateDict() and loadStateDict(), or leave it out`,
      );
  return parts as [string, SavedGenerator][];
}

function isStateful(part: unknown): part is Stateful {
  const { stateDict, loadStateDict } = (part ?? {}) as Partial<Stateful>;
  return typeof stateDict === 'function' && typeof loadStateDict === 'function';
}
