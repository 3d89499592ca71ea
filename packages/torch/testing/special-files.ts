/** @file Things that are not ordinary files, made in temporary folders: devices, pipes, a full disk; and users without rights. For tests. */
import { spawnSync } from 'node:child_process';
import { mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';

/** Major and minor number of devices of Linux. */
const devices = { null: ['1', '3'], full: ['1', '7'] } as const;

const command = (name: string, ...args: string[]): boolean => spawnSync(name, args, { stdio: 'ignore' }).status === 0;

/** A copy of /dev/null or /dev/full; null where this user may not make one or the disk has none. */
export function makeDevice(folder: string, name: keyof typeof devices): string | null {
  const path = join(folder, `${name}.csv`);
  if (!command('mknod', path, 'c', ...devices[name])) return null;
  try {
    writeFileSync(path, name === 'null' ? 'x' : '');
    return path;
  } catch {
    rmSync(path, { force: true });
    return null;
  }
}

/** A pipe with a name. */
export function makeFifo(folder: string): string {
  const path = join(folder, 'pipe.csv');
  if (!command('mkfifo', path)) throw new Error('mkfifo failed');
  return path;
}

/** A disk of a few pages in memory; null where this user may not mount one. */
export function mountSmallDisk(): { readonly folder: string; readonly unmount: () => void } | null {
  const folder = mkdtempSync(join(tmpdir(), 'pipewright-disk-'));
  const remove = (): void => rmSync(folder, { recursive: true, force: true });
  if (!command('mount', '-t', 'tmpfs', '-o', 'size=64k', 'tmpfs', folder)) {
    remove();
    return null;
  }
  return {
    folder,
    unmount: () => {
      command('umount', folder);
      remove();
    },
  };
}

/** Runs a body as a user whom permissions bind: for root no folder is read-only, so all threads of the process change their user. */
export function asOrdinaryUser<T>(body: () => T): T {
  const isRoot = process.geteuid?.() === 0;
  if (isRoot) process.seteuid?.(65534);
  try {
    return body();
  } finally {
    if (isRoot) process.seteuid?.(0);
  }
}
