/**
 * @file TypeScript functions that the engine calls during backward. Each is known to the addon by a number; when the
 * last owner on the native side goes (a graph, a hook), it leaves the number to be collected here.
 */
import { native } from '../addon/addon.ts';
import { TorchError } from '../base/errors.ts';
import { Scope } from '../tensor/scope.ts';
import { Tensor } from '../tensor/tensor.ts';
import { engine, type Handle } from './native.ts';

/** Takes tensors (null where there is none), returns tensors or nothing; `extra` depends on the kind of callback. */
export type Callback = (tensors: (Tensor | null)[], extra: number) => readonly (Tensor | null)[] | undefined;

interface Entry {
  readonly run: Callback;
  readonly end: (() => void) | undefined;
}

const entries = new Map<number, Entry>();
const values = new Map<number, { readonly value: unknown; readonly end: () => void }>();
let nextId = 1;

engine.setCallbackRunner((id, extra, handles) => {
  const entry = entries.get(id);
  if (entry === undefined) throw new TorchError('INTERNAL', `internal: there is no callback ${id}`);
  const inner = new Scope();
  try {
    const tensors = handles.map((handle) => (handle === null ? null : Tensor.adopt(handle)));
    const result = entry.run(tensors, extra);
    // Handles of their own: the addon takes them, this scope frees the rest.
    return result?.map((item): Handle => (item === null ? null : native.duplicate(item.handle)));
  } finally {
    inner.close();
  }
});

/** Makes a function known to the engine; `end` runs once nobody can call it any more. */
export function addCallback(run: Callback, end?: () => void): number {
  collectCallbacks();
  const id = nextId++;
  entries.set(id, { run, end });
  return id;
}

/** Forgets a function that the addon never got to know. */
export function dropCallback(id: number): void {
  const entry = entries.get(id);
  entries.delete(id);
  entry?.end?.();
}

/** Keeps a value for the addon under its number, until the number is buried. */
export function putValue(id: number, value: unknown, end: () => void): void {
  values.set(id, { value, end });
}

/** A value put before. */
export function takeValue(id: number): unknown {
  const found = values.get(id);
  if (found === undefined) throw new TorchError('INTERNAL', `internal: there is no packed value ${id}`);
  return found.value;
}

/** Forgets the functions and values that nobody can reach any more. */
export function collectCallbacks(): void {
  const buried = engine.takeBuried();
  if (buried === undefined) return;
  for (const id of buried) {
    const value = values.get(id);
    values.delete(id);
    value?.end();
    dropCallback(id);
  }
}

/** How many functions and values the engine may still ask for: what a leak test compares. */
export function liveCallbacks(): number {
  collectCallbacks();
  return entries.size + values.size;
}
