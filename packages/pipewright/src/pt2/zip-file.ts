/**
 * @file A zip file with stored entries, as libtorch writes it: where each entry's bytes lie, and small entries read. Names
 * are keys and never paths on disk; nothing is unpacked.
 */
import { closeSync, fstatSync, openSync, readSync, statSync } from 'node:fs';
import { crc32 } from 'node:zlib';
import { PipelineError } from '../base/errors.ts';
import { pt2Error, shown } from './pt2-error.ts';

/** Where the bytes of an entry lie. */
export interface ZipEntry {
  readonly name: string;
  /** Of the first byte, from the file's beginning. */
  readonly offset: number;
  readonly size: number;
  readonly crc: number;
}

const END = 0x06054b50;
const END64 = 0x06064b50;
const LOCATOR64 = 0x07064b50;
const CENTRAL = 0x02014b50;
const LOCAL = 0x04034b50;
const LIMIT32 = 0xffffffff;
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
      throw pt2Error('FILE', path, `cannot be opened (${(error as NodeJS.ErrnoException).code})`, error);
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

  private error(code: string, message: string): Error {
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

  private view(offset: number, length: number, what: string): DataView {
    return new DataView(this.bytes(offset, length, what).buffer);
  }

  private readDirectory(): Map<string, ZipEntry> {
    const { offset, size, count } = this.findDirectory();
    if (count > mostEntries || size > largestDirectory)
      throw this.error('TOO_LARGE', `its directory has ${count} entries in ${size} bytes, more than is read`);
    const view = this.view(offset, size, 'the directory');
    const entries = new Map<string, ZipEntry>();
    let at = 0;
    for (let i = 0; i < count; i++) {
      const [entry, length] = this.readCentral(view, at, offset);
      if (entries.has(entry.name)) throw this.error('DAMAGED', `entry ${shown(entry.name)} is there twice`);
      entries.set(entry.name, entry);
      at += length;
    }
    this.checkOverlap(entries.values());
    return entries;
  }

  private findDirectory(): { offset: number; size: number; count: number } {
    const tail = Math.min(this.size, 65_557);
    const start = this.size - tail;
    const view = this.view(start, tail, 'the end');
    let at = tail - 22;
    while (at >= 0 && view.getUint32(at, true) !== END) at--;
    if (at < 0) throw this.error('NOT_ZIP', whatItIs(this.bytes(0, Math.min(8, this.size), 'the beginning')));
    const plain = {
      count: view.getUint16(at + 10, true),
      size: view.getUint32(at + 12, true),
      offset: view.getUint32(at + 16, true),
    };
    if (view.getUint16(at + 4, true) !== 0 && view.getUint16(at + 4, true) !== 0xffff)
      throw this.error('NOT_ZIP', 'a zip of several disks is not read');
    const locator = at - 20;
    if (locator < 0 || view.getUint32(locator, true) !== LOCATOR64) return this.inside(plain, start + at);
    const place = Number(view.getBigUint64(locator + 8, true));
    const record = this.view(place, 56, 'the end record');
    if (record.getUint32(0, true) !== END64)
      throw this.error('DAMAGED', 'its 64-bit end record is not where it should be');
    return this.inside(
      {
        count: Number(record.getBigUint64(32, true)),
        size: Number(record.getBigUint64(40, true)),
        offset: Number(record.getBigUint64(48, true)),
      },
      place,
    );
  }

  private inside<T extends { offset: number; size: number }>(directory: T, end: number): T {
    if (directory.offset + directory.size > end)
      throw this.error(
        'DAMAGED',
        `its directory lies at ${directory.offset} to ${directory.offset + directory.size}, beyond its end record at ${end}`,
      );
    return directory;
  }

  private readCentral(view: DataView, at: number, directory: number): [ZipEntry, number] {
    if (at + 46 > view.byteLength || view.getUint32(at, true) !== CENTRAL)
      throw this.error('DAMAGED', `its directory is damaged at byte ${directory + at}`);
    const flags = view.getUint16(at + 8, true);
    const method = view.getUint16(at + 10, true);
    const nameLength = view.getUint16(at + 28, true);
    const extraLength = view.getUint16(at + 30, true);
    const length = 46 + nameLength + extraLength + view.getUint16(at + 32, true);
    if (at + length > view.byteLength)
      throw this.error('DAMAGED', `its directory is damaged at byte ${directory + at}`);
    const name = this.nameOf(new Uint8Array(view.buffer, at + 46, nameLength));
    const wide = wideSizes(view, at, at + 46 + nameLength, extraLength);
    if (wide === undefined) throw this.error('DAMAGED', `entry ${shown(name)} lacks its 64-bit sizes`);
    const { packed, size, local } = wide;
    if ((flags & 0x41) !== 0) throw this.error('NOT_PT2', `entry ${shown(name)} is encrypted`);
    if (method !== 0 || packed !== size)
      throw this.error(
        'NOT_PT2',
        `entry ${shown(name)} is compressed (method ${method}); a .pt2 file is not: it was packed again by another program`,
      );
    const crc = view.getUint32(at + 16, true);
    return [{ name, size, crc, offset: this.dataStart(name, local, directory - size) }, length];
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
    const header = this.view(local, 30, `the header of entry ${shown(name)}`);
    if (header.getUint32(0, true) !== LOCAL)
      throw this.error('DAMAGED', `entry ${shown(name)} has no header at byte ${local}`);
    if (header.getUint16(8, true) !== 0) throw this.error('NOT_PT2', `entry ${shown(name)} is compressed`);
    const start = local + 30 + header.getUint16(26, true) + header.getUint16(28, true);
    if (start > latest) throw this.error('DAMAGED', `entry ${shown(name)} runs into the directory`);
    return start;
  }

  private checkOverlap(entries: Iterable<ZipEntry>): void {
    const sorted = [...entries].sort((a, b) => a.offset - b.offset || a.size - b.size);
    for (let i = 1; i < sorted.length; i++) {
      const [before, entry] = [sorted[i - 1] as ZipEntry, sorted[i] as ZipEntry];
      if (before.offset + before.size > entry.offset)
        throw this.error('DAMAGED', `entries ${shown(before.name)} and ${shown(entry.name)} overlap`);
    }
  }
}

/** Sizes and place of an entry, from its record or from the 64-bit field where that says so. */
function wideSizes(
  view: DataView,
  record: number,
  extra: number,
  extraLength: number,
): { packed: number; size: number; local: number } | undefined {
  const plain = [
    view.getUint32(record + 24, true),
    view.getUint32(record + 20, true),
    view.getUint32(record + 42, true),
  ];
  if (plain.every((value) => value !== LIMIT32)) {
    const [size, packed, local] = plain as [number, number, number];
    return { packed, size, local };
  }
  for (let at = extra; at + 4 <= extra + extraLength; at += 4 + view.getUint16(at + 2, true)) {
    if (view.getUint16(at, true) !== 1) continue;
    let next = at + 4;
    const end = Math.min(next + view.getUint16(at + 2, true), extra + extraLength);
    const values: number[] = [];
    for (const value of plain) {
      if (value !== LIMIT32) values.push(value);
      else if (next + 8 > end) return undefined;
      else {
        values.push(Number(view.getBigUint64(next, true)));
        next += 8;
      }
    }
    const [size, packed, local] = values as [number, number, number];
    return { packed, size, local };
  }
  return undefined;
}

/** What a file that is no zip most likely is. */
function whatItIs(start: Uint8Array): string {
  const text = String.fromCharCode(...start);
  if (text.slice(4, 8).startsWith('ET')) return 'this is an ExecuTorch program (.pte), not a .pt2 file';
  if (start[0] === 0x80) return 'this is a Python pickle of torch.save, not a .pt2 file; pickles are never opened';
  if (text.startsWith('PK')) return 'the zip is cut off: its end is missing; copy the file again';
  return 'not a zip file, so not a .pt2 file';
}
