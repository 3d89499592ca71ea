/** @file A Python wheel (a zip file) read in place: its entries, and unpacking that checks each against RECORD. */
import { createHash } from 'node:crypto';
import { createWriteStream, mkdirSync, writeFileSync } from 'node:fs';
import { type FileHandle, open } from 'node:fs/promises';
import { dirname } from 'node:path';
import { PassThrough, Transform } from 'node:stream';
import { pipeline } from 'node:stream/promises';
import { createInflateRaw, inflateRawSync } from 'node:zlib';
import {
  findZipEnd,
  readZipEnd64,
  readZipHeader,
  readZipRecord,
  ZIP_END64_SIZE,
  ZIP_HEADER_SIZE,
  ZIP_TAIL,
} from '../../base/zip-directory.ts';
import { AddonError } from '../base/addon-error.ts';

export interface WheelEntry {
  readonly name: string;
  readonly size: number;
  readonly packedSize: number;
  readonly method: number;
  readonly headerOffset: number;
}

/** What RECORD says about a file: the hash as hexadecimal SHA-256. */
export interface RecordLine {
  readonly sha256: string;
  readonly size: number;
}

const STORED = 0;
const DEFLATED = 8;
/** Bytes read at a time; smaller files are read at once. */
const PIECE = 1 << 20;

export class Wheel {
  readonly path: string;
  readonly entries: ReadonlyMap<string, WheelEntry>;
  readonly #file: FileHandle;
  #record: ReadonlyMap<string, RecordLine> | undefined;

  private constructor(path: string, file: FileHandle, entries: ReadonlyMap<string, WheelEntry>) {
    this.path = path;
    this.#file = file;
    this.entries = entries;
  }

  /** Reads the table of contents; a file that was cut short fails here. */
  static async open(path: string): Promise<Wheel> {
    const file = await open(path, 'r');
    try {
      return new Wheel(path, file, await readEntries(path, file));
    } catch (error) {
      await file.close();
      throw error;
    }
  }

  async close(): Promise<void> {
    await this.#file.close();
  }

  /** A file of the wheel, whole and unchecked. */
  async read(name: string): Promise<Buffer> {
    const entry = this.#entry(name);
    const packed = await readAt(this.#file, await this.#start(entry), entry.packedSize);
    return this.#guard(entry, () => (entry.method === STORED ? packed : inflateRawSync(packed)));
  }

  /** The hashes that the wheel's maker wrote down. */
  async record(): Promise<ReadonlyMap<string, RecordLine>> {
    if (this.#record === undefined) {
      const name = [...this.entries.keys()].find((n) => /^[^/]+\.dist-info\/RECORD$/.test(n));
      if (name === undefined) throw corrupt(this.path, 'it has no RECORD');
      this.#record = parseRecord((await this.read(name)).toString('utf8'));
    }
    return this.#record;
  }

  /** Writes one file to `target` and checks it; `onBytes` hears of each piece. */
  async unpack(name: string, target: string, onBytes: (count: number) => void): Promise<RecordLine> {
    const entry = this.#entry(name);
    const expected = (await this.record()).get(name);
    if (expected === undefined) throw corrupt(this.path, `${name} is not in its RECORD`);
    mkdirSync(dirname(target), { recursive: true });
    const hash = createHash('sha256');
    const meter = (chunk: Buffer): void => {
      hash.update(chunk);
      onBytes(chunk.length);
    };
    if (entry.size <= PIECE) {
      const bytes = await this.read(name);
      meter(bytes);
      writeFileSync(target, bytes);
    } else await this.#stream(entry, target, meter);
    const sha256 = hash.digest('hex');
    if (sha256 !== expected.sha256)
      throw corrupt(this.path, `${name} has SHA-256 ${sha256}, but RECORD says ${expected.sha256}`);
    return { sha256, size: entry.size };
  }

  /** The way of large files: a piece at a time, inflated off the main thread. */
  async #stream(entry: WheelEntry, target: string, meter: (chunk: Buffer) => void): Promise<void> {
    const packed = readRange(this.#file, await this.#start(entry), entry.packedSize);
    const measure = new Transform({
      transform(chunk: Buffer, _encoding, done) {
        meter(chunk);
        done(null, chunk);
      },
    });
    const inflate = entry.method === STORED ? new PassThrough() : createInflateRaw({ chunkSize: 1 << 18 });
    await this.#guard(entry, () => pipeline(packed, inflate, measure, createWriteStream(target)));
  }

  /** Where the packed bytes begin: after a header of its own, whose length the table does not tell. */
  async #start(entry: WheelEntry): Promise<number> {
    if (entry.method !== STORED && entry.method !== DEFLATED)
      throw corrupt(this.path, `${entry.name} is packed in way ${entry.method}, which is not known here`);
    const header = readZipHeader(await readAt(this.#file, entry.headerOffset, ZIP_HEADER_SIZE));
    if (header === undefined) throw corrupt(this.path, `${entry.name} has no header`);
    return entry.headerOffset + header.length;
  }

  /** What cannot be inflated is the wheel's fault; a full disk is not. */
  async #guard<T>(entry: WheelEntry, work: () => T | Promise<T>): Promise<T> {
    try {
      return await work();
    } catch (error) {
      if (!String((error as NodeJS.ErrnoException).code).startsWith('Z_')) throw error;
      throw corrupt(this.path, `${entry.name} cannot be unpacked (${(error as Error).message})`);
    }
  }

  #entry(name: string): WheelEntry {
    const entry = this.entries.get(name);
    if (entry === undefined) throw corrupt(this.path, `it has no ${name}`);
    return entry;
  }
}

/** `path,sha256=<url-safe base64 without padding>,size`, one per line; a path with a comma is in quotes. */
export function parseRecord(text: string): Map<string, RecordLine> {
  const lines = new Map<string, RecordLine>();
  for (const line of text.split('\n')) {
    const match = /^(?:"((?:[^"]|"")*)"|([^",]*)),sha256=([\w-]+),(\d*)\r?$/.exec(line);
    if (match === null) continue; // RECORD itself has no hash
    const name = match[1]?.replaceAll('""', '"') ?? match[2] ?? '';
    lines.set(name, { sha256: Buffer.from(match[3] ?? '', 'base64url').toString('hex'), size: Number(match[4]) });
  }
  return lines;
}

function corrupt(path: string, problem: string): AddonError {
  return new AddonError(
    'WHEEL_CORRUPT',
    `Wheel: ${path} is damaged: ${problem}; delete it and run: npx pipewright setup`,
  );
}

async function* readRange(file: FileHandle, start: number, length: number): AsyncGenerator<Buffer> {
  for (let at = 0; at < length; ) {
    const chunk = await readAt(file, start + at, Math.min(PIECE, length - at));
    if (chunk.length === 0) return; // cut short: the hash will tell
    at += chunk.length;
    yield chunk;
  }
}

async function readAt(file: FileHandle, position: number, length: number): Promise<Buffer> {
  const buffer = Buffer.alloc(length);
  const { bytesRead } = await file.read(buffer, 0, length, position);
  return buffer.subarray(0, bytesRead);
}

async function readEntries(path: string, file: FileHandle): Promise<Map<string, WheelEntry>> {
  const { size } = await file.stat();
  const tailStart = Math.max(0, size - ZIP_TAIL);
  const end = findZipEnd(await readAt(file, tailStart, size - tailStart), tailStart);
  if (end === undefined) throw corrupt(path, 'its end is missing');
  const directory = end.end64 === undefined ? end : readZipEnd64(await readAt(file, end.end64, ZIP_END64_SIZE));
  if (directory === undefined || directory.offset + directory.size > end.at)
    throw corrupt(path, 'its table is not where its end says');
  const table = await readAt(file, directory.offset, directory.size);
  const entries = new Map<string, WheelEntry>();
  for (let i = 0, at = 0; i < directory.count; i++) {
    const record = readZipRecord(table, at);
    if (record?.sizes === undefined) throw corrupt(path, `entry ${i} of its table is missing`);
    const name = Buffer.from(record.name).toString('utf8');
    const unsafe = name.startsWith('/') || name.split('/').includes('..');
    if (unsafe) throw corrupt(path, `entry ${JSON.stringify(name)} points outside`);
    const { size, packed: packedSize, header: headerOffset } = record.sizes;
    if (!name.endsWith('/')) entries.set(name, { name, method: record.method, packedSize, size, headerOffset });
    at += record.length;
  }
  return entries;
}
