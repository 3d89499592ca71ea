/** @file The file system calls of a save; tests replace them. */
import {
  closeSync,
  existsSync,
  fsyncSync,
  openSync,
  readdirSync,
  readFileSync,
  renameSync,
  rmdirSync,
  unlinkSync,
  writeSync,
} from 'node:fs';
import { basename, dirname, join } from 'node:path';
import { makeFolder } from '@pipewright/torch/files';
import { startWriting } from '@pipewright/torch/internal';

/** The calls. */
export interface FileSystem {
  openSync(path: string, flags: string): number;
  writeSync(file: number, bytes: Uint8Array, offset: number, length: number): number;
  /** Starts writing part of a file to the disk, without waiting; absent where the system has no such call. */
  startWriting?(file: number, offset: number, length: number): void;
  fsyncSync(file: number): void;
  closeSync(file: number): void;
  renameSync(from: string, to: string): void;
  /** Makes a folder and those above it; returns the first that it made. */
  makeFolder(path: string): string | undefined;
  unlinkSync(path: string): void;
  rmdirSync(path: string): void;
  readdirSync(path: string): string[];
  readFileSync(path: string, encoding: 'utf8'): string;
  existsSync(path: string): boolean;
}

/** The real one. */
export const realFileSystem: FileSystem = {
  openSync,
  writeSync,
  startWriting,
  fsyncSync,
  closeSync,
  renameSync,
  makeFolder,
  unlinkSync,
  rmdirSync,
  readdirSync,
  readFileSync,
  existsSync,
};

/** Writes all of some bytes. */
export function writeAll(fs: FileSystem, file: number, bytes: Uint8Array): void {
  for (let at = 0; at < bytes.length; ) at += fs.writeSync(file, bytes, at, bytes.length - at);
}

/** Makes a new file with this content, which is on the disk when it returns. */
export function writeSynced(fs: FileSystem, path: string, body: (file: number) => void): void {
  const file = fs.openSync(path, 'w');
  try {
    body(file);
    fs.fsyncSync(file);
  } finally {
    fs.closeSync(file);
  }
}

/** Replaces a small file as a whole: a reader sees the old one or the new one, also after a crash. */
export function replaceFile(fs: FileSystem, path: string, text: string): void {
  const temporary = join(dirname(path), `.${basename(path)}.tmp`);
  writeSynced(fs, temporary, (file) => writeAll(fs, file, new TextEncoder().encode(text)));
  fs.renameSync(temporary, path);
  syncFolder(fs, dirname(path));
}

/** Syncs a folder, so that what was created, renamed or removed in it lasts; file systems that cannot are left as they are. */
export function syncFolder(fs: FileSystem, path: string): void {
  const folder = fs.openSync(path, 'r');
  try {
    fs.fsyncSync(folder);
  } catch (error) {
    if (!['EINVAL', 'ENOTSUP', 'EBADF', 'EISDIR'].includes((error as NodeJS.ErrnoException).code ?? '')) throw error;
  } finally {
    fs.closeSync(folder);
  }
}

/** Removes a folder of files; the files named come first, in that order. */
export function removeFolder(fs: FileSystem, path: string, first: readonly string[] = []): void {
  let names: string[];
  try {
    names = fs.readdirSync(path);
  } catch (error) {
    if ((error as NodeJS.ErrnoException).code === 'ENOENT') return;
    throw error;
  }
  const ordered = [...first.filter((name) => names.includes(name)), ...names.filter((name) => !first.includes(name))];
  for (const name of ordered) fs.unlinkSync(join(path, name));
  fs.rmdirSync(path);
}
