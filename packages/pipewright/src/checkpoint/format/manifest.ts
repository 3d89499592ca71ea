/** @file The manifest: what a checkpoint consists of. A folder without a sound one is no checkpoint. */
import { createHash } from 'node:crypto';
import { show } from '../../base/checks.ts';
import { PipelineError } from '../../base/errors.ts';
import { isPlainObject } from '../../base/tree.ts';
import type { Json } from './codec.ts';
import { isFileName } from './file-names.ts';

/** Version of the format; 2 has another hash of blocks than 1. */
export const VERSION = 2;
/** Tensors are hashed in blocks of this many bytes, so that a part can be checked without the rest. */
export const BLOCK: number = 4 * 2 ** 20;

/** A box of a tensor, stored in a file under the tensor's key. */
export interface StoredPiece {
  readonly file: string;
  /** Where the box begins; absent where it is the whole tensor. */
  readonly offset?: readonly number[];
  readonly shape?: readonly number[];
  /** Of each block. */
  readonly hashes: readonly string[];
}

/** A stored tensor. */
export interface StoredTensor {
  readonly kind: 'parameter' | 'buffer' | 'optimizer';
  readonly dtype: string;
  /** Of the whole. */
  readonly shape: readonly number[];
  readonly pieces: readonly StoredPiece[];
}

/** A file of a checkpoint. */
export interface StoredFile {
  readonly bytes: number;
  /** Of safetensors files the length of what is before the data, whose blocks are hashed with the tensors; else all. */
  readonly head: number;
  /** Of the first `head` bytes. */
  readonly hash: string;
}

/** A small state: the same on all ranks, or one for each that has it. */
export type StoredState = { readonly all: Json } | { readonly ranks: Readonly<Record<string, Json>> };

/** Options of parameters, by their names. */
export interface StoredGroup {
  readonly optimizer: number;
  readonly group: number;
  readonly options: Json;
  readonly params: readonly string[];
}

/** The layout that a checkpoint was saved at. */
export interface SavedLayout {
  readonly ranks: number;
  readonly stages: number;
  /** The stages of every rank. */
  readonly stagesOfRank: readonly (readonly number[])[];
}

/** What a checkpoint consists of. */
export interface Manifest {
  readonly format: 'pipewright checkpoint';
  readonly version: number;
  readonly step: number;
  /** Whether all numbers in it are finite. */
  readonly finite: boolean;
  readonly layout: SavedLayout;
  readonly schedule: string | null;
  readonly files: Readonly<Record<string, StoredFile>>;
  readonly tensors: Readonly<Record<string, StoredTensor>>;
  /** Other names of stored tensors. */
  readonly aliases: Readonly<Record<string, string>>;
  readonly groups: readonly StoredGroup[];
  readonly states: Readonly<Record<string, StoredState>>;
}

/** The manifest as the text of its file; the last entry is a hash of the rest. */
export function formatManifest(manifest: Manifest): string {
  const text = JSON.stringify(manifest, null, 1);
  return `${text.slice(0, -2)},\n "hash": "${hashOf(text)}"\n}\n`;
}

/** Reads the text of a manifest; `path` is for errors. */
export function parseManifest(text: string, path: string): Manifest {
  const refuse = (why: string): PipelineError =>
    new PipelineError(
      'BAD_CHECKPOINT',
      `${path}: not a sound manifest: ${why}; load another checkpoint of the folder (pipewright checkpoint show)`,
      { path },
    );
  let json: unknown;
  try {
    json = JSON.parse(text);
  } catch (error) {
    throw refuse(`it is not JSON (${error instanceof Error ? error.message : String(error)})`);
  }
  if (!isPlainObject(json)) throw refuse('it is not a JSON object');
  const { hash, ...rest } = json as Record<string, unknown>;
  if (rest['format'] !== 'pipewright checkpoint') throw refuse('its format is not that of a checkpoint');
  if (rest['version'] !== VERSION)
    throw refuse(
      `its version is ${show(rest['version'])}, this program reads ${VERSION}; use a program of that version`,
    );
  const body = JSON.stringify(rest, null, 1);
  if (typeof hash !== 'string' || hashOf(body) !== hash || formatManifest(rest as unknown as Manifest) !== text)
    throw refuse('its hash does not fit: the file was changed or damaged');
  checkManifest(rest, refuse);
  return rest as unknown as Manifest;
}

function hashOf(text: string): string {
  return createHash('sha256').update(text).digest('hex');
}

type Refuse = (why: string) => PipelineError;

const isCount = (value: unknown): value is number => Number.isSafeInteger(value) && (value as number) >= 0;
const isHash = (value: unknown): boolean => typeof value === 'string' && /^[0-9a-f]{16}$/.test(value);
const isShape = (value: unknown): value is number[] =>
  Array.isArray(value) &&
  value.length <= 64 &&
  value.every(isCount) &&
  Number.isSafeInteger(value.reduce((product: number, size) => product * Math.max(1, size as number), 16));

/** Checks the type of every field, so that no later code has to. */
function checkManifest(json: Record<string, unknown>, refuse: Refuse): void {
  const need = (isRight: boolean, what: string): void => {
    if (!isRight) throw refuse(`${what} is not what it should be`);
  };
  const { step, finite, layout, schedule, files, tensors, aliases, groups, states } = json;
  need(isCount(step), 'step');
  need(typeof finite === 'boolean', 'finite');
  need(schedule === null || typeof schedule === 'string', 'schedule');
  const { ranks, stages, stagesOfRank } = (isPlainObject(layout) ? layout : {}) as Partial<SavedLayout>;
  need(isCount(ranks) && isCount(stages), 'layout');
  need(
    Array.isArray(stagesOfRank) &&
      stagesOfRank.length === ranks &&
      stagesOfRank.every((list) => Array.isArray(list) && list.every(isCount)),
    'layout.stagesOfRank',
  );
  for (const [what, part] of Object.entries({ files, tensors, aliases, states })) need(isPlainObject(part), what);
  for (const [name, file] of Object.entries(files as Record<string, Partial<StoredFile>>))
    need(
      isFileName(name) &&
        isPlainObject(file) &&
        isCount(file.bytes) &&
        isCount(file.head) &&
        file.head <= file.bytes &&
        isHash(file.hash),
      `file '${name.slice(0, 100)}'`,
    );
  for (const [name, tensor] of Object.entries(tensors as Record<string, unknown>)) {
    const why = tensorProblem(tensor, files as Record<string, unknown>);
    if (why !== null) throw refuse(`tensor '${name.slice(0, 100)}': ${why}`);
  }
  for (const [name, target] of Object.entries(aliases as Record<string, unknown>))
    need(typeof target === 'string' && Object.hasOwn(tensors as object, target), `alias '${name.slice(0, 100)}'`);
  need(
    Array.isArray(groups) &&
      groups.every(
        (group: unknown) =>
          isPlainObject(group) &&
          isCount((group as Partial<StoredGroup>).optimizer) &&
          isCount((group as Partial<StoredGroup>).group) &&
          isPlainObject((group as Partial<StoredGroup>).options) &&
          Array.isArray((group as Partial<StoredGroup>).params) &&
          ((group as Partial<StoredGroup>).params as unknown[]).every((name) => typeof name === 'string'),
      ),
    'groups',
  );
  for (const [name, state] of Object.entries(states as Record<string, unknown>))
    need(
      isPlainObject(state) && ('all' in state || isPlainObject((state as { ranks?: unknown }).ranks)),
      `state '${name.slice(0, 100)}'`,
    );
}

type Box = readonly [begin: readonly number[], size: readonly number[]];

function meet([a, sizeA]: Box, [b, sizeB]: Box): boolean {
  return a.every((at, dim) => {
    const [other, size] = [b[dim]!, sizeB[dim]!];
    return at < other + size && other < at + sizeA[dim]!;
  });
}

function tensorProblem(tensor: unknown, files: Readonly<Record<string, unknown>>): string | null {
  if (!isPlainObject(tensor)) return 'it is not an object';
  const { kind, dtype, shape, pieces } = tensor as Record<string, unknown>;
  if (kind !== 'parameter' && kind !== 'buffer' && kind !== 'optimizer') return 'its kind is unknown';
  if (typeof dtype !== 'string') return 'it has no type';
  if (!isShape(shape)) return 'its shape is no list of sizes';
  if (!Array.isArray(pieces)) return 'it has no pieces';
  let covered = 0;
  const boxes: Box[] = [];
  for (const piece of pieces as Partial<StoredPiece>[]) {
    if (!isPlainObject(piece) || typeof piece.file !== 'string' || !Object.hasOwn(files, piece.file))
      return 'a piece names no file of the checkpoint';
    if (!Array.isArray(piece.hashes) || !piece.hashes.every(isHash)) return 'a piece has no hashes';
    if ((piece.offset === undefined) !== (piece.shape === undefined)) return 'a piece has a shape or a place, not both';
    const box = piece.shape ?? shape;
    const begin = piece.offset ?? shape.map(() => 0);
    if (!isShape(box) || !isShape(begin) || box.length !== shape.length || begin.length !== shape.length)
      return 'a piece has no sound box';
    if (box.some((size, dim) => size + begin[dim]! > shape[dim]!)) return 'a piece reaches beyond the tensor';
    covered += box.reduce((product, size) => product * size, 1);
    boxes.push([begin, box]);
  }
  if (boxes.some((one, i) => boxes.slice(0, i).some((other) => meet(one, other)))) return 'two of its pieces overlap';
  if (covered !== shape.reduce((product, size) => product * size, 1))
    return `its pieces have ${covered} elements, the tensor [${shape.join(', ')}]`;
  return null;
}
