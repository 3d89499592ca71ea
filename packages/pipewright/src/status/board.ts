/** @file The records of all ranks of a machine, as their launcher sees them. */
import { closeSync, mkdtempSync, openSync, readSync, rmSync, writeFileSync, writeSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { generationWord, RECORD_WORDS, statusBytes } from './layout.ts';
import { type RankPlace, readPlace } from './place.ts';

/** The memory in which the ranks of this machine report where they are. */
export interface StatusBoard {
  /** The memory that threads share, or the file that processes map. */
  readonly shared: SharedArrayBuffer | string;
  /** Where every rank is now. */
  places(): RankPlace[];
  /** Announces a new generation of the ranks: waits of earlier ones end. */
  setGeneration(number: number): void;
  /** Frees the memory. */
  close(): void;
}

/** A board for threads of this process. The first of them has the rank `first`. */
export function threadBoard(ranks: number, first = 0): StatusBoard {
  const shared = new SharedArrayBuffer(statusBytes(ranks));
  const words = new Int32Array(shared);
  return {
    shared,
    places: () => readAll(ranks, first, (i) => words.subarray(i * RECORD_WORDS, (i + 1) * RECORD_WORDS)),
    setGeneration: (number) => {
      words[generationWord(ranks)] = number;
    },
    close: () => undefined,
  };
}

/** A board for processes, in a file that lives in memory where the system has a place for such files. */
export function processBoard(ranks: number, first = 0): StatusBoard {
  const folder = makeFolder();
  const file = join(folder, 'status');
  writeFileSync(file, new Uint8Array(statusBytes(ranks)), { mode: 0o600 });
  const open = openSync(file, 'r+');
  const load = (i: number): Int32Array => {
    const words = new Int32Array(RECORD_WORDS);
    readSync(open, words, 0, words.byteLength, i * words.byteLength);
    return words;
  };
  return {
    shared: file,
    places: () => readAll(ranks, first, load),
    setGeneration: (number) => {
      writeSync(open, new Int32Array([number]), 0, 4, generationWord(ranks) * 4);
    },
    close: () => {
      closeSync(open);
      rmSync(folder, { recursive: true, force: true });
    },
  };
}

function makeFolder(): string {
  try {
    return mkdtempSync('/dev/shm/pipewright-');
  } catch {
    return mkdtempSync(join(tmpdir(), 'pipewright-'));
  }
}

function readAll(ranks: number, first: number, load: (index: number) => Int32Array): RankPlace[] {
  return Array.from({ length: ranks }, (_, i) => readPlace(first + i, () => load(i)));
}
