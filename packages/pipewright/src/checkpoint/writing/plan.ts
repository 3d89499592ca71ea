/** @file Who writes what: replicas share the work, copies of tied parameters are written once, and one name means one tensor. */
import { createHash } from 'node:crypto';
import { PipelineError } from '../../base/errors.ts';
import { elementsOf, type Part } from '../format/piece.ts';
import { clash, type StateTensor } from '../state/state-tensors.ts';

/** The description of a tensor that a rank holds. Plain JSON. */
export interface HeldTensor {
  readonly key: string;
  readonly kind: StateTensor['kind'];
  readonly dtype: string;
  readonly itemSize: number;
  readonly part: Part;
  readonly stage: number;
  readonly tie: string | null;
  readonly aliases: readonly string[];
}

/** What a rank holds. Plain JSON. */
export interface RankHoldings {
  readonly stages: readonly number[];
  readonly numStages: number;
  readonly tensors: readonly HeldTensor[];
}

/** Kinds of files in a checkpoint: whole weights, parts of weights, the state of optimizers. */
export type FileKind = 'model' | 'model-parts' | 'optimizer';

/** The kind of file that a tensor lies in. */
export function fileKindOf({ kind, part }: Pick<HeldTensor, 'kind' | 'part'>): FileKind {
  if (kind === 'optimizer') return 'optimizer';
  return part.offset === null ? 'model' : 'model-parts';
}

/** A tensor to be written. */
export interface PlannedWrite {
  /** Its position in the rank's list. */
  readonly at: number;
  /** The key that it is stored under. */
  readonly key: string;
}

/** Which rank writes what; the same on all ranks. */
export interface WritePlan {
  /** What each rank writes. */
  readonly writes: readonly (readonly PlannedWrite[])[];
  /** The ranks that write a file of each kind. */
  readonly writers: Readonly<Record<FileKind, readonly number[]>>;
  /** Other names of stored tensors. */
  readonly aliases: Readonly<Record<string, string>>;
  /** Whether all weights are written whole. */
  readonly isWhole: boolean;
}

/** Describes what this rank holds. */
export function holdingsOf(
  stages: readonly { readonly stageIndex: number; readonly numStages: number }[],
  tensors: readonly StateTensor[],
): RankHoldings {
  return {
    stages: stages.map(({ stageIndex }) => stageIndex),
    numStages: stages[0]?.numStages ?? 0,
    tensors: tensors.map(({ key, kind, tensor, part, stage, tie, aliases }) => ({
      key,
      kind,
      dtype: tensor.dtype.name,
      itemSize: tensor.dtype.itemSize,
      part,
      stage,
      tie,
      aliases,
    })),
  };
}

/** A hash of what a rank holds. */
export function digestOf(holdings: RankHoldings): string {
  return createHash('sha256').update(JSON.stringify(holdings)).digest('base64');
}

interface Holder {
  readonly rank: number;
  readonly at: number;
  readonly held: HeldTensor;
}

/** Divides the work. */
export function planWrites(ranks: readonly RankHoldings[]): WritePlan {
  checkStages(ranks);
  const holders = ranks.flatMap(({ tensors }, rank) => tensors.map((held, at): Holder => ({ rank, at, held })));
  const canonical = canonicalNames(holders);
  const aliases: Record<string, string> = {};
  const boxes = new Map<string, Holder[]>();
  const shapes = new Map<string, HeldTensor>();
  for (const holder of holders) {
    const { held } = holder;
    const key = canonical(held);
    for (const name of [held.key, ...held.aliases]) if (name !== key) aliases[name] = key;
    const first = shapes.get(key);
    if (first === undefined) shapes.set(key, held);
    else checkSame(key, first, held);
    if (elementsOf(held.part.local) === 0 && held.part.offset !== null) continue; // an empty shard
    const box = `${key}\n${held.part.offset?.join() ?? ''}\n${held.part.local.join()}`;
    const others = boxes.get(box);
    if (others === undefined) boxes.set(box, [holder]);
    else others.push(holder);
  }
  for (const name of Object.keys(aliases)) if (shapes.has(name)) delete aliases[name];
  const writes: PlannedWrite[][] = ranks.map(() => []);
  const loads = ranks.map(() => 0);
  const bytesOf = ([{ held }]: readonly [Holder]): number => held.itemSize * elementsOf(held.part.local);
  const inOrder = [...boxes].sort(
    ([a, first], [b, second]) => bytesOf(second as [Holder]) - bytesOf(first as [Holder]) || (a < b ? -1 : 1),
  );
  for (const [, list] of inOrder) {
    // Replicas have buffers of their own, which belong together (a mean and its variance): all are those of the first one.
    const isOwn = list[0]!.held.kind === 'buffer';
    const chosen = isOwn
      ? list[0]!
      : list.reduce((best, each) => (loads[each.rank]! < loads[best.rank]! ? each : best));
    loads[chosen.rank]! += bytesOf([chosen]);
    writes[chosen.rank]?.push({ at: chosen.at, key: canonical(chosen.held) });
  }
  for (const list of writes) list.sort((a, b) => a.at - b.at);
  const isWhole = holders.every(({ held }) => held.kind === 'optimizer' || held.part.offset === null);
  const writersOf = (kind: FileKind): number[] =>
    ranks.flatMap(({ tensors }, rank) =>
      writes[rank]?.some(({ at }) => fileKindOf(tensors[at]!) === kind) === true ? [rank] : [],
    );
  const writers = {
    model: writersOf('model'),
    'model-parts': writersOf('model-parts'),
    optimizer: writersOf('optimizer'),
  };
  return { writes, writers, aliases, isWhole };
}

/** Refuses a part of a model, which each rank would write in the place of the others where they do not know of each other. */
function checkStages(ranks: readonly RankHoldings[]): void {
  const held = new Set(ranks.flatMap(({ stages }) => stages));
  const count = ranks[0]?.numStages ?? 0;
  const missing = Array.from({ length: count }, (_, stage) => stage).filter((stage) => !held.has(stage));
  if (missing.length === 0) return;
  throw new PipelineError(
    'CHECKPOINT_STATE',
    `checkpoint: of the ${count} stages of the model no rank of the group has ${missing.join(', ')} (ranks: ${ranks.length}); all ranks save together, each with all its stages, before they leave their group; trainLoop leaves it at its end, so save in its last step`,
    { missing },
  );
}

/** The name that a tensor is stored under: where copies are tied, that of the first stage. */
function canonicalNames(holders: readonly Holder[]): (held: HeldTensor) => string {
  const owners = new Map<string, HeldTensor>();
  const keyOf = (held: HeldTensor): string => `${held.tie}\n${slotOf(held)}`;
  for (const { held } of holders) {
    if (held.tie === null) continue;
    const known = owners.get(keyOf(held));
    if (known === undefined || held.stage < known.stage) owners.set(keyOf(held), held);
  }
  return (held) => (held.tie === null ? held.key : owners.get(keyOf(held))!.key);
}

function slotOf({ kind, key }: HeldTensor): string {
  return kind === 'optimizer' ? key.slice(key.lastIndexOf('/')) : '';
}

function checkSame(name: string, first: HeldTensor, second: HeldTensor): void {
  if (first.stage !== second.stage && (first.tie === null || first.tie !== second.tie))
    throw clash(name, [first.stage, second.stage]);
  const text = ({ dtype, part }: HeldTensor): string => `${dtype}[${part.shape.join(', ')}]`;
  if (text(first) !== text(second))
    throw new PipelineError(
      'NAME_CLASH',
      `checkpoint: '${name}' is ${text(first)} on one rank and ${text(second)} on another; one name means one tensor`,
      { name },
    );
}
