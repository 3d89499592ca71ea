/** @file Saves a run: copies its state in memory while training waits, and writes it in a thread while training continues. */
import { randomUUID } from 'node:crypto';
import { type DType, distributed, noGrad, scope } from '@pipewright/torch';
import { layoutSafetensors } from '@pipewright/torch/internal';
import { checkCount, checkRequired, show } from '../../base/checks.ts';
import { PipelineError } from '../../base/errors.ts';
import { isPlainObject } from '../../base/tree.ts';
import { encode } from '../format/codec.ts';
import { INDEX, isFileName, MANIFEST } from '../format/file-names.ts';
import { checkpointName, freeName } from '../format/folder.ts';
import type { SavedLayout } from '../format/manifest.ts';
import { elementsOf } from '../format/piece.ts';
import type { StateTensor } from '../state/state-tensors.ts';
import { type CollectedState, collect, type TrainingState, trainingStateNames } from '../state/training-state.ts';
import {
  digestOf,
  type FileKind,
  fileKindOf,
  holdingsOf,
  planWrites,
  type RankHoldings,
  type WritePlan,
} from './plan.ts';
import type { SnapshotMemory } from './snapshot-memory.ts';
import type { FileJob, WriteJob, WriteResult } from './write-job.ts';
import { ownWriter, saveError, type Writer } from './writer.ts';

/** What is saved, and how. */
export interface SaveOptions extends TrainingState {
  /** The number of the step that has just ended. */
  readonly step: number;
  /** The schedule or its name, for the manifest. */
  readonly schedule?: string | { readonly name: string } | undefined;
  /** How many healthy checkpoints stay in the folder; default 3. `null` keeps all. */
  readonly keep?: number | null | undefined;
  /** Small text files to lie beside the weights, such as 'config.json'; values that are no texts become JSON. */
  readonly files?: Readonly<Record<string, unknown>> | undefined;
  /** All ranks of the run; default: the default group. */
  readonly group?: distributed.ProcessGroup | undefined;
  /** How long ranks wait for each other's files; default 10 minutes. */
  readonly timeoutMs?: number | undefined;
}

const optionNames = [...trainingStateNames, 'step', 'schedule', 'keep', 'files', 'group', 'timeoutMs'];

/**
 * Saves a run: after the optimizer's step, on all ranks. It returns as soon as the state is copied; a thread of its own writes the
 * files while training goes on. Only one save is under way: the next one waits for it.
 *
 * @example saveCheckpoint('runs/gpt', { step, stages: runtime.stages, optimizer, loader })
 */
export function saveCheckpoint(folder: string, options: SaveOptions): CheckpointSave {
  const writer = ownWriter();
  writer.wait(); // of the save before
  const start = performance.now();
  const job = scope(() => prepareSave(folder, options, writer.memory));
  const bytes = job.files.reduce((sum, file) => sum + file.tensors.reduce((all, tensor) => all + tensor.bytes, 0), 0);
  const save = new CheckpointSave(writer, { path: `${folder}/${job.name}`, step: job.step, bytes });
  writer.submit(job, (result) => save.end(result));
  save.stallMs = performance.now() - start;
  return save;
}

/** What this rank has to write: agreed with the others, and copied. */
export function prepareSave(folder: string, options: SaveOptions, memory: SnapshotMemory): WriteJob {
  const where = 'saveCheckpoint';
  checkRequired(where, options, optionNames);
  if (typeof folder !== 'string' || folder === '')
    throw new PipelineError('BAD_ARGUMENT', `${where}: the folder is ${show(folder)}; give its path`);
  const { keep = 3, timeoutMs = 600_000 } = options;
  const step = checkCount(where, 'step', options.step, 0);
  if (keep !== null) checkCount(where, 'keep', keep);
  checkCount(where, 'timeoutMs', timeoutMs);
  const texts = textsOf(where, options.files);
  const schedule = scheduleName(where, options.schedule);
  const collected = collect(where, options);
  const agreed = agree(collected, { folder, step, group: options.group });
  const { rank, ranks, plan, layout, name, attempt } = agreed;
  const files = noGrad(() => scope(() => copyTensors(memory, collected.tensors, agreed)));
  const groups = collected.groups.map((group) => ({
    ...group,
    options: encode(group.options, 'optimizer options'),
  }));
  const { aliases, isWhole } = plan;
  const { states } = collected;
  return {
    ...{ folder, name, attempt, rank, ranks, step, files, groups, states },
    ...{ layout, schedule, aliases, isWhole, texts, keep, timeoutMs },
  };
}

/** A save under way. */
export class CheckpointSave {
  /** The folder that it will be in. */
  readonly path: string;
  readonly step: number;
  /** Bytes that this rank writes. */
  readonly bytes: number;
  /** How long training waited for the copy, in milliseconds. */
  stallMs = 0;
  private result: WriteResult | null = null;
  private readonly writer: Writer;
  private isTold = false;

  constructor(writer: Writer, about: { readonly path: string; readonly step: number; readonly bytes: number }) {
    this.writer = writer;
    this.path = about.path;
    this.step = about.step;
    this.bytes = about.bytes;
  }

  /** Whether it has ended, well or not. */
  get isDone(): boolean {
    if (this.result === null) this.writer.poll();
    return this.result !== null;
  }

  /** Why it failed; null while it is under way and where it is complete. */
  get error(): PipelineError | null {
    if (!this.isDone) return null;
    this.isTold = true;
    const { error } = this.result!;
    return error === undefined ? null : saveError(error);
  }

  /** How long writing took on this rank, and how long until all was complete, in milliseconds; null while it is under way. */
  get times(): { readonly writeMs: number; readonly totalMs: number } | null {
    return this.isDone ? this.result! : null;
  }

  /** Waits until the checkpoint is complete on all ranks; throws where it could not be written. */
  wait(): this {
    while (this.result === null) this.writer.wait();
    const { error } = this;
    if (error !== null) throw error;
    return this;
  }

  /** The writer has ended the save. */
  end(result: WriteResult): void {
    this.result = result;
    const { error, finite } = result;
    setImmediate(() => {
      if (error !== undefined && !this.isTold) process.emitWarning(error.message, { code: error.code });
    });
    if (error === undefined && !finite)
      process.emitWarning(
        `saveCheckpoint: the state of step ${this.step} has numbers that are not finite; it is kept beside the healthy checkpoints, which stay, and 'latest' names the last of those`,
        { code: 'NOT_FINITE' },
      );
  }

  /** The save in one line. */
  toString(): string {
    const { times, error } = this;
    const end =
      times === null
        ? 'under way'
        : error === null
          ? `complete after ${times.totalMs.toFixed(0)} ms`
          : `failed: ${error.message}`;
    return `checkpoint ${this.path}: ${(this.bytes / 1e6).toFixed(1)} MB of this rank, training waited ${this.stallMs.toFixed(1)} ms, ${end}`;
  }
}

/** What all ranks have agreed on for a save. */
interface Agreed {
  readonly rank: number;
  readonly ranks: number;
  readonly plan: WritePlan;
  readonly layout: SavedLayout;
  readonly name: string;
  readonly attempt: string;
}

/** Plans by what ranks hold, which changes only when optimizers get their first state. */
interface Planned {
  readonly digests: string;
  readonly plan: WritePlan;
  readonly layout: SavedLayout;
}

const planned = new WeakMap<object, Planned>();
const alone = {};

function agree(
  { stages, tensors }: CollectedState,
  { folder, step, group: given }: { folder: string; step: number; group: distributed.ProcessGroup | undefined },
): Agreed {
  const world = given ?? (distributed.isInitialized() ? distributed.getDefaultGroup() : null);
  const group = world !== null && world.size > 1 ? world : null;
  const rank = group?.rank ?? 0;
  const holdings = holdingsOf(stages, tensors);
  const own = {
    digest: digestOf(holdings),
    name: rank === 0 ? freeName(folder, step) : checkpointName(step),
    attempt: rank === 0 ? randomUUID() : '',
    step,
  };
  const all = group === null ? [own] : (group.allGatherObject(own) as unknown as (typeof own)[]);
  const [first] = all as [typeof own];
  const other = all.findIndex((each) => each.step !== first.step);
  if (other >= 0)
    throw new PipelineError(
      'CHECKPOINT_STATE',
      `saveCheckpoint: rank ${other} saves step ${all[other]?.step}, rank 0 step ${first.step}; all ranks save after the same step`,
    );
  const digests = all.map(({ digest }) => digest).join();
  let found = planned.get(group ?? alone);
  if (found?.digests !== digests) {
    const ranks =
      group === null ? [holdings] : group.allGatherObject<RankHoldings>(holdings as unknown as distributed.Json);
    const layout = {
      ranks: ranks.length,
      stages: holdings.numStages,
      stagesOfRank: ranks.map((each) => each.stages),
    };
    found = { digests, plan: planWrites(ranks), layout };
    planned.set(group ?? alone, found);
  }
  const { plan, layout } = found;
  return { rank, ranks: all.length, plan, layout, name: first.name, attempt: first.attempt };
}

const fileKinds: readonly FileKind[] = ['model', 'model-parts', 'optimizer'];

/** Copies what this rank writes into the writer's memory, as it will lie in the files. */
function copyTensors(memory: SnapshotMemory, tensors: readonly StateTensor[], { plan, rank }: Agreed): FileJob[] {
  const mine = (plan.writes[rank] ?? []).map(({ at, key }) => ({ ...tensors[at]!, key }));
  return fileKinds.flatMap((kind) => {
    const list = mine.filter((each) => fileKindOf(each) === kind);
    if (list.length === 0) return [];
    const ranks = plan.writers[kind];
    const items = [...list].sort(
      (a, b) => b.tensor.dtype.itemSize - a.tensor.dtype.itemSize || (a.key < b.key ? -1 : 1),
    );
    const { header } = layoutSafetensors(
      items.map(({ key, tensor, part }) => ({ name: key, dtype: tensor.dtype, shape: part.local })),
      { format: 'pt' },
    );
    const copied = items.map(({ tensor, part }) => ({
      tensor,
      dtype: tensor.dtype as DType,
      bytes: tensor.dtype.itemSize * elementsOf(part.local),
    }));
    const pad = (value: number): string => String(value).padStart(5, '0');
    return [
      {
        name: `${kind}-${pad(ranks.indexOf(rank) + 1)}-of-${pad(ranks.length)}.safetensors`,
        header,
        chunks: memory.copy(copied),
        tensors: items.map(({ key, kind: what, tensor, part: { shape, local, offset } }, i) => ({
          key,
          kind: what,
          dtype: tensor.dtype.name,
          bytes: copied[i]?.bytes ?? 0,
          shape,
          box: offset === null ? null : { offset, shape: local },
        })),
      },
    ];
  });
}

function scheduleName(where: string, schedule: SaveOptions['schedule']): string | null {
  if (schedule === undefined) return null;
  const name: unknown = typeof schedule === 'object' && schedule !== null ? schedule.name : schedule;
  if (typeof name === 'string') return name;
  throw new PipelineError('BAD_OPTION', `${where}: schedule is ${show(schedule)}; give its name, or runtime.schedule`);
}

function textsOf(where: string, files: unknown): Record<string, string> {
  if (files === undefined) return {};
  if (!isPlainObject(files))
    throw new PipelineError(
      'BAD_OPTION',
      `${where}: files is ${show(files)}; give texts by name: { 'config.json': … }`,
    );
  return Object.fromEntries(
    Object.entries(files).map(([name, content]) => {
      const isReserved = name === MANIFEST || name.startsWith('.') || name.endsWith('.safetensors');
      if (!isFileName(name) || isReserved || name === INDEX)
        throw new PipelineError(
          'BAD_OPTION',
          `${where}: files cannot have ${show(name)}; give a plain name of your own`,
        );
      return [name, typeof content === 'string' ? content : `${JSON.stringify(content, null, 2)}\n`];
    }),
  );
}
