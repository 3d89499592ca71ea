/** @file Which modules are running while a model is traced: their `forward` is watched for the time of the trace. */
import type { nn } from '@pipewright/torch';
import type { ModuleCall } from '../graph/graph.ts';

/** Hears when a module begins and ends. */
export interface ModuleWatcher {
  enter(module: nn.Module, path: string): void;
  leave(module: nn.Module, path: string): void;
}

/** The module calls that are open, outermost first. Lists are shared: the same calls give the same list. */
export class ModuleStack {
  private calls: readonly ModuleCall[] = [];
  private readonly outer: (readonly ModuleCall[])[] = [];
  private readonly counts = new Map<string, number>();

  /** What a node made now came from. */
  get current(): readonly ModuleCall[] {
    return this.calls;
  }

  /** Opens a call. The second call of a module is `name@1`, the third `name@2`. */
  push(path: string, type: string): void {
    const count = this.counts.get(path) ?? 0;
    this.counts.set(path, count + 1);
    this.outer.push(this.calls);
    this.calls = [...this.calls, { path: count === 0 ? path : `${path}@${count}`, type }];
  }

  /** Closes the innermost call. */
  pop(): void {
    this.calls = this.outer.pop() ?? [];
  }
}

/** Runs `body` while the watcher hears of every call of a module; afterwards the modules are as they were. */
export function watchModules<T>(root: nn.Module, watcher: ModuleWatcher, body: () => T): T {
  const restore: (() => void)[] = [];
  try {
    for (const [path, module] of root.namedModules()) restore.push(watchOne(module, path, watcher));
    return body();
  } finally {
    for (const undo of restore) undo();
  }
}

function watchOne(module: nn.Module, path: string, watcher: ModuleWatcher): () => void {
  const own = Object.getOwnPropertyDescriptor(module, 'forward');
  const forward = module.forward as (...inputs: unknown[]) => unknown;
  const value = (...inputs: unknown[]): unknown => {
    watcher.enter(module, path);
    try {
      return forward.apply(module, inputs);
    } finally {
      watcher.leave(module, path);
    }
  };
  Object.defineProperty(module, 'forward', { value, writable: true, enumerable: false, configurable: true });
  return () => {
    if (own === undefined) Reflect.deleteProperty(module, 'forward');
    else Object.defineProperty(module, 'forward', own);
  };
}
