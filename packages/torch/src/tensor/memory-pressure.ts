/**
 * @file Memory of tensors that no scope owns. V8 does not see their bytes and runs no finalizers inside a synchronous
 * loop, so a loop without `scope` would fill all memory: where it has grown much, a collection is forced here, what it
 * found is freed, and the user is told once, with the line, that a scope would be better.
 */
import { setFlagsFromString } from 'node:v8';
import { runInNewContext } from 'node:vm';
import { native } from '../addon/addon.ts';
import { TorchError } from '../base/errors.ts';
import { torchSourceRoot } from './recorder.ts';

type Collect = (options?: { type: 'minor' }) => void;

let collect: Collect | undefined;
let hasWarned = false;
/** Garbage of this size is worth a word. */
const NOTABLE = 32 * 2 ** 20;

/** Collects, and frees the tensors whose objects are gone: first those that became garbage lately, then all. */
export function relieveMemory(): void {
  collect ??= findCollect();
  const before = native.trackedBytes();
  collect({ type: 'minor' });
  native.sweepTracked();
  if (native.isMemoryPressed()) {
    collect();
    native.sweepTracked();
  }
  native.settleTracked();
  const freed = before - native.trackedBytes();
  if (freed >= NOTABLE && !hasWarned) warn(freed);
}

/** How often the flag is set anew before giving up. */
const MOST_ATTEMPTS = 10_000;

/**
 * V8's `gc`, which is there only where it is asked for; the flag is set for a moment. It is one for all threads of the process:
 * another thread that does the same may take it back too early.
 */
export function findCollect(): Collect {
  const given = (globalThis as { gc?: Collect }).gc;
  if (given !== undefined) return given;
  try {
    for (let attempt = 0; attempt < MOST_ATTEMPTS; attempt++) {
      setFlagsFromString('--expose-gc');
      const found = runInNewContext('globalThis.gc') as Collect | undefined;
      if (found !== undefined) return found;
    }
  } finally {
    setFlagsFromString('--no-expose-gc');
  }
  throw new TorchError(
    'OUT_OF_MEMORY',
    'this Node has no garbage collector that can be called; start it with --expose-gc',
  );
}

function warn(freed: number): void {
  hasWarned = true;
  const line = userLine();
  process.emitWarning(
    `tensors made outside of scope() were freed by the garbage collector: ${Math.round(freed / 2 ** 20)} MB at once` +
      `${line === null ? '' : `, noticed at ${line}`}. Put the step of a loop into scope(() => { ... }): it frees them at once and is faster.`,
    { type: 'MemoryWarning', code: 'PIPEWRIGHT_NO_SCOPE' },
  );
}

/** The innermost place in the stack that belongs neither to this project nor to Node: `/home/me/train.ts:12:7`. */
function userLine(): string | null {
  const limit = Error.stackTraceLimit;
  Error.stackTraceLimit = 50;
  const stack = new Error().stack ?? '';
  Error.stackTraceLimit = limit;
  const packagesRoot = new URL('../../', torchSourceRoot).href;
  for (const frame of stack.split('\n').slice(1)) {
    const place = /\(?((?:file:\/\/|node:|\/|[A-Za-z]:\\)[^()]*:\d+:\d+)\)?$/.exec(frame.trim())?.[1];
    if (place === undefined || place.startsWith('node:') || isOurs(place, packagesRoot)) continue;
    return place.startsWith('file://') ? decodeURI(place.slice('file://'.length)) : place;
  }
  return null;
}

/** Whether a place is in one of our packages, in a workspace or installed; tests beside the sources are users. */
function isOurs(place: string, packagesRoot: string): boolean {
  const path = place.replace(/^file:\/\//, '');
  const inside = path.startsWith(packagesRoot.replace(/^file:\/\//, '')) ? path.slice(packagesRoot.length - 7) : '';
  if (/^[^/]+\/(src|dist)\//.test(inside)) return !/\.test\.[jt]s:/.test(inside);
  return /\/node_modules\/(@pipewright\/[^/]+|pipewright)\//.test(path);
}
