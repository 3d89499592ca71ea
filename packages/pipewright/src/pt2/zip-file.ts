/**
 * @file A zip file with stored entries, as libtorch writes it: where each entry's bytes lie, and small entries read. Names
 * are keys and never paths on disk; nothing is unpacked.
 */
import { closeSync, fstatSync, openSync, readSync, statSync } from 'node:fs';
import { crc32 } from 'node:zlib';
import {
  findZipEnd,
  readZipEnd64,
  readZipHeader,
  readZipRecord,
  ZIP_END64_SIZE,
  ZIP_HEADER_SIZE,
  ZIP_TAIL,
  type ZipDirectory,
} from '@pipewright/torch/internal';
import { PipelineError } from '../base/errors.ts';
import { type Pt2Problem, pt2Error, shown } from './pt2-error.ts';

/** Where the bytes of an entry lie. */
export interface ZipEntry {
  readonly name: string;
  /** Of the first byte, from the file's beginning. */
  readonly offset: number;
  readonly size: number;
  readonly crc: number;
}

const mostEntries = 2_000_000;
const largestDirectory = 400_000_000;

/**
 * An open zip file. Close it after use.
 *
 * @example using zip = ZipFile.open('model.pt2'); zip.entries.keys()
 */
export class ZipFile {
  readonly path: string;
  readonly size: number;
  readonly entries: ReadonlyMap<string, ZipEntry>;
  private readonly file: number;

  private constructor(path: string, file: number) {
    this.path = path;
    this.file = file;
    this.size = fstatSync(file).size;
    this.entries = this.readDirectory();
  }

  /** Opens a file and reads its directory. */
  static open(path: string): ZipFile {
    let file: number;
    try {
      // Asked before opening: a pipe would wait for its writer.
      if (!statSync(path).isFile()) throw pt2Error('FILE', path, 'not a regular file');
      file = openSync(path, 'r');
    } catch (error) {
      if (error instanceof PipelineError) throw error;
      const { code } = error as NodeJS.ErrnoException;
      throw pt2Error('FILE', path, code === 'ENOENT' ? 'no such file or folder' : `cannot be opened (${code})`, error);
    }
    try {
      return new ZipFile(path, file);
    } catch (error) {
      closeSync(file);
      throw error;
    }
  }

  /** The bytes of an entry, checked against their sum. */
  read(entry: ZipEntry, limit: number): Uint8Array {
    if (entry.size > limit)
      throw this.error('TOO_LARGE', `entry ${shown(entry.name)} has ${entry.size} bytes; at most ${limit} are read`);
    const bytes = this.bytes(entry.offset, entry.size, `entry ${shown(entry.name)}`);
    if (crc32(bytes) !== entry.crc)
      throw this.error(
        'DAMAGED',
        `entry ${shown(entry.name)} is damaged: its checksum does not fit; copy the file again`,
      );
    return bytes;
  }

  /** Checks the sum of an entry of any size, piece by piece. */
  verify(entry: ZipEntry): void {
    let sum = 0;
    const step = 1 << 22;
    for (let at = 0; at < entry.size; at += step) {
      const length = Math.min(step, entry.size - at);
      sum = crc32(this.bytes(entry.offset + at, length, `entry ${shown(entry.name)}`), sum);
    }
    if (sum !== entry.crc)
      throw this.error(
        'DAMAGED',
        `entry ${shown(entry.name)} is damaged: its checksum does not fit; copy the file again`,
      );
  }

  [Symbol.dispose](): void {
    closeSync(this.file);
  }

  private error(code: Pt2Problem, message: string): Error {
    return pt2Error(code, this.path, message);
  }

  private bytes(offset: number, length: number, what: string): Uint8Array {
    if (offset < 0 || length < 0 || offset + length > this.size)
      throw this.error(
        'DAMAGED',
        `${what} lies at ${offset} to ${offset + length}, but the file has ${this.size} bytes`,
      );
    const bytes = new Uint8Array(length);
    let at = 0;
    while (at < length) {
      const count = readSync(this.file, bytes, at, length - at, offset + at);
      if (count === 0) throw this.error('DAMAGED', `${what} could not be read in full`);
      at += count;
    }
    return bytes;
  }

  private readDirectory(): Map<string, ZipEntry> {
    const { offset, size, count } = this.findDirectory();
    if (count > mostEntries || size > largestDirectory)
      throw this.error('TOO_LARGE', `its directory has ${count} entries in ${size} bytes, more than is read`);
    const directory = this.bytes(offset, size, 'the directory');
    const entries = new Map<string, ZipEntry>();
    let at = 0;
    for (let i = 0; i < count; i++) {
      const [entry, length] = this.readEntry(directory, at, offset);
      if (entries.has(entry.name)) throw this.error('DAMAGED', `entry ${shown(entry.name)} is there twice`);
      entries.set(entry.name, entry);
      at += length;
    }
    this.checkOverlap(entries.values());
    return entries;
  }

  private findDirectory(): ZipDirectory {
    const start = Math.max(0, this.size - ZIP_TAIL);
    const end = findZipEnd(this.bytes(start, this.size - start, 'the end'), start);
    if (end === undefined)
      throw this.error('NOT_ZIP', whatItIs(this.bytes(0, Math.min(8, this.size), 'the beginning')));
    if (end.disk !== 0 && end.disk !== 0xffff) throw this.error('NOT_ZIP', 'a zip of several disks is not read');
    if (end.end64 === undefined) return this.inside(end, end.at);
    const directory = readZipEnd64(this.bytes(end.end64, ZIP_END64_SIZE, 'the end record'));
    if (directory === undefined) throw this.error('DAMAGED', 'its 64-bit end record is not where it should be');
    return this.inside(directory, end.end64);
  }

  private inside(directory: ZipDirectory, end: number): ZipDirectory {
    if (directory.offset + directory.size > end)
      throw this.error(
        'DAMAGED',
        `its directory lies at ${directory.offset} to ${directory.offset + directory.size}, beyond its end record at ${end}`,
      );
    return directory;
  }

  /** The entry of the record at `at` of the directory, which begins at `start`, and the record's length. */
  private readEntry(directory: Uint8Array, at: number, start: number): [ZipEntry, number] {
    const record = readZipRecord(directory, at);
    if (record === undefined) throw this.error('DAMAGED', `its directory is damaged at byte ${start + at}`);
    const { flags, method, crc, length } = record;
    const name = this.nameOf(record.name);
    if (record.sizes === undefined) throw this.error('DAMAGED', `entry ${shown(name)} lacks its 64-bit sizes`);
    const { size, packed, header } = record.sizes;
    if ((flags & 0x41) !== 0) throw this.error('NOT_PT2', `entry ${shown(name)} is encrypted`);
    if (method !== 0 || packed !== size)
      throw this.error(
        'NOT_PT2',
        `entry ${shown(name)} is compressed (method ${method}); a .pt2 file is not: it was packed again by another program`,
      );
    return [{ name, size, crc, offset: this.dataStart(name, header, start - size) }, length];
  }

  private nameOf(bytes: Uint8Array): string {
    let name: string;
    try {
      name = new TextDecoder('utf-8', { fatal: true }).decode(bytes);
    } catch {
      throw this.error('DAMAGED', 'an entry has a name that is not UTF-8');
    }
    if (name === '' || name.startsWith('/') || /\p{Cc}|\\|(^|\/)\.\.?(\/|$)/u.test(name))
      throw this.error('UNSAFE_NAME', `an entry is called ${shown(name)}, which is no plain path inside the file`);
    return name;
  }

  /** Where the bytes of an entry begin: after its local header, whose lengths differ from the directory's. */
  private dataStart(name: string, local: number, latest: number): number {
    const header = readZipHeader(this.bytes(local, ZIP_HEADER_SIZE, `the header of entry ${shown(name)}`));
    if (header === undefined) throw this.error('DAMAGED', `entry ${shown(name)} has no header at byte ${local}`);
    if (header.method !== 0) throw this.error('NOT_PT2', `entry ${shown(name)} is compressed`);
    const start = local + header.length;
    if (start > latest) throw this.error('DAMAGED', `entry ${shown(name)} runs into the directory`);
    return start;
  }

  private checkOverlap(entries: Iterable<ZipEntry>): void {
    const sorted = [...entries].sort((a, b) => a.offset - b.offset || a.size - b.size);
    for (let i = 1; i < sorted.length; i++) {
      const [before, entry] = [sorted[i - 1]!, sorted[i]!];
      if (before.offset + before.size > entry.offset)
        throw this.error('DAMAGED', `entries ${shown(before.name)} and ${shown(entry.name)} overlap`);
    }
  }
}

/** What a file that is no zip most likely is. */
function whatItIs(start: Uint8Array): string {
  const text = String.fromCharCode(...start);
  if (text.slice(4, 8).startsWith('ET')) return 'this is an ExecuTorch program (.pte), not a .pt2 file';
  if (start[0] === 0x80) return 'this is a Python pickle of torch.save, not a .pt2 file; pickles are never opened';
  if (text.startsWith('PK')) return 'the zip is cut off: its end is missing; copy the file again';
  return 'not a zip file, so not a .pt2 file';
}
