/**
 * @file A lock between processes, held by a file. A holder that died, by kill -9 too, is found out by its process id
 * and start time, and its lock is taken over. No imports of ours: scripts/generated/ has a copy made from this file.
 */
import { randomUUID } from 'node:crypto';
import { linkSync, mkdirSync, readFileSync, unlinkSync, writeFileSync } from 'node:fs';
import { hostname } from 'node:os';
import { dirname } from 'node:path';
import { setTimeout as sleep } from 'node:timers/promises';

export interface Lock {
  /** Gives the lock back; a second call does nothing. */
  release(): void;
}

export interface LockOptions {
  /** What the holder is doing, for the message of those who wait. */
  readonly what: string;
  /** How long to wait for a living holder; 30 minutes unless told. */
  readonly waitMs?: number;
  /** Called once when there is somebody to wait for. */
  readonly onWait?: (message: string) => void;
}

/** Who holds a lock. `started` tells a process from a later one with the same id. */
export interface Holder {
  readonly id: string;
  readonly pid: number;
  readonly started: string;
  readonly host: string;
  readonly what: string;
}

export class LockError extends Error {
  readonly code = 'LOCK_TIMEOUT';

  constructor(message: string) {
    super(message);
    this.name = 'LockError';
  }
}

/** When the process was started, in the kernel's own unit; empty where that cannot be read. */
export function processStart(pid: number): string {
  try {
    return startOf(readFileSync(`/proc/${pid}/stat`, 'utf8'));
  } catch {
    return '';
  }
}

/** The start time in a line of `/proc/PID/stat`: its field 22, counted from the program's name in parentheses. */
export function startOf(stat: string): string {
  return stat.includes(')') ? (stat.slice(stat.lastIndexOf(')') + 2).split(' ')[19] ?? '') : '';
}

/** Whether the very process that wrote these two values still runs. */
export function isAlive(pid: number, started: string): boolean {
  if (pid <= 0) return false;
  try {
    process.kill(pid, 0);
  } catch (error) {
    if ((error as NodeJS.ErrnoException).code === 'ESRCH') return false;
  }
  const now = processStart(pid);
  return started === '' || now === '' || now === started;
}

/** Takes the lock, waiting for a living holder and taking over from a dead one. */
export async function acquireLock(path: string, options: LockOptions): Promise<Lock> {
  const deadline = performance.now() + (options.waitMs ?? 30 * 60_000);
  const me: Holder = {
    id: randomUUID(),
    pid: process.pid,
    started: processStart(process.pid),
    host: hostname(),
    what: options.what,
  };
  mkdirSync(dirname(path), { recursive: true });
  for (let told = false; ; ) {
    if (tryCreate(path, me)) return { release: () => releaseIfMine(path, me.id) };
    const holder = readHolder(path);
    if (holder === undefined) continue; // released between our two looks
    if (holder.host === me.host && !isAlive(holder.pid, holder.started)) {
      await takeOver(path, holder, options);
      continue;
    }
    const who = `process ${holder.pid} on ${holder.host} (${holder.what})`;
    if (performance.now() >= deadline)
      throw new LockError(`acquireLock: ${who} still holds ${path}; if that process is gone, delete the file`);
    if (!told) options.onWait?.(`waiting for ${who}`);
    told = true;
    await sleep(100);
  }
}

/** Runs `work` under the lock and gives it back whatever happens. */
export async function withLock<T>(path: string, options: LockOptions, work: () => Promise<T>): Promise<T> {
  const lock = await acquireLock(path, options);
  try {
    return await work();
  } finally {
    lock.release();
  }
}

/** A link is made whole or not at all, so nobody ever reads a half-written lock. */
function tryCreate(path: string, me: Holder): boolean {
  const draft = `${path}.${me.id}`;
  writeFileSync(draft, JSON.stringify(me));
  try {
    linkSync(draft, path);
    return true;
  } catch (error) {
    if ((error as NodeJS.ErrnoException).code === 'EEXIST') return false;
    throw error;
  } finally {
    unlinkSync(draft);
  }
}

function readHolder(path: string): Holder | undefined {
  try {
    return JSON.parse(readFileSync(path, 'utf8')) as Holder;
  } catch (error) {
    if ((error as NodeJS.ErrnoException).code === 'ENOENT') return undefined;
    // Not written by us: nobody can hold it, and nobody could ever release it.
    return { id: 'unreadable', pid: 0, started: 'never', host: hostname(), what: 'unreadable lock' };
  }
}

/**
 * Removes a dead holder's lock. Of those who see the same dead holder only one may do it, or the second would remove
 * the lock that the first has taken meanwhile; so the removal has a lock of its own, named after the dead holder.
 */
async function takeOver(path: string, dead: Holder, options: LockOptions): Promise<void> {
  const guard = await acquireLock(`${path}.${dead.id}.dead`, options);
  try {
    if (readHolder(path)?.id === dead.id) unlinkSync(path);
  } finally {
    guard.release();
  }
}

function releaseIfMine(path: string, id: string): void {
  if (readHolder(path)?.id === id) unlinkSync(path);
}
