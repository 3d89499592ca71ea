/** @file Reads a checkpoint: of each file only the bytes that are needed, checked before anything is changed. */
import { statSync } from 'node:fs';
import { join } from 'node:path';
import {
  type DType,
  dtypes,
  empty,
  MappedFile,
  readSafetensorsHeader,
  type SafetensorsHeader,
  type Tensor,
  unscoped,
} from '@pipewright/torch';
import { hashRanges, scanBytes, viewBytes } from '@pipewright/torch/internal';
import { PipelineError } from '../../base/errors.ts';
import type { FoundCheckpoint } from '../format/folder.ts';
import { BLOCK, type Manifest, type StoredFile, type StoredPiece, type StoredTensor } from '../format/manifest.ts';
import { boxOf, type Common, commonOf, elementsOf, type Part, rangeOf } from '../format/piece.ts';

interface OpenFile {
  readonly mapped: MappedFile;
  readonly bytes: Tensor;
  readonly header: SafetensorsHeader;
  /** Blocks that are to be checked, by `key/number`. */
  readonly wanted: Map<string, WantedBlock>;
  /** Blocks whose hash was found correct. */
  readonly checked: Set<string>;
}

/** A block of a tensor, and its hash. */
interface WantedBlock {
  readonly key: string;
  readonly offset: number;
  readonly length: number;
  readonly hash: string;
}

/** A checkpoint that is being read. */
export class CheckpointReader {
  readonly path: string;
  readonly manifest: Manifest;
  /** Bytes of the tensors that were requested. */
  bytes = 0;
  private readonly open = new Map<string, OpenFile>();

  constructor({ path, manifest }: FoundCheckpoint) {
    this.path = path;
    this.manifest = manifest;
  }

  /** The key that a tensor is stored under; undefined where it is not stored. */
  keyOf(names: readonly string[]): string | undefined {
    const { tensors, aliases } = this.manifest;
    for (const name of names) {
      if (Object.hasOwn(tensors, name)) return name;
      if (Object.hasOwn(aliases, name)) return aliases[name];
    }
    return undefined;
  }

  /** The manifest's entry of a stored tensor. */
  stored(key: string): StoredTensor {
    return this.manifest.tensors[key]!;
  }

  /** Checks files without tensors: the index and the user's files. */
  checkTexts(): void {
    for (const name of Object.keys(this.manifest.files)) if (!name.endsWith('.safetensors')) this.checkText(name);
  }

  /** Checks a file that holds no tensors. */
  checkText(name: string): void {
    const file = this.manifest.files[name]!;
    const path = join(this.path, name);
    this.checkSize(path, file);
    using mapped = this.map(path);
    this.checkHash(path, scanBytes(mapped.bytes).hash, file.hash);
  }

  /** Checks the bytes of the part of a tensor that is wanted. */
  check(key: string, part: Part): void {
    this.want(key, part);
    this.checkWanted();
  }

  /** Compares all blocks that are wanted with their hashes. */
  checkWanted(): void {
    for (const [name, { bytes, wanted, checked }] of this.open) {
      if (wanted.size === 0) continue;
      const blocks = [...wanted.values()];
      const names = [...wanted.keys()];
      wanted.clear();
      hashRanges(bytes, blocks).forEach((hash, i) => {
        const block = blocks[i]!;
        this.checkHash(join(this.path, name), hash, block.hash, block.key);
        checked.add(names[i]!);
      });
    }
  }

  /** Notes which blocks the part of a tensor lies in; what is not as the manifest says is an error. */
  want(key: string, part: Part): void {
    const tensor = this.stored(key);
    const type = this.typeOf(key, tensor);
    for (const { piece, common } of overlaps(tensor, part)) {
      const { header, wanted, checked } = this.file(piece.file);
      const entry = header.entries.get(key);
      const shape = piece.shape ?? tensor.shape;
      const path = join(this.path, piece.file);
      if (entry === undefined || entry.dtype !== type || entry.shape.join() !== shape.join())
        throw damaged(path, `it does not hold '${key}' as the manifest says`);
      if (piece.hashes.length !== Math.ceil(entry.bytes / BLOCK))
        throw damaged(join(this.path, 'manifest.json'), `'${key}' has ${piece.hashes.length} hashes`);
      const [first, end] = rangeOf(shape, common.inFirst, common.shape);
      const firstBlock = Math.floor((first * type.itemSize) / BLOCK);
      const lastBlock = Math.floor((end * type.itemSize - 1) / BLOCK);
      for (let block = firstBlock; block <= lastBlock; block++) {
        const name = `${key}/${block}`;
        if (checked.has(name)) continue;
        const offset = entry.offset + block * BLOCK;
        const length = Math.min(BLOCK, entry.offset + entry.bytes - offset);
        wanted.set(name, { key, offset, length, hash: piece.hashes[block]! });
      }
      this.bytes += elementsOf(common.shape) * type.itemSize;
    }
  }

  /** The part of a tensor that is wanted: over the file where it lies in one piece, else put together. */
  read(key: string, part: Part): Tensor {
    const tensor = this.stored(key);
    const found = overlaps(tensor, part);
    const [only] = found;
    if (only !== undefined && only.common.shape.join() === part.local.join()) return this.boxIn(key, only);
    const whole = empty([...part.local], { dtype: this.typeOf(key, tensor) });
    for (const each of found) boxOf(whole, each.common.inSecond, each.common.shape).copy_(this.boxIn(key, each));
    return whole;
  }

  /** What to copy from where, so that a tensor holds the part that is wanted. */
  copies(key: string, part: Part, target: Tensor): [to: Tensor, from: Tensor][] {
    return overlaps(this.stored(key), part).map((each) => [
      boxOf(target, each.common.inSecond, each.common.shape),
      this.boxIn(key, each),
    ]);
  }

  dispose(): void {
    for (const { mapped, bytes } of this.open.values()) {
      bytes.dispose();
      mapped.dispose();
    }
    this.open.clear();
  }

  [Symbol.dispose](): void {
    this.dispose();
  }

  private boxIn(key: string, { piece, common }: Overlap): Tensor {
    const { bytes, header } = this.file(piece.file);
    const { offset, dtype, shape } = header.entries.get(key)!;
    return boxOf(viewBytes(bytes, { offset, dtype, shape }), common.inFirst, common.shape);
  }

  private typeOf(key: string, tensor: StoredTensor): DType {
    const type = dtypes.get(tensor.dtype);
    if (type !== undefined) return type;
    throw damaged(join(this.path, 'manifest.json'), `'${key}' has the unknown type '${tensor.dtype}'`);
  }

  private file(name: string): OpenFile {
    const known = this.open.get(name);
    if (known !== undefined) return known;
    const path = join(this.path, name);
    const stored = this.manifest.files[name]!;
    this.checkSize(path, stored);
    const { mapped, bytes } = this.map(path);
    try {
      this.checkHash(path, scanBytes(bytes, { offset: 0, length: stored.head }).hash, stored.hash);
      const header = readSafetensorsHeader(path);
      const made = { mapped, bytes, header, wanted: new Map<string, WantedBlock>(), checked: new Set<string>() };
      this.open.set(name, made);
      return made;
    } catch (error) {
      bytes.dispose();
      mapped.dispose();
      throw error;
    }
  }

  private map(path: string): { mapped: MappedFile; bytes: Tensor; [Symbol.dispose](): void } {
    try {
      const mapped = MappedFile.open(path);
      const bytes = unscoped(() => mapped.tensor({ offset: 0, dtype: 'uint8', shape: [mapped.size] }));
      return {
        mapped,
        bytes,
        [Symbol.dispose]: () => {
          bytes.dispose();
          mapped.dispose();
        },
      };
    } catch (error) {
      throw damaged(path, error instanceof Error ? error.message : String(error));
    }
  }

  private checkSize(path: string, { bytes }: StoredFile): void {
    const size = statSync(path, { throwIfNoEntry: false })?.size;
    if (size === undefined) throw damaged(path, 'the file is missing');
    if (size !== bytes) throw damaged(path, `it has ${size} bytes, it was written with ${bytes}`);
  }

  private checkHash(path: string, found: string, wanted: string, key?: string): void {
    if (found === wanted) return;
    const place = key === undefined ? '' : ` in '${key}'`;
    throw damaged(path, `its bytes${place} are not those that were written`);
  }
}

interface Overlap {
  readonly piece: StoredPiece;
  readonly common: Common;
}

/** The stored pieces that intersect a part. */
function overlaps(tensor: StoredTensor, part: Part): Overlap[] {
  return tensor.pieces.flatMap((piece) => {
    const box = { shape: tensor.shape, local: piece.shape ?? tensor.shape, offset: piece.offset ?? null };
    if (elementsOf(box.local) === 0) return [];
    const common = commonOf(box, part);
    return common === null ? [] : [{ piece, common }];
  });
}

/** The error for a file that differs from what was written. */
function damaged(path: string, why: string): PipelineError {
  return new PipelineError(
    'BAD_CHECKPOINT',
    `${path}: ${why}; load another checkpoint of the folder (pipewright checkpoint show), or verify this one (pipewright checkpoint verify)`,
    { path },
  );
}
