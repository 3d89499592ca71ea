/**
 * @file Writes a checkpoint so that a crash at any moment leaves the old one or the new one, never a mixture. Every rank writes and
 * syncs its files; the first one then waits for the others, writes the manifest under another name, syncs and renames it, and only
 * then names the checkpoint in `latest` and removes old ones.
 */
import { dirname, join } from 'node:path';
import { fromTypedArray, scope } from '@pipewright/torch';
import { scanBytes } from '@pipewright/torch/internal';
import type { Json } from '../format/codec.ts';
import { INDEX, LATEST, MANIFEST } from '../format/file-names.ts';
import { latestText, namesIn } from '../format/folder.ts';
import {
  BLOCK,
  formatManifest,
  type Manifest,
  parseManifest,
  type StoredFile,
  type StoredGroup,
  type StoredState,
  type StoredTensor,
  VERSION,
} from '../format/manifest.ts';
import { type FileSystem, removeFolder, replaceFile, syncFolder, writeAll, writeSynced } from './file-system.ts';
import type { FileJob, WriteJob, WriteResult } from './write-job.ts';

/** What one rank has written. */
interface RankPart {
  readonly attempt: string;
  readonly finite: boolean;
  readonly files: Readonly<Record<string, StoredFile>>;
  readonly tensors: Readonly<Record<string, StoredTensor>>;
  readonly groups: readonly StoredGroup[];
  readonly states: Readonly<Record<string, Json>>;
}

/** The note of a rank that could not write its part. */
interface FailedPart {
  readonly attempt: string;
  readonly failed: string;
}

/** The file that tells the other ranks that the first one has given up. */
const GIVEN_UP = '.given-up';
/** Bytes per write. */
const STRETCH = 2 * BLOCK;

/** Writes this rank's part. The first rank then completes the checkpoint; the others wait until it is complete. */
export function writeCheckpoint(job: WriteJob, fs: FileSystem): WriteResult {
  const path = join(job.folder, job.name);
  const start = performance.now();
  let bytes = 0;
  let part: RankPart;
  try {
    const made = fs.makeFolder(path);
    if (job.rank === 0) syncFolder(fs, job.folder);
    if (made === job.folder) syncFolder(fs, dirname(job.folder));
    part = writeFiles(job, fs, path);
    bytes = Object.values(part.files).reduce((sum, file) => sum + file.bytes, 0);
    if (job.ranks > 1 && job.rank > 0) replaceFile(fs, join(path, partName(job.rank)), JSON.stringify(part));
  } catch (error) {
    tellFailure(job, fs, error);
    throw error;
  }
  const writeMs = performance.now() - start;
  const finite = job.rank === 0 ? complete(job, fs, part) : waitUntilComplete(job, fs, part);
  const totalMs = performance.now() - start;
  if (job.rank === 0) cleanUp(job, fs, finite);
  return { finite, bytes, writeMs, totalMs };
}

function partName(rank: number): string {
  return `.rank-${String(rank).padStart(5, '0')}.json`;
}

function writeFiles(job: WriteJob, fs: FileSystem, path: string): RankPart {
  const files: Record<string, StoredFile> = {};
  const tensors: Record<string, StoredTensor> = {};
  let finite = true;
  for (const file of job.files) {
    const written = writeTensors(fs, join(path, file.name), file);
    finite &&= written.finite;
    files[file.name] = written.stored;
    for (const [i, { key, kind, dtype, shape, box }] of file.tensors.entries())
      tensors[key] = {
        kind,
        dtype,
        shape,
        pieces: [{ file: file.name, ...(box ?? {}), hashes: written.hashes[i]! }],
      };
  }
  return { attempt: job.attempt, finite, files, tensors, groups: job.groups, states: job.states };
}

/** Writes a safetensors file, hashing as it goes. */
function writeTensors(
  fs: FileSystem,
  path: string,
  { header, chunks, tensors }: FileJob,
): { readonly stored: StoredFile; readonly hashes: string[][]; readonly finite: boolean } {
  const hashes = tensors.map((): string[] => []);
  let finite = true;
  let bytes = header.length;
  writeSynced(fs, path, (file) => {
    writeAll(fs, file, header);
    let at = 0; // the tensor that is being looked at, and how much of it is done
    let done = 0;
    for (const { memory, bytes: length } of chunks) {
      const view = new Uint8Array(memory, 0, length);
      scope(() => {
        const chunk = fromTypedArray(view, [length], { share: true });
        let [hashed, written] = [0, 0];
        while (hashed < length) {
          const item = tensors[at]!;
          const size = Math.min(BLOCK, item.bytes - done, length - hashed);
          if (size > 0) {
            const found = scanBytes(chunk, { offset: hashed, length: size, dtype: item.dtype as 'float32' });
            hashes[at]!.push(found.hash);
            finite &&= found.finite;
          }
          hashed += size;
          done += size;
          if (done === item.bytes) [at, done] = [at + 1, 0];
          if (hashed - written < STRETCH && hashed < length) continue;
          writeAll(fs, file, view.subarray(written, hashed));
          fs.startWriting?.(file, bytes + written, hashed - written); // so that the sync at the end has little to wait for
          written = hashed;
        }
      });
      bytes += length;
    }
  });
  return { stored: { bytes, head: header.length, hash: hashText(header) }, hashes, finite };
}

function hashText(text: string | Uint8Array): string {
  const bytes = typeof text === 'string' ? new TextEncoder().encode(text) : text;
  return scope(() => scanBytes(fromTypedArray(bytes.length === 0 ? new Uint8Array(0) : bytes)).hash);
}

/** The first rank: when all have written, the manifest and `latest`. */
function complete(job: WriteJob, fs: FileSystem, own: RankPart): boolean {
  const path = join(job.folder, job.name);
  try {
    const parts = [own, ...waitForParts(job, fs)];
    const manifest = addTexts(merge(job, parts), job, fs);
    syncFolder(fs, path);
    replaceFile(fs, join(path, MANIFEST), formatManifest(manifest));
    if (manifest.finite || !fs.existsSync(join(job.folder, LATEST)))
      replaceFile(fs, join(job.folder, LATEST), latestText(job.name));
    for (let rank = 1; rank < job.ranks; rank++) fs.unlinkSync(join(path, partName(rank)));
    return manifest.finite;
  } catch (error) {
    if (!fs.existsSync(join(path, MANIFEST))) giveUp(job, fs, error);
    throw error;
  }
}

/** The first rank removes what it wrote. Others that still write find its note, and the next save removes the rest. */
function giveUp(job: WriteJob, fs: FileSystem, error: unknown): void {
  const path = join(job.folder, job.name);
  for (const { name } of job.files) tryTo(() => fs.unlinkSync(join(path, name)));
  if (job.ranks === 1) tryTo(() => removeFolder(fs, path));
  else tryTo(() => replaceFile(fs, join(path, GIVEN_UP), messageOf(error)));
}

function waitForParts(job: WriteJob, fs: FileSystem): RankPart[] {
  const path = join(job.folder, job.name);
  const found = new Map<number, RankPart>();
  const deadline = performance.now() + job.timeoutMs;
  for (let pause = 1; found.size < job.ranks - 1; pause = Math.min(100, pause * 1.5)) {
    for (let rank = 1; rank < job.ranks; rank++) {
      if (found.has(rank) || !fs.existsSync(join(path, partName(rank)))) continue;
      const part = JSON.parse(fs.readFileSync(join(path, partName(rank)), 'utf8')) as RankPart | FailedPart;
      if (part.attempt !== job.attempt) continue;
      if ('failed' in part) throw new Error(`rank ${rank} could not write its files: ${part.failed}`);
      found.set(rank, part);
    }
    if (found.size === job.ranks - 1) break;
    checkGivenUp(job);
    if (performance.now() > deadline) {
      const missing = Array.from({ length: job.ranks - 1 }, (_, i) => i + 1).filter((rank) => !found.has(rank));
      throw new Error(`rank ${missing.join(', ')} did not write its files within ${job.timeoutMs} ms`);
    }
    sleep(pause);
  }
  return Array.from({ length: job.ranks - 1 }, (_, i) => found.get(i + 1)!);
}

/** The other ranks: wait until the first one has completed the checkpoint. */
function waitUntilComplete(job: WriteJob, fs: FileSystem, own: RankPart): boolean {
  const path = join(job.folder, job.name);
  const deadline = performance.now() + job.timeoutMs;
  for (let pause = 1; ; pause = Math.min(100, pause * 1.5)) {
    if (fs.existsSync(join(path, MANIFEST))) return own.finite;
    if (fs.existsSync(join(path, GIVEN_UP)))
      throw new Error(`the first rank gave it up: ${fs.readFileSync(join(path, GIVEN_UP), 'utf8')}`);
    if (!fs.existsSync(path)) throw new Error('its folder was removed meanwhile');
    checkGivenUp(job);
    if (performance.now() > deadline) throw new Error(`the first rank did not complete it within ${job.timeoutMs} ms`);
    sleep(pause);
  }
}

function checkGivenUp({ isGivenUp }: WriteJob): void {
  if (isGivenUp?.() === true) throw new Error('a rank was lost meanwhile');
}

const idle = new Int32Array(new SharedArrayBuffer(4));

function sleep(ms: number): void {
  Atomics.wait(idle, 0, 0, ms);
}

function merge(job: WriteJob, parts: readonly RankPart[]): Manifest {
  const tensors: Record<string, StoredTensor> = {};
  for (const part of parts)
    for (const [key, tensor] of Object.entries(part.tensors)) {
      const known = tensors[key];
      tensors[key] = known === undefined ? tensor : { ...known, pieces: [...known.pieces, ...tensor.pieces] };
    }
  const groups = new Map<string, StoredGroup>();
  for (const part of parts)
    for (const group of part.groups) {
      const key = JSON.stringify([group.optimizer, group.group, group.options]);
      const known = groups.get(key);
      const params = [...new Set([...(known?.params ?? []), ...group.params])];
      groups.set(key, { ...group, params });
    }
  return {
    format: 'pipewright checkpoint',
    version: VERSION,
    step: job.step,
    finite: parts.every(({ finite }) => finite),
    layout: job.layout,
    schedule: job.schedule,
    files: Object.assign({}, ...parts.map(({ files }) => files)) as Record<string, StoredFile>,
    tensors: inOrder(tensors),
    aliases: inOrder(job.aliases),
    groups: [...groups.values()],
    states: job.merged ?? mergeStates(parts),
  };
}

function inOrder<T>(record: Readonly<Record<string, T>>): Record<string, T> {
  return Object.fromEntries(Object.entries(record).sort(([a], [b]) => (a < b ? -1 : 1)));
}

/** States that are the same everywhere are stored once. */
function mergeStates(parts: readonly RankPart[]): Record<string, StoredState> {
  const merged: Record<string, StoredState> = {};
  for (const name of new Set(parts.flatMap(({ states }) => Object.keys(states)))) {
    const held = parts.flatMap(({ states }, rank) => (name in states ? [[rank, states[name] as Json] as const] : []));
    const isSame = new Set(held.map(([, value]) => JSON.stringify(value))).size === 1;
    merged[name] = isSame
      ? { all: held[0]![1] }
      : { ranks: Object.fromEntries(held.map(([rank, value]) => [String(rank), value])) };
  }
  return merged;
}

/** Writes the user's files and the index of the weights; there is no index if a weight is divided among several files. */
function addTexts(manifest: Manifest, job: WriteJob, fs: FileSystem): Manifest {
  const texts: Record<string, string> = { ...job.texts };
  const weights = Object.entries(manifest.tensors).filter(([, { kind }]) => kind !== 'optimizer');
  if (job.isWhole && weights.length > 0) texts[INDEX] = indexText(weights);
  const files: Record<string, StoredFile> = { ...manifest.files };
  for (const [name, text] of Object.entries(texts)) {
    const bytes = new TextEncoder().encode(text);
    writeSynced(fs, join(job.folder, job.name, name), (file) => writeAll(fs, file, bytes));
    files[name] = { bytes: bytes.length, head: bytes.length, hash: hashText(bytes) };
  }
  return { ...manifest, files: inOrder(files) };
}

/** The index that Hugging Face tools read. */
function indexText(weights: readonly (readonly [string, StoredTensor])[]): string {
  const total = weights.reduce(
    (sum, [, { dtype, shape }]) => sum + shape.reduce((product, size) => product * size, sizeOf(dtype)),
    0,
  );
  const weight_map = Object.fromEntries(weights.map(([name, { pieces }]) => [name, pieces[0]?.file]));
  return `${JSON.stringify({ metadata: { total_size: total }, weight_map }, null, 2)}\n`;
}

function sizeOf(dtype: string): number {
  const bits = /(\d+)/.exec(dtype)?.[1];
  return dtype === 'bool' ? 1 : Number(bits ?? 8) / 8;
}

/** Removes old and incomplete checkpoints. Of those with numbers that are not finite, only the newest is kept, and it does not count. */
function cleanUp(job: WriteJob, fs: FileSystem, finite: boolean): void {
  const named = fs.readFileSync(join(job.folder, LATEST), 'utf8').split(' ')[0];
  const others = namesIn(fs.readdirSync(job.folder)).filter((name) => name !== job.name && name !== named);
  let healthy = finite ? 1 : 0;
  let sick = finite ? 0 : 1;
  for (const name of others.reverse()) {
    const path = join(job.folder, name);
    const known = healthOf(fs, join(path, MANIFEST), job.step);
    if (known === 'healthy' && (job.keep === null || healthy++ < job.keep)) continue;
    if (known === 'sick' && (job.keep === null || sick++ < 1)) continue;
    if (known === 'newer') continue;
    removeFolder(fs, path, [MANIFEST]);
  }
}

function healthOf(fs: FileSystem, path: string, step: number): 'healthy' | 'sick' | 'newer' | 'incomplete' {
  if (!fs.existsSync(path)) return 'incomplete';
  try {
    const manifest = parseManifest(fs.readFileSync(path, 'utf8'), path);
    if (manifest.step > step) return 'newer';
    return manifest.finite ? 'healthy' : 'sick';
  } catch {
    return 'newer'; // not ours to remove
  }
}

/** Removes this rank's files and leaves a note for the first rank that its part will not come. */
function tellFailure(job: WriteJob, fs: FileSystem, error: unknown): void {
  const path = join(job.folder, job.name);
  if (job.rank === 0) {
    giveUp(job, fs, error);
    return;
  }
  for (const { name } of job.files) tryTo(() => fs.unlinkSync(join(path, name)));
  const part: FailedPart = { attempt: job.attempt, failed: messageOf(error) };
  tryTo(() => replaceFile(fs, join(path, partName(job.rank)), JSON.stringify(part)));
}

function messageOf(error: unknown): string {
  return error instanceof Error ? error.message : String(error);
}

function tryTo(body: () => void): void {
  try {
    body();
  } catch {
    // The first error is the one to report.
  }
}
