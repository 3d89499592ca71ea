/**
 * @file Writing files so that nothing is destroyed. An ordinary file is replaced as a whole, through a temporary file beside
 * it; devices, pipes and files that a new one cannot stand in for (hard links, other owners) are written in place; links are
 * followed. Also makes folders. It loads nothing else, so that the command line can use it without libtorch.
 */
import {
  accessSync,
  closeSync,
  constants,
  fchmodSync,
  fsyncSync,
  lstatSync,
  mkdirSync,
  openSync,
  readlinkSync,
  realpathSync,
  renameSync,
  rmSync,
  type Stats,
  statfsSync,
  statSync,
  writeSync,
} from 'node:fs';
import { basename, dirname, join, resolve } from 'node:path';
import { TorchError } from '../base/errors.ts';

/** What goes into a file: its text or bytes, or a function that writes to the open file. */
export type FileContent = string | Uint8Array | ((file: number) => void);

/**
 * Throws if `path` cannot be written: no folder, no permission, a full disk. Call it before a long computation whose result
 * goes there; it changes nothing.
 *
 * @example checkWritable('runs/trace.json') // TorchError CANNOT_WRITE: ... there is no folder runs
 */
export function checkWritable(path: string): void {
  attempt(path, () => void findTarget(path));
}

/**
 * Writes a file. Readers see the old content or the new one, never half of it, and what fails leaves the old file as it was;
 * only devices, pipes, hard links and files of other users are written in place.
 *
 * @example writeFile('step.svg', renderSvg(simulate(schedule)))
 */
export function writeFile(path: string, content: FileContent): void {
  attempt(path, () => {
    const { path: target, replace, mode } = findTarget(path);
    if (!replace || !replaceFile(target, content, mode)) writeInPlace(target, content);
  });
}

/**
 * Makes a folder and those above it that are missing; returns the first that it made, if any. Unlike mkdir of Node 20 with
 * `recursive`, it comes to an end where the system refuses to make a folder in one that is there, as in /proc.
 *
 * @example makeFolder('runs/gpt/today')
 */
export function makeFolder(path: string): string | undefined {
  let first: string | undefined;
  const make = (folder: string): void => {
    const stats = statSync(folder, { throwIfNoEntry: false });
    if (stats?.isDirectory() === true) return;
    if (stats !== undefined) throw problem(`${folder} is not a folder`);
    make(dirname(folder));
    try {
      mkdirSync(folder);
      first ??= folder;
    } catch (error) {
      const { code } = error as NodeJS.ErrnoException;
      if (code === 'ENOENT') throw problem(`nothing can be made in ${dirname(folder)}; give another path`);
      if (code !== 'EEXIST') throw error;
      // Another rank was faster, or a link that leads nowhere is there.
      if (statSync(folder, { throwIfNoEntry: false })?.isDirectory() !== true)
        throw problem(`${folder} is not a folder`);
    }
  };
  attempt(path, () => make(resolve(path)), 'make the folder');
  return first;
}

interface Target {
  readonly path: string;
  /** Whether a new file may take its place. */
  readonly replace: boolean;
  readonly mode?: number;
}

/** Where `path` leads, if it can be written. */
function findTarget(path: string): Target {
  const target = followLinks(path);
  const stats = statSync(target, { throwIfNoEntry: false });
  if (stats === undefined) {
    checkFolder(target === resolve(path) ? dirname(path) : dirname(target));
    return { path: target, replace: true };
  }
  if (stats.isDirectory()) throw problem('it is a folder; name a file in it');
  accessSync(target, constants.W_OK);
  if (!stats.isFile()) return { path: target, replace: false };
  checkSpace(dirname(target));
  return { path: target, replace: mayReplace(target, stats), mode: stats.mode & 0o7777 };
}

/** The path behind links; a link to an open file of a process (such as /dev/stdout) stays as it is. */
function followLinks(path: string): string {
  let at = resolve(path);
  for (let hops = 0; hops < 40; hops++) {
    if (at.startsWith('/proc/') || lstatSync(at, { throwIfNoEntry: false })?.isSymbolicLink() !== true) return at;
    at = resolve(realpathSync(dirname(at)), readlinkSync(at));
  }
  throw problem('its links go round in a cycle');
}

/** Whether a new file in its place differs in nothing but the content. */
function mayReplace(path: string, stats: Stats): boolean {
  if (path.startsWith('/proc/') || stats.nlink > 1) return false;
  if (process.geteuid !== undefined && stats.uid !== process.geteuid()) return false;
  try {
    accessSync(dirname(path), constants.W_OK | constants.X_OK);
    return true;
  } catch {
    return false;
  }
}

function checkFolder(folder: string): void {
  const stats = statSync(folder, { throwIfNoEntry: false });
  if (stats === undefined) throw problem(`there is no folder ${folder}; make it first`);
  if (!stats.isDirectory()) throw problem(`${folder} is not a folder`);
  accessSync(folder, constants.W_OK | constants.X_OK);
  checkSpace(folder);
}

function checkSpace(folder: string): void {
  const { blocks, bavail } = statfsSync(folder);
  if (blocks > 0 && bavail === 0) throw problem('the disk is full');
}

/** Writes beside the file, then renames; false where the place does not let itself be replaced (a mounted file). */
function replaceFile(path: string, content: FileContent, mode: number | undefined): boolean {
  const name = `.${basename(path)}.${process.pid}.${Math.random().toString(36).slice(2)}.tmp`;
  const temporary = join(dirname(path), name);
  try {
    const file = openSync(temporary, 'wx');
    try {
      if (mode !== undefined) fchmodSync(file, mode);
      put(file, content);
      fsyncSync(file);
    } finally {
      closeSync(file);
    }
    renameSync(temporary, path);
  } catch (error) {
    rmSync(temporary, { force: true });
    if (['EBUSY', 'EXDEV'].includes((error as NodeJS.ErrnoException).code ?? '')) return false;
    throw error;
  }
  syncFolder(dirname(path));
  return true;
}

function writeInPlace(path: string, content: FileContent): void {
  const own = ownFile(path);
  if (own !== null) {
    put(own, content);
    return;
  }
  const file = openSync(path, 'w');
  try {
    put(file, content);
  } finally {
    closeSync(file);
  }
}

/** The number of an open file of this process (/dev/stdout); opening it again would cut off what is in it already. */
function ownFile(path: string): number | null {
  const [, owner, number] = /^\/proc\/(self|thread-self|\d+)\/fd\/(\d+)$/.exec(path) ?? [];
  return number !== undefined && (owner === String(process.pid) || owner?.endsWith('self')) ? Number(number) : null;
}

function put(file: number, content: FileContent): void {
  if (typeof content === 'function') {
    content(file);
    return;
  }
  const bytes = typeof content === 'string' ? Buffer.from(content) : content;
  writeAll(file, bytes);
}

/** Writes all bytes to an open file; where a pipe is full, waits for its reader. */
export function writeAll(file: number, bytes: Uint8Array): void {
  for (let at = 0; at < bytes.length; ) {
    try {
      at += writeSync(file, bytes, at);
    } catch (error) {
      if ((error as NodeJS.ErrnoException).code !== 'EAGAIN') throw error;
      Atomics.wait(new Int32Array(new SharedArrayBuffer(4)), 0, 0, 1);
    }
  }
}

/** Makes a rename last; some file systems refuse it for folders, and there is nothing to do about that. */
function syncFolder(path: string): void {
  const folder = openSync(path, 'r');
  try {
    fsyncSync(folder);
  } catch {
    return;
  } finally {
    closeSync(folder);
  }
}

const reasons: Readonly<Record<string, string>> = {
  ENOENT: 'no such file or folder',
  EACCES: 'permission denied',
  EPERM: 'permission denied',
  EISDIR: 'it is a folder',
  ENOTDIR: 'part of the path is not a folder',
  ENOSPC: 'the disk is full',
  EDQUOT: 'the disk quota is used up',
  EFBIG: 'the file would become too large',
  EROFS: 'the disk is read-only',
  EPIPE: 'its reader is gone',
  ENXIO: 'nothing reads it',
  ENAMETOOLONG: 'the name is too long',
  ELOOP: 'its links go round in a cycle',
  EMFILE: 'too many files are open',
};

/** Why a file could not be read or written, in words. */
export function describeFileError(error: unknown): string {
  const { code, message, cause } = error as NodeJS.ErrnoException;
  if (code === 'CANNOT_WRITE') return describeFileError(cause);
  return (code === undefined ? undefined : reasons[code]) ?? message.replace(/^writing failed: /, '');
}

/** A reason in words already. */
function problem(reason: string): Error {
  return new Error(reason);
}

function attempt(path: string, body: () => void, what = 'write'): void {
  try {
    body();
  } catch (error) {
    if (error instanceof TorchError && error.code !== 'FILE') throw error;
    throw new TorchError('CANNOT_WRITE', `cannot ${what} ${path}: ${describeFileError(error)}`, { cause: error });
  }
}
