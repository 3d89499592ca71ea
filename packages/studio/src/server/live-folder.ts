/** @file Follows the files of a running job: every line that ranks and launcher append, in the order in which it is found. */
import { closeSync, fstatSync, openSync, readdirSync, readSync } from 'node:fs';
import { join } from 'node:path';
import { liveRankOf } from '@pipewright/schedule';

/** Longest line that is taken; a longer one is passed over. */
const mostBytes = 32 * 1024 * 1024;
/** The launcher's lines count as those of no rank. */
const LAUNCHER = -1;

interface Followed {
  readonly rank: number;
  readonly path: string;
  handle: number;
  inode: number;
  position: number;
  rest: Buffer;
}

/** Reads a folder again and again; only files with the names of a live run are opened. */
export class LiveFolder {
  private readonly folder: string;
  private readonly files: Map<string, Followed> = new Map();

  constructor(folder: string) {
    this.folder = folder;
  }

  /** Lines that have come since the last call, each with its rank (-1: the launcher). */
  read(): { rank: number; text: string }[] {
    const found: { rank: number; text: string }[] = [];
    for (const name of this.names()) {
      const rank = liveRankOf(name);
      if (rank === null) continue;
      this.readFile(name, rank === 'launcher' ? LAUNCHER : rank, found);
    }
    return found;
  }

  close(): void {
    for (const { handle } of this.files.values()) closeSync(handle);
    this.files.clear();
  }

  private names(): string[] {
    try {
      return readdirSync(this.folder).sort();
    } catch {
      return []; // not there yet, or gone already
    }
  }

  private readFile(name: string, rank: number, found: { rank: number; text: string }[]): void {
    let file = this.files.get(name);
    try {
      if (file === undefined) {
        const path = join(this.folder, name);
        const handle = openSync(path, 'r');
        file = { rank, path, handle, inode: fstatSync(handle).ino, position: 0, rest: Buffer.alloc(0) };
        this.files.set(name, file);
      }
      const { size } = fstatSync(file.handle);
      if (size < file.position) file.position = 0; // begun again
      while (file.position < size) {
        const chunk = Buffer.alloc(Math.min(1 << 20, size - file.position));
        const bytes = readSync(file.handle, chunk, 0, chunk.length, file.position);
        if (bytes === 0) break;
        file.position += bytes;
        this.takeLines(file, chunk.subarray(0, bytes), found);
      }
    } catch {
      if (file !== undefined) this.files.delete(name); // looked for again at the next call
    }
  }

  private takeLines(file: Followed, chunk: Buffer, found: { rank: number; text: string }[]): void {
    let rest = file.rest.length === 0 ? chunk : Buffer.concat([file.rest, chunk]);
    for (let at = rest.indexOf(10); at >= 0; at = rest.indexOf(10)) {
      if (at > 0 && at <= mostBytes) found.push({ rank: file.rank, text: rest.toString('utf8', 0, at) });
      rest = rest.subarray(at + 1);
    }
    file.rest = rest.length > mostBytes ? Buffer.alloc(0) : Buffer.from(rest);
  }
}
