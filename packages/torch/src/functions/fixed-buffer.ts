/** @file Buffers of JavaScript whose memory a tensor shares: they stay where they are. */
import { types } from 'node:util';
import * as threads from 'node:worker_threads';
import { TorchError } from '../base/errors.ts';

/** A buffer that newer versions of Node can resize or transfer by methods of its own. */
interface MovableBuffer {
  readonly resizable?: boolean;
  readonly detached?: boolean;
  transfer?: (length?: number) => unknown;
  transferToFixedLength?: (length?: number) => unknown;
}
type Move = (this: unknown, ...args: unknown[]) => unknown;

/** Refuses a buffer whose memory may go away; that of WebAssembly is refused by the addon. */
export function checkShareable(buffer: ArrayBufferLike): void {
  if (types.isSharedArrayBuffer(buffer)) return; // never moves
  const movable: MovableBuffer = buffer as MovableBuffer;
  if (movable.resizable === true) {
    throw new TorchError(
      'NOT_SHAREABLE',
      'fromTypedArray: a resizable ArrayBuffer cannot be shared, its memory may go away; leave out share, which copies the data',
    );
  }
  if (movable.detached === true)
    throw new TorchError('NOT_SHAREABLE', 'fromTypedArray: the buffer was transferred, its memory is elsewhere');
  guardPrototypes(buffer);
}

/**
 * Makes sure that a buffer which a tensor shares stays where it is: it can no longer be transferred to another thread
 * or buffer (`postMessage` and `structuredClone` copy it or refuse). Node itself moves it all the same where a stream
 * reads into it; the addon holds the memory, so that it stays alive.
 */
export function fixInPlace(buffer: ArrayBufferLike): void {
  if (types.isSharedArrayBuffer(buffer) || fixed.has(buffer)) return;
  fixed.add(buffer);
  if (!isMarked(buffer)) threads.markAsUntransferable(buffer);
  const movable: MovableBuffer = buffer as MovableBuffer;
  for (const name of moves) {
    // Where the buffer is frozen, the guard of its prototype or Node itself refuses.
    if (typeof movable[name] === 'function' && !Object.hasOwn(buffer, name))
      Reflect.defineProperty(buffer, name, { value: () => refuse(name) });
  }
}

const moves = ['transfer', 'transferToFixedLength'] as const;
const fixed = new WeakSet<object>();
const safe = new WeakSet<object>(); // methods that refuse a buffer of `fixed`

/** Node marks buffers over an addon's memory itself; marking those again makes its newer versions abort at the end. */
function isMarked(buffer: ArrayBuffer): boolean {
  const { isMarkedAsUntransferable } = threads as { isMarkedAsUntransferable?: (value: object) => boolean };
  return isMarkedAsUntransferable?.(buffer) === true;
}

/**
 * Node 21 to 23 transfer marked buffers by the methods of the prototype, and to another length by moving their memory,
 * which nothing holds in place. There these methods look first whether a tensor shares the buffer: those of this context
 * and, for a buffer of another context of `node:vm`, those of that one. V8's own way to refuse, a detach key, makes
 * these versions end the process.
 */
function guardPrototypes(buffer: ArrayBuffer): void {
  guardPrototype(ArrayBuffer.prototype);
  for (let at: unknown = Object.getPrototypeOf(buffer); at !== null; at = Object.getPrototypeOf(at))
    guardPrototype(at as object);
}

function guardPrototype(prototype: object): void {
  for (const name of moves) {
    const original: unknown = Object.getOwnPropertyDescriptor(prototype, name)?.value;
    if (typeof original !== 'function' || safe.has(original)) continue;
    if (refusesMarked(original as Move)) {
      safe.add(original);
      continue;
    }
    const guard = {
      // A method, as the original is: no prototype of its own, not a constructor.
      [name](this: unknown, ...args: unknown[]): unknown {
        if (fixed.has(this as object)) refuse(name);
        return Reflect.apply(original, this, args);
      },
    }[name] as Move;
    safe.add(guard);
    Object.defineProperty(guard, 'length', { value: original.length, configurable: true });
    if (!Reflect.defineProperty(prototype, name, { value: guard, writable: true, configurable: true })) {
      throw new TorchError(
        'NOT_SHAREABLE',
        `fromTypedArray: this version of Node moves the memory of an ArrayBuffer by ${name}, and the method cannot be ` +
          'guarded because ArrayBuffer.prototype is frozen; leave out share, which copies the data, or use Node 24',
      );
    }
  }
}

function refusesMarked(move: Move): boolean {
  const probe = new ArrayBuffer(8);
  threads.markAsUntransferable(probe);
  try {
    move.call(probe);
    return false;
  } catch {
    return true;
  }
}

function refuse(name: string): never {
  throw new TorchError(
    'NOT_SHAREABLE',
    `${name}: a tensor shares this buffer's memory (fromTypedArray with share); copy it with slice() instead`,
  );
}
