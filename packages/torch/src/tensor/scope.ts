/**
 * @file Who owns a tensor's memory. A tensor made inside `scope` is freed at its end unless it is returned or kept;
 * one made outside lives until `dispose`, or until the garbage collector finds it, which `memory-pressure.ts` makes it do
 * where memory grows.
 */

import { native } from '../addon/addon.ts';
import { checkFunction } from '../base/checks.ts';
import { TorchError } from '../base/errors.ts';
import { relieveMemory } from './memory-pressure.ts';

/** What a scope can own: a handle, zero once released, and the scope that will release it. */
export interface Owned {
  h: number;
  owner: Scope | null;
  /** How a handle that is not a tensor's is given back. */
  readonly freeHandle?: (handle: number) => void;
}

const OWNED = Symbol('owned');

/** Marks a class whose objects scopes can own: a mark rather than a base class, for tensors are made all the time. */
export function markOwned(made: { readonly prototype: Owned }): void {
  Object.defineProperty(made.prototype, OWNED, { value: true });
}

let current: Scope | null = null;
/** After V8's own collections, which leave this object behind, tensors that are gone are freed too. */
const collected = new FinalizationRegistry<undefined>(() => {
  native.sweepTracked();
  collected.register({}, undefined);
});
collected.register({}, undefined);
const otherNet = new FinalizationRegistry<[handle: number, free: (handle: number) => void]>(([handle, free]) =>
  free(handle),
);
let batch = new Int32Array(1024);
const nothing: Owned[] = []; // what a closed scope holds

/** Owns the tensors made while it is the innermost open scope. Use `scope(() => ...)`, or `using s = new Scope()`. */
export class Scope {
  private items: Owned[] = [];
  private readonly parent: Scope | null = current;
  private open = true;

  constructor() {
    current = this;
  }

  /** Puts a tensor under this scope's care. */
  add(item: Owned): void {
    if (item.owner === null) leaveCollector(item);
    this.take(item);
  }

  /** As `add`, for one that the garbage collector does not look after. */
  take(item: Owned): void {
    item.owner = this;
    this.items.push(item);
  }

  /** Number of tensors under this scope's care, kept and disposed ones included. */
  get size(): number {
    return this.items.length;
  }

  /** Whether a tensor is under the care of this scope, or of one that was opened inside it. */
  has(item: Owned): boolean {
    for (let at = item.owner; at !== null; at = at.parent) if (at === this) return true;
    return false;
  }

  /** Hands a tensor to the scope around this one. */
  release(item: Owned): void {
    if (item.h === 0 || item.owner !== this) return;
    if (this.parent !== null) this.parent.take(item);
    else unowned(item);
  }

  /** Frees what is still under this scope's care. */
  close(): void {
    if (!this.open) return;
    if (current !== this)
      throw new TorchError('SCOPE', 'scopes close in the reverse order of opening: an inner scope is still open');
    this.open = false;
    current = this.parent;
    const items = this.items;
    if (items.length > batch.length) batch = new Int32Array(items.length * 2);
    let count = 0;
    for (let i = 0; i < items.length; i++) {
      const item = items[i]!;
      if (item.owner !== this || item.h === 0) continue;
      if (item.freeHandle === undefined) batch[count++] = item.h;
      else item.freeHandle(item.h);
      item.h = 0;
    }
    this.items = nothing;
    if (count > 0) native.releaseMany(batch, count);
  }

  [Symbol.dispose](): void {
    this.close();
  }
}

/** Takes charge of a new tensor: the innermost scope, or the garbage collector where there is none. */
export function own(item: Owned): void {
  if (current !== null) current.take(item);
  else unowned(item);
}

function unowned(item: Owned): void {
  item.owner = null;
  if (item.freeHandle === undefined) {
    if (native.track(item, item.h)) relieveMemory();
  } else otherNet.register(item, [item.h, item.freeHandle], item);
}

/** The garbage collector looks after a tensor no longer. */
export function leaveCollector(item: Owned): void {
  if (item.freeHandle === undefined) native.untrack(item.h);
  else otherNet.unregister(item);
}

/** Frees a tensor now. Freeing it twice does nothing. */
export function disposeOwned(item: Owned): void {
  if (item.h === 0) return;
  const handle = item.h;
  item.h = 0;
  if (item.freeHandle !== undefined) {
    if (item.owner === null) otherNet.unregister(item);
    item.freeHandle(handle);
  } else if (item.owner === null) native.releaseTracked(handle);
  else native.release(handle);
}

/**
 * Runs `body` and frees every tensor made inside, except those in its result and those kept.
 *
 * @example const loss = scope(() => model.forward(x).sub(y).square().mean())
 */
export function scope<T>(body: () => T): T {
  checkFunction('scope', body);
  const inner = new Scope();
  try {
    const result = body();
    if (result instanceof Promise) {
      result.catch(() => undefined);
      throw new TorchError(
        'SCOPE',
        'scope: the function is asynchronous, so its tensors would be freed too early; await outside, or open one by hand with `using s = new Scope()`',
      );
    }
    keepAll(result, inner);
    return result;
  } finally {
    inner.close();
  }
}

/**
 * Keeps a tensor (or every tensor in a structure) beyond the innermost scope: it moves to the scope around it.
 *
 * @example scope(() => { state.hidden = keep(step(x)); })
 */
export function keep<T>(value: T): T {
  if (current !== null) keepAll(value, current);
  return value;
}

/** Runs `body` with no scope in charge: tensors made inside live until disposed of. */
export function unscoped<T>(body: () => T): T {
  checkFunction('unscoped', body);
  const before = current;
  current = null;
  try {
    return body();
  } finally {
    current = before;
  }
}

/** Number of tensor handles alive in this thread: what a leak test compares. */
export function liveTensors(): number {
  return native.live();
}

/**
 * Bytes of CPU memory that this thread has taken for tensors, less those that it has given back; what autograd keeps counts.
 *
 * @example const before = liveBytes(); const y = model.forward(x); console.log(liveBytes() - before)
 */
export function liveBytes(): number {
  return native.liveBytes();
}

/** Whether nobody else, autograd included, holds a tensor or its memory: disposing of it frees it. @example holdsAlone(x) */
export function holdsAlone(tensor: { readonly handle: number }): boolean {
  return native.holdsAlone(tensor.handle);
}

function isOwned(value: unknown): value is Owned {
  return (value as { [OWNED]?: true } | null | undefined)?.[OWNED] === true;
}

function keepAll(value: unknown, from: Scope, seen?: Set<object>): void {
  if (typeof value !== 'object' || value === null) return;
  // Arrays first: looking for the mark of a tensor is slow on objects of many kinds.
  if (Array.isArray(value)) {
    if (value.every(isOwned)) {
      for (const item of value) if (item !== undefined) from.release(item); // places of an array that were never filled
      return;
    }
  } else if (isOwned(value)) {
    from.release(value);
    return;
  } else if (ArrayBuffer.isView(value)) return;
  const visited = seen ?? new Set();
  if (visited.has(value)) return;
  visited.add(value);
  if (Array.isArray(value)) for (const item of value) keepAll(item, from, visited);
  else if (value instanceof Map || value instanceof Set)
    for (const item of value.values()) keepAll(item, from, visited);
  else for (const item of Object.values(value)) keepAll(item, from, visited);
}
