/** @file Loads a checkpoint at any layout: every rank reads what its stages need, whichever rank wrote it. */
import { distributed, scope } from '@pipewright/torch';
import { checkRequired } from '../../base/checks.ts';
import { PipelineError } from '../../base/errors.ts';
import { decode, type Json } from '../format/codec.ts';
import { type FoundCheckpoint, findCheckpoint, readCheckpoint } from '../format/folder.ts';
import type { Manifest, StoredState } from '../format/manifest.ts';
import { restoreTensors, type TensorSource } from '../state/restore.ts';
import {
  collect,
  DEFAULT_GENERATOR,
  planStates,
  type TrainingState,
  trainingStateNames,
} from '../state/training-state.ts';
import { CheckpointReader } from './reader.ts';

/** What is to be loaded. */
export interface LoadOptions extends Omit<TrainingState, 'user'> {
  /** All ranks of the run; default: the default group. */
  readonly group?: distributed.ProcessGroup | undefined;
  /** Weights in the checkpoint that no rank needs are an error; default true. */
  readonly strict?: boolean | undefined;
}

const optionNames = [...trainingStateNames.filter((name) => name !== 'user'), 'group', 'strict'];

/** What was loaded. */
export interface LoadedCheckpoint {
  /** Its folder. */
  readonly path: string;
  /** The step after which it was saved. */
  readonly step: number;
  /** What was saved as `user`. */
  readonly user: unknown;
  readonly manifest: Manifest;
  /** Bytes of the tensors that this rank has loaded. */
  readonly bytes: number;
}

/**
 * Loads a checkpoint into the stages, optimizers and the rest of a run, on all ranks; the number of ranks and stages, the schedule and
 * the sharding may differ from those of the run that saved it. Of a folder of checkpoints it loads the one that `latest` names. After
 * an error no tensor of this rank has changed.
 *
 * @example const { step } = loadCheckpoint('runs/gpt', { stages: runtime.stages, optimizer, loader })
 */
export function loadCheckpoint(folder: string, options: LoadOptions): LoadedCheckpoint {
  const where = 'loadCheckpoint';
  checkRequired(where, options, optionNames);
  const world = options.group ?? (distributed.isInitialized() ? distributed.getDefaultGroup() : null);
  const group = world !== null && world.size > 1 ? world : null;
  const found = chooseTogether(folder, group);
  const stored = found.manifest;
  const rank = group?.rank ?? 0;
  const ranks = group?.size ?? 1;
  using reader = new CheckpointReader(found);
  scope(() => {
    const run = collect(where, options);
    if (options.strict !== false) checkUnwanted(where, { reader, run, group });
    reader.checkTexts();
    const restoreStates = planStates(where, options, (name) => stateFor(where, { name, stored, rank, ranks }));
    // States refuse what they cannot load here, before any weight changes.
    restoreTensors(where, run, sourceOf(reader), restoreStates);
  });
  const user = stored.states['user'];
  return {
    path: found.path,
    step: stored.step,
    user: user === undefined ? undefined : decode(valueFor(user, rank) ?? null),
    manifest: stored,
    bytes: reader.bytes,
  };
}

/** All ranks load the same one: the first rank chooses. */
function chooseTogether(folder: string, group: distributed.ProcessGroup | null): FoundCheckpoint {
  if (group === null) return findCheckpoint(folder);
  let own: FoundCheckpoint | null = null;
  let problem: unknown = null;
  if (group.rank === 0) {
    try {
      own = findCheckpoint(folder);
    } catch (error) {
      problem = error;
    }
  }
  const said = group.broadcastObject(
    group.rank === 0 ? { path: own?.path ?? null, problem: problem === null ? null : String(problem) } : undefined,
    0,
  ) as { path: string | null; problem: string | null };
  if (problem !== null) throw problem;
  if (said.path === null)
    throw new PipelineError('NO_CHECKPOINT', `loadCheckpoint: rank 0 found nothing to load: ${said.problem}`, {
      folder,
    });
  return own ?? readCheckpoint(said.path);
}

/** Refuses a checkpoint with weights that no rank needs. */
function checkUnwanted(
  where: string,
  {
    reader,
    run,
    group,
  }: {
    readonly reader: CheckpointReader;
    readonly run: ReturnType<typeof collect>;
    readonly group: distributed.ProcessGroup | null;
  },
): void {
  const own = run.weights.flatMap(({ key, aliases }) => reader.keyOf([key, ...aliases]) ?? []);
  const all = group === null ? [own] : (group.allGatherObject(own) as string[][]);
  const wanted = new Set(all.flat());
  const others = Object.entries(reader.manifest.tensors).flatMap(([key, { kind }]) =>
    kind === 'optimizer' || wanted.has(key) ? [] : [key],
  );
  if (others.length === 0) return;
  throw new PipelineError(
    'CHECKPOINT_STATE',
    `${where}: no stage wants ${others.slice(0, 5).join(', ')}${others.length > 5 ? ` and ${others.length - 5} more` : ''} of ${reader.path}; pass all stages, or { strict: false } to leave them`,
    { names: others },
  );
}

function sourceOf(reader: CheckpointReader): TensorSource {
  const { tensors, groups, aliases } = reader.manifest;
  const slots = new Map<string, string[]>();
  for (const [key, { kind }] of Object.entries(tensors)) {
    if (kind !== 'optimizer') continue;
    const cut = key.lastIndexOf('/');
    const name = key.slice(0, cut);
    slots.set(name, [...(slots.get(name) ?? []), key.slice(cut + 1)]);
  }
  const groupOf = new Map<string, (typeof groups)[number]>();
  for (const group of groups)
    for (const name of group.params) groupOf.set(`${group.optimizer} ${aliases[name] ?? name}`, group);
  return {
    keyOf: (names) => reader.keyOf(names),
    shapeOf: (key) => reader.stored(key).shape,
    slotsOf: (key) => slots.get(key) ?? [],
    dtypeOf: (key) => reader.stored(key).dtype,
    check: (parts) => {
      for (const { key, part } of parts) reader.want(key, part);
      reader.checkWanted();
    },
    copies: (key, part, target) => reader.copies(key, part, target),
    optionsOf: (names, optimizer) => groupOf.get(`${optimizer} ${reader.keyOf(names) ?? ''}`)?.options ?? null,
  };
}

interface StateQuery {
  readonly name: string;
  readonly stored: Manifest;
  readonly rank: number;
  readonly ranks: number;
}

function stateFor(where: string, { name, stored, rank, ranks }: StateQuery): Json | undefined {
  const state = stored.states[name];
  if (state === undefined) return undefined;
  const value = 'all' in state || stored.layout.ranks === ranks ? valueFor(state, rank) : undefined;
  if (value !== undefined || name === DEFAULT_GENERATOR) return name === DEFAULT_GENERATOR ? ofSameRanks() : value;
  throw new PipelineError(
    'CHECKPOINT_STATE',
    `${where}: '${name}' was different on the ${stored.layout.ranks} ranks that saved it, and there are ${ranks} now; a state that is the same on all ranks loads anywhere`,
    { name },
  );

  /** The default generator's state is only for the same number of ranks; otherwise it stays as it is. */
  function ofSameRanks(): Json | undefined {
    return stored.layout.ranks === ranks ? value : undefined;
  }
}

function valueFor(state: StoredState, rank: number): Json | undefined {
  if ('all' in state) return state.all;
  return state.ranks[String(rank)];
}
