/** @file Modules made of modules: Sequential, ModuleList, ModuleDict. */

import { checkIterable, checkObject, checkText, show } from '../../base/checks.ts';
import { TorchError } from '../../base/errors.ts';
import { checkWhole } from '../../base/options.ts';
import { indent } from '../../base/text.ts';
import type { Tensor } from '../../tensor/tensor.ts';
import { type Members, Module } from '../module.ts';

/** Modules by name, in order. */
export type NamedModules =
  | Readonly<Record<string, Module>>
  | ReadonlyMap<string, Module>
  | Iterable<readonly [string, Module]>;

function entriesOf(modules: NamedModules): [string, Module][] {
  checkObject('a container', 'its argument', modules, 'modules by name');
  const list =
    Symbol.iterator in modules
      ? [...(modules as Iterable<readonly [string, Module]>)]
      : Object.entries(modules as Record<string, Module>);
  return list.map((entry) => {
    checkIterable('a container', 'an entry', entry, 'a name and a module');
    const [name, module] = entry;
    checkText('a container', 'a name', name);
    return [name, check('a container', module)];
  });
}

function check(where: string, module: unknown): Module {
  if (module instanceof Module) return module;
  throw new TorchError('BAD_ARGUMENT', `${where} holds modules, got ${module === null ? 'null' : typeof module}`);
}

function position(where: string, index: number, length: number): number {
  // A Symbol cannot be compared with a number.
  const place = Number.isInteger(index) && index < 0 ? index + length : index;
  if (Number.isInteger(place) && place >= 0 && place < length) return place;
  throw new TorchError('INDEX', `${where}: there is no module ${show(index)}: it has ${length}`);
}

/** One module after the other. @example new Sequential(new Linear(4, 8), new ReLU(), new Linear(8, 2)) */
export class Sequential extends Module {
  private steps: [string, Module][];

  /** Modules, or one object (or Map) of modules by name. */
  constructor(...modules: readonly Module[] | readonly [NamedModules]) {
    super();
    const [first] = modules;
    if (modules.length === 1 && !(first instanceof Module)) this.steps = entriesOf(first as NamedModules);
    else this.steps = modules.map((module, i) => [String(i), check('Sequential', module)]);
  }

  override members(): Members {
    return { ...super.members(), children: this.steps };
  }

  forward(input: Tensor): Tensor {
    const { steps } = this;
    let value: unknown = input;
    for (let i = 0; i < steps.length; i++) value = (steps[i]![1] as unknown as Step).forward(value);
    return value as Tensor;
  }

  /** Number of modules. */
  get length(): number {
    return this.steps.length;
  }

  /** The module at a position; negative ones count from the end. */
  at(index: number): Module {
    return this.steps[position('Sequential', index, this.length)]![1];
  }

  /** Replaces the module at a position. */
  set(index: number, module: Module): this {
    this.steps[position('Sequential', index, this.length)]![1] = check('Sequential', module);
    return this;
  }

  /** Adds a module at the end. */
  append(module: Module): this {
    this.steps.push([String(this.length), check('Sequential', module)]);
    return this;
  }

  /** Adds modules at the end. */
  extend(modules: Iterable<Module>): this {
    checkIterable('extend', 'its argument', modules, 'an array of modules');
    for (const module of modules) this.append(module);
    return this;
  }

  /** Adds a module at a position; all are numbered anew. */
  insert(index: number, module: Module): this {
    checkWhole('insert: the position', index, -this.length);
    const all = [...this];
    all.splice(index < 0 ? index + this.length : index, 0, check('Sequential', module));
    this.steps = all.map((one, i) => [String(i), one]);
    return this;
  }

  /** The modules from `start` to `end` (not included) in a Sequential of their own, with their names. */
  slice(start?: number, end?: number): Sequential {
    for (const bound of [start, end])
      if (bound !== undefined) checkWhole('slice: a position', bound, Number.MIN_SAFE_INTEGER);
    return new Sequential(this.steps.slice(start, end));
  }

  *[Symbol.iterator](): IterableIterator<Module> {
    for (const [, module] of this.steps) yield module;
  }
}

interface Step {
  forward(input: unknown): unknown;
}

/** A list of modules that belong to the module that holds it. @example blocks = new ModuleList([new Block(), new Block()]) */
export class ModuleList<T extends Module = Module> extends Module {
  private readonly items: T[];

  constructor(modules: Iterable<T> = []) {
    super();
    checkIterable('ModuleList', 'the argument', modules, 'an array of modules');
    this.items = Array.from(modules, (module) => check('ModuleList', module) as T);
  }

  override members(): Members {
    return { ...super.members(), children: this.items.map((item, i) => [String(i), item]) };
  }

  /** A list has no forward of its own. */
  forward(): never {
    throw new TorchError(
      'NOT_CALLABLE',
      'ModuleList: a list of modules computes nothing by itself; call its modules one by one, or use Sequential',
    );
  }

  /** Number of modules. */
  get length(): number {
    return this.items.length;
  }

  /** The module at a position; negative ones count from the end. */
  at(index: number): T {
    return this.items[position('ModuleList', index, this.length)]!;
  }

  /** Replaces the module at a position. */
  set(index: number, module: T): this {
    this.items[position('ModuleList', index, this.length)] = check('ModuleList', module) as T;
    return this;
  }

  /** Adds a module at the end. */
  append(module: T): this {
    this.items.push(check('ModuleList', module) as T);
    return this;
  }

  /** Same as `append`. */
  push(...modules: T[]): number {
    for (const module of modules) this.append(module);
    return this.length;
  }

  /** Adds modules at the end. */
  extend(modules: Iterable<T>): this {
    for (const module of modules) this.append(module);
    return this;
  }

  /** Adds a module at a position. */
  insert(index: number, module: T): this {
    this.items.splice(index, 0, check('ModuleList', module) as T);
    return this;
  }

  /** Takes the module at a position out. */
  pop(index = -1): T {
    return this.items.splice(position('ModuleList', index, this.length), 1)[0]!;
  }

  /** The modules from `start` to `end` (not included) in a list of their own. */
  slice(start?: number, end?: number): ModuleList<T> {
    return new ModuleList(this.items.slice(start, end));
  }

  map<R>(make: (module: T, index: number) => R): R[] {
    return this.items.map(make);
  }

  [Symbol.iterator](): IterableIterator<T> {
    return this.items[Symbol.iterator]();
  }

  /** Equal neighbours are printed once, with their number. */
  override toString(): string {
    const runs: { text: string; first: number; last: number }[] = [];
    this.items.forEach((item, i) => {
      const text = item.toString();
      const run = runs.at(-1);
      if (run?.text === text) run.last = i;
      else runs.push({ text, first: i, last: i });
    });
    if (runs.length === 0) return `${this.getName()}()`;
    const lines = runs.map(({ text, first, last }) =>
      indent(first === last ? `(${first}): ${text}` : `(${first}-${last}): ${last - first + 1} x ${text}`, 2),
    );
    return `${this.getName()}(\n  ${lines.join('\n  ')}\n)`;
  }
}

/** Modules by name that belong to the module that holds them. @example heads = new ModuleDict({ a: new Linear(4, 1) }) */
export class ModuleDict<T extends Module = Module> extends Module {
  private readonly items: Map<string, T>;

  constructor(modules: Readonly<Record<string, T>> | Iterable<readonly [string, T]> = {}) {
    super();
    this.items = new Map(entriesOf(modules) as [string, T][]);
  }

  override members(): Members {
    return { ...super.members(), children: [...this.items] };
  }

  /** A dictionary has no forward of its own. */
  forward(): never {
    throw new TorchError(
      'NOT_CALLABLE',
      'ModuleDict: modules by name compute nothing by themselves; call one of them, as in dict.get(name).forward(x)',
    );
  }

  /** Number of modules. */
  get size(): number {
    return this.items.size;
  }

  /** The module of that name. */
  get(name: string): T {
    const found = this.items.get(name);
    if (found === undefined)
      throw new TorchError(
        'NOT_FOUND',
        `ModuleDict: there is no module '${name}'; there are ${[...this.items.keys()].join(', ')}`,
      );
    return found;
  }

  has(name: string): boolean {
    return this.items.has(name);
  }

  /** Adds or replaces a module. */
  set(name: string, module: T): this {
    if (name === '' || name.includes('.'))
      throw new TorchError('BAD_ARGUMENT', `ModuleDict: the name '${name}' must not be empty and must not contain '.'`);
    this.items.set(name, check('ModuleDict', module) as T);
    return this;
  }

  /** Adds or replaces modules. */
  update(modules: Readonly<Record<string, T>> | Iterable<readonly [string, T]>): this {
    for (const [name, module] of entriesOf(modules)) this.set(name, module as T);
    return this;
  }

  delete(name: string): boolean {
    return this.items.delete(name);
  }

  keys(): IterableIterator<string> {
    return this.items.keys();
  }

  values(): IterableIterator<T> {
    return this.items.values();
  }

  entries(): IterableIterator<[string, T]> {
    return this.items.entries();
  }

  [Symbol.iterator](): IterableIterator<[string, T]> {
    return this.items.entries();
  }
}
