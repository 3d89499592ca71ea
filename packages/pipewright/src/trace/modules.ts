/** @file Which modules are running while a model is traced: their `forward` is watched for the time of the trace. */
import { nn } from '@pipewright/torch';
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

/**
 * The qualified names of modules as they are called. A module that is held under several names goes, within one call of
 * the module that holds it, by the first of them at its first call, by the second at its second, and so on.
 */
class CallPaths {
  private readonly names: ReadonlyMap<nn.Module, readonly string[]>;
  /** Names of lists and dictionaries of modules, which are never called themselves. */
  private readonly lists: ReadonlySet<string>;
  private readonly open: { readonly path: string; readonly calls: Map<nn.Module, number> }[] = [];

  constructor(root: nn.Module) {
    const names = new Map<nn.Module, string[]>();
    const lists = new Set<string>();
    for (const [path, module] of root.namedModules({ removeDuplicate: false })) {
      names.set(module, [...(names.get(module) ?? []), path]);
      if (module instanceof nn.ModuleList || module instanceof nn.ModuleDict) lists.add(path);
    }
    this.names = names;
    this.lists = lists;
  }

  enter(module: nn.Module): string {
    const path = this.pathOf(module);
    this.open.push({ path, calls: new Map() });
    return path;
  }

  leave(): void {
    this.open.pop();
  }

  private pathOf(module: nn.Module): string {
    const all = this.names.get(module) ?? [''];
    if (all.length === 1) return all[0]!;
    for (const { path, calls } of this.open.toReversed()) {
      const inside = all.filter((name) => this.isHeldBy(path, name));
      if (inside.length === 0) continue;
      const count = calls.get(module) ?? 0;
      calls.set(module, count + 1);
      return inside[count % inside.length]!;
    }
    return all[0]!;
  }

  /** Whether a module holds another under a name itself, or in its lists. */
  private isHeldBy(holder: string, name: string): boolean {
    for (let at = name; at !== ''; ) {
      at = at.slice(0, Math.max(0, at.lastIndexOf('.')));
      if (at === holder) return true;
      if (!this.lists.has(at)) return false;
    }
    return false;
  }
}

/** Runs `body` while the watcher hears of every call of a module; afterwards the modules are as they were. */
export function watchModules<T>(root: nn.Module, watcher: ModuleWatcher, body: () => T): T {
  const restore: (() => void)[] = [];
  const paths = new CallPaths(root);
  try {
    for (const module of root.modules()) restore.push(watchOne(module, paths, watcher));
    return body();
  } finally {
    for (const undo of restore) undo();
  }
}

function watchOne(module: nn.Module, paths: CallPaths, watcher: ModuleWatcher): () => void {
  const own = Object.getOwnPropertyDescriptor(module, 'forward');
  const forward = module.forward as (...inputs: unknown[]) => unknown;
  const value = (...inputs: unknown[]): unknown => {
    const path = paths.enter(module);
    watcher.enter(module, path);
    try {
      return forward.apply(module, inputs);
    } finally {
      watcher.leave(module, path);
      paths.leave();
    }
  };
  Object.defineProperty(module, 'forward', { value, writable: true, enumerable: false, configurable: true });
  return () => {
    if (own === undefined) Reflect.deleteProperty(module, 'forward');
    else Object.defineProperty(module, 'forward', own);
  };
}
