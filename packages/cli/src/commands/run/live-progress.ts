/** @file How far the ranks of a job are in their steps: the files that they keep, also those of ranks that were killed. */
import { closeSync, openSync, readdirSync, readFileSync, readSync, rmSync } from 'node:fs';
import { join } from 'node:path';
import type { LiveProgress } from '@pipewright/schedule';
import { PROGRESS_HEAD, progressRankOf, readProgress } from '@pipewright/schedule/internal';

/** What the files of a folder say, of each rank the last `most` actions; with 0 only when its step began and ended. */
export function readProgressOf(folder: string, most: number): LiveProgress[] {
  return namesIn(folder).flatMap((name) => {
    const rank = progressRankOf(name);
    if (rank === null) return [];
    try {
      const file = join(folder, name);
      const bytes = most === 0 ? headOf(file) : readFileSync(file);
      const numbers = new Float64Array(bytes.length >> 3);
      new Uint8Array(numbers.buffer).set(bytes.subarray(0, numbers.byteLength));
      return readProgress(rank, numbers, most) ?? [];
    } catch {
      return []; // being replaced
    }
  });
}

function headOf(file: string): Uint8Array {
  const handle = openSync(file, 'r');
  try {
    const bytes = new Uint8Array(PROGRESS_HEAD * 8);
    return bytes.subarray(0, readSync(handle, bytes));
  } finally {
    closeSync(handle);
  }
}

/** Removes the files of a run before. */
export function removeProgress(folder: string): void {
  for (const name of namesIn(folder)) if (progressRankOf(name) !== null) rmSync(join(folder, name), { force: true });
}

function namesIn(folder: string): string[] {
  try {
    return readdirSync(folder).sort();
  } catch {
    return []; // not there yet
  }
}
