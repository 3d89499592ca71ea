/**
 * @file The base of all modules. Parameters, buffers and modules are plain fields: they are found by looking at the
 * module's own properties when somebody asks, so that assigning and calling cost nothing. Fields that begin with # and
 * plain arrays are not looked into (use ModuleList). A field's name is written in snake case (`selfAttn` is
 * `self_attn`), as in PyTorch, so state dicts fit both ways; names given as strings are kept.
 */

import { native } from '../addon/addon.ts';
import { noGrad } from '../autograd/modes.ts';
import { checkFunction, checkGiven, checkText, show } from '../base/checks.ts';
import { TorchError } from '../base/errors.ts';
import { checkWhole } from '../base/options.ts';
import { emptyLike } from '../generated/functions.ts';
import type { Device } from '../tensor/device.ts';
import { bfloat16, DType, dtypes, float16, float32, float64, toDType } from '../tensor/dtype.ts';
import '../functions/convert.ts';
import { indent } from '../base/text.ts';
import type { ToOptions } from '../functions/convert.ts';
import { disposeOwned, scope } from '../tensor/scope.ts';
import { Tensor } from '../tensor/tensor.ts';
import type { DTypeLike } from '../tensor/types.ts';
import {
  addHook,
  type BackwardHook,
  type BackwardPreHook,
  copyHooks,
  type ForwardHook,
  type ForwardPreHook,
  type HookHandle,
  type Hooks,
} from './hooks.ts';
import { Buffer, Parameter } from './parameter.ts';
import { refusePrivateFields } from './private-fields.ts';
import {
  collectState,
  type LoadOptions,
  type LoadResult,
  loadState,
  type StateDict,
  type StateSource,
} from './state-dict.ts';

/** What a module is made of, by name and in the order of definition. */
export interface Members {
  readonly parameters: readonly (readonly [string, Parameter])[];
  readonly buffers: readonly (readonly [string, Buffer])[];
  readonly children: readonly (readonly [string, Module])[];
}

/** Whether to go into submodules, what to put before names, and whether to name a shared tensor once only. */
export interface WalkOptions {
  recurse?: boolean | undefined;
  prefix?: string | undefined;
  removeDuplicate?: boolean | undefined;
}

/** A module that takes one tensor and gives one. */
export type TensorModule = Module & { forward(input: Tensor): Tensor };

/**
 * A piece of a model. Define fields and `forward`; calling `forward` also runs the hooks, if there are any.
 *
 * @example class Net extends Module { fc = new Linear(4, 2); forward(x: Tensor) { return this.fc.forward(x).relu(); } }
 */
export abstract class Module {
  /** Whether layers such as Dropout and BatchNorm behave as in training. Use `train()` and `eval()`. */
  training = true;
  /** Names that were given as strings, and how many fields there were before each. */
  private exactNames: Map<string, number> | null = null;
  private hooks: Hooks | null = null;

  /** What the module computes. */
  abstract forward(...inputs: never[]): unknown;

  // --- members -----------------------------------------------------------------------------------------------------

  /** Own parameters, buffers and children. Containers override it. */
  members(): Members {
    const parameters: [string, Parameter][] = [];
    const buffers: [string, Buffer][] = [];
    const children: [string, Module][] = [];
    for (const [field, value] of this.fields()) {
      if (typeof value !== 'object' || value === null) continue;
      if (value instanceof Parameter) parameters.push([this.nameOf(field), value]);
      else if (value instanceof Buffer) buffers.push([this.nameOf(field), value]);
      else if (value instanceof Module) children.push([this.nameOf(field), value]);
    }
    return { parameters, buffers, children };
  }

  /** Own fields in the order in which they were made: JavaScript lists those named by whole numbers first. */
  private fields(): [string, unknown][] {
    const all = Object.entries(this) as [string, unknown][];
    const places = this.exactNames;
    if (places === null || !isNumber(all[0]![0])) return all;
    const placeOf = ([name]: [string, unknown]): number => places.get(name) ?? 0;
    const fields = all.filter(([name]) => !isNumber(name));
    const numbered = all.filter(([name]) => isNumber(name)).sort((a, b) => placeOf(a) - placeOf(b));
    for (const field of numbered) fields.splice(placeOf(field), 0, field);
    return fields;
  }

  private nameOf(field: string): string {
    return this.exactNames?.has(field) === true ? field : snakeCase(field);
  }

  /** All modules with their names, this one first under the name ''. A module used twice is named once. */
  namedModules(options?: Omit<WalkOptions, 'recurse'>): [string, Module][] {
    const found: [string, Module][] = [];
    const seen = new Set<Module>();
    const walk = (module: Module, name: string): void => {
      if (options?.removeDuplicate !== false && seen.has(module)) return;
      seen.add(module);
      found.push([name, module]);
      for (const [key, child] of module.members().children) walk(child, join(name, key));
    };
    walk(this, options?.prefix ?? '');
    return found;
  }

  /** All modules, this one first. */
  modules(): Module[] {
    return this.namedModules().map(([, module]) => module);
  }

  /** The modules directly inside, each once. */
  namedChildren(): [string, Module][] {
    const seen = new Set<Module>();
    return this.members().children.filter(([, child]) => !seen.has(child) && seen.add(child)) as [string, Module][];
  }

  /** The modules directly inside. */
  children(): Module[] {
    return this.namedChildren().map(([, child]) => child);
  }

  /** All parameters with their names. @example for (const [name, p] of model.namedParameters()) console.log(name, p.shape) */
  namedParameters(options?: WalkOptions): [string, Parameter][] {
    return this.namedTensors((members) => members.parameters, options);
  }

  /** All parameters, each once: what an optimizer takes. */
  parameters(options?: Pick<WalkOptions, 'recurse'>): Parameter[] {
    return this.namedParameters(options).map(([, parameter]) => parameter);
  }

  /** All buffers with their names. */
  namedBuffers(options?: WalkOptions): [string, Buffer][] {
    return this.namedTensors((members) => members.buffers, options);
  }

  /** All buffers, each once. */
  buffers(options?: Pick<WalkOptions, 'recurse'>): Buffer[] {
    return this.namedBuffers(options).map(([, buffer]) => buffer);
  }

  private namedTensors<T extends Tensor>(
    pick: (members: Members) => readonly (readonly [string, T])[],
    options?: WalkOptions,
  ): [string, T][] {
    const found: [string, T][] = [];
    const seen = new Set<object>();
    const keepsDuplicates = options?.removeDuplicate === false;
    const walk = (module: Module, prefix: string): void => {
      if (!keepsDuplicates && seen.has(module)) return;
      seen.add(module);
      const members = module.members();
      for (const [key, tensor] of pick(members)) {
        if (!keepsDuplicates && seen.has(tensor)) continue;
        seen.add(tensor);
        found.push([join(prefix, key), tensor]);
      }
      if (options?.recurse !== false) for (const [key, child] of members.children) walk(child, join(prefix, key));
    };
    walk(this, options?.prefix ?? '');
    return found;
  }

  /** The module of that name. @example model.getSubmodule('encoder.layers.0') */
  getSubmodule(name: string): Module {
    checkText('getSubmodule', 'the name', name);
    let module: Module = this;
    for (const part of name === '' ? [] : name.split('.')) {
      const inside = module.members().children;
      const found =
        inside.find(([key]) => key === part) ?? inside.find(([, child]) => child === Reflect.get(module, part));
      if (found === undefined)
        throw notFound(
          this,
          'submodule',
          name,
          inside.map(([key]) => key),
        );
      module = found[1];
    }
    return module;
  }

  /** The parameter of that name. @example model.getParameter('fc.weight') */
  getParameter(name: string): Parameter {
    return this.getTensor(name, 'parameter', (members) => members.parameters);
  }

  /** The buffer of that name. */
  getBuffer(name: string): Buffer {
    return this.getTensor(name, 'buffer', (members) => members.buffers);
  }

  private getTensor<T extends Tensor>(
    name: string,
    what: string,
    pick: (members: Members) => readonly (readonly [string, T])[],
  ): T {
    checkText(`get${what === 'buffer' ? 'Buffer' : 'Parameter'}`, 'the name', name);
    const dot = name.lastIndexOf('.');
    const list = pick(this.getSubmodule(name.slice(0, Math.max(0, dot))).members());
    const found = list.find(([key]) => key === name.slice(dot + 1));
    if (found === undefined)
      throw notFound(
        this,
        what,
        name,
        list.map(([key]) => key),
      );
    return found[1];
  }

  /** Registers a parameter under a name that is kept as it is. Same as assigning a field, for computed names. */
  registerParameter(name: string, parameter: Parameter | null): void {
    if (parameter !== null && !(parameter instanceof Parameter))
      throw new TorchError(
        'BAD_ARGUMENT',
        `registerParameter: ${show(name)} is not a Parameter; wrap the tensor: new Parameter(tensor)`,
      );
    this.register('registerParameter', name, parameter);
  }

  /** Registers a buffer under a name that is kept as it is. @example this.registerBuffer('mask', mask, { persistent: false }) */
  registerBuffer(name: string, tensor: Tensor | null, options?: { persistent?: boolean | undefined }): void {
    this.register('registerBuffer', name, tensor === null ? null : new Buffer(tensor, options));
  }

  /** Registers a module under a name that is kept as it is. Same as assigning a field, for computed names. */
  addModule(name: string, module: Module | null): void {
    if (module !== null && !(module instanceof Module))
      throw new TorchError('BAD_ARGUMENT', `addModule: ${show(name)} is not a Module`);
    this.register('addModule', name, module);
  }

  /** Same as `addModule`. */
  registerModule(name: string, module: Module | null): void {
    this.addModule(name, module);
  }

  private register(where: string, name: string, value: Tensor | Module | null): void {
    checkText(where, 'the name', name);
    if (name === '' || name.includes('.'))
      throw new TorchError('BAD_ARGUMENT', `${where}: the name '${name}' must not be empty and must not contain '.'`);
    if (name in this && this.exactNames?.has(name) !== true)
      throw new TorchError(
        'BAD_ARGUMENT',
        `${where}: '${name}' is already a member of ${this.getName()}; choose another name`,
      );
    this.exactNames ??= new Map();
    if (!this.exactNames.has(name)) this.exactNames.set(name, Object.keys(this).length);
    Object.defineProperty(this, name, { value, writable: true, enumerable: true, configurable: true });
  }

  // --- state -------------------------------------------------------------------------------------------------------

  /** Parameters and persistent buffers by name, sharing memory with the module. @example saveSafetensors(path, model.stateDict()) */
  stateDict(options?: { prefix?: string | undefined; keepVars?: boolean | undefined }): StateDict {
    return collectState(this, options?.prefix ?? '', options?.keepVars ?? false);
  }

  /**
   * Copies values into parameters and buffers. With `strict` (the default) missing and unexpected names are an error;
   * with `assign` the tensors given become the module's own memory, without a copy.
   *
   * @example model.loadStateDict(loadSafetensors('model.safetensors'))
   */
  loadStateDict(source: StateSource, options?: LoadOptions): LoadResult {
    return loadState(this, source, options);
  }

  /** Runs a function on every module, children first. @example model.apply((m) => { if (m instanceof Linear) init.zeros_(m.weight); }) */
  apply(visit: (module: Module) => void): this {
    checkFunction('apply', visit);
    for (const child of this.children()) child.apply(visit);
    visit(this);
    return this;
  }

  /** Switches training behaviour on (or off) here and in all modules inside. */
  train(mode = true): this {
    checkGiven('train', typeof mode === 'boolean', ['the mode', mode], 'true or false');
    this.training = mode;
    for (const [, child] of this.members().children) child.train(mode);
    return this;
  }

  /** Switches training behaviour off. */
  eval(): this {
    return this.train(false);
  }

  /** Switches gradients of all parameters on or off. */
  requiresGrad_(on = true): this {
    for (const parameter of this.parameters()) parameter.requiresGrad_(on);
    return this;
  }

  /** Drops all gradients; with `setToNone: false` they become zeros. */
  zeroGrad(options?: { setToNone?: boolean | undefined }): void {
    native.zeroGrads(
      this.parameters().map((parameter) => parameter.handle),
      options?.setToNone ?? true,
    );
  }

  /** Moves parameters and buffers to a device, a floating-point type, or both. @example model.to('cuda', bfloat16) */
  to(target: DTypeLike | Device | ToOptions, dtype?: DTypeLike): this {
    checkGiven(
      'to',
      target !== null && target !== undefined,
      ['the first argument', target],
      'a device, a type or options',
    );
    const options: ToOptions =
      target instanceof DType
        ? { dtype: target }
        : typeof target === 'object'
          ? target
          : dtypes.has(target)
            ? { dtype: target as DTypeLike }
            : { device: target };
    const wanted = options.dtype ?? dtype;
    const type = wanted === undefined ? undefined : toDType(wanted);
    if (type !== undefined && !type.isFloatingPoint && !type.isComplex)
      throw new TorchError('DTYPE', `to: a module's type is floating point or complex, got ${type.name}`);
    return this.transform((tensor) =>
      tensor.to({
        ...options,
        dtype: tensor.isFloatingPoint() || tensor.isComplex() ? type : undefined,
        memoryFormat: formatFor(tensor, options.memoryFormat),
      }),
    );
  }

  /** Parameters and buffers on another device with their shapes but no values: what a module built on 'meta' needs before loading. */
  toEmpty(device: Device): this {
    return this.transform((tensor) => emptyLike(tensor, { device }));
  }

  /** To float32. */
  float(): this {
    return this.to(float32);
  }

  /** To float64. */
  double(): this {
    return this.to(float64);
  }

  /** To float16. */
  half(): this {
    return this.to(float16);
  }

  /** To bfloat16. */
  bfloat16(): this {
    return this.to(bfloat16);
  }

  /** To a CUDA device. */
  cuda(index?: number): this {
    if (index !== undefined) checkWhole('cuda: the number of the GPU', index);
    return this.to(index === undefined ? 'cuda' : (`cuda:${index}` as Device));
  }

  /** To the CPU. */
  cpu(): this {
    return this.to('cpu');
  }

  /** Replaces every parameter, its gradient and every buffer by what `change` makes of it. */
  private transform(change: (tensor: Tensor) => Tensor): this {
    noGrad(() => {
      for (const parameter of this.parameters()) {
        scope(() => {
          const { grad } = parameter;
          replace(parameter, change(parameter));
          if (grad !== null) parameter.grad = change(grad);
        });
      }
      for (const buffer of this.buffers()) scope(() => replace(buffer, change(buffer)));
    });
    return this;
  }

  /**
   * A deep copy: parameters and buffers get memory of their own. Nobody can copy private fields (`#x`) from outside: a class
   * that has some is refused unless it overrides `clone`, which is then also used where it is inside of another module.
   */
  clone(): this {
    return copyModule(this, new Map()) as this;
  }

  /** Frees the memory of all parameters, their gradients and all buffers now. */
  dispose(): void {
    for (const parameter of this.parameters()) {
      if (parameter.isDisposed) continue;
      parameter.grad = null;
      disposeOwned(parameter);
    }
    for (const buffer of this.buffers()) disposeOwned(buffer);
  }

  [Symbol.dispose](): void {
    this.dispose();
  }

  // --- hooks -------------------------------------------------------------------------------------------------------

  /** Runs before `forward`, with its arguments; what it returns replaces them. */
  registerForwardPreHook(hook: ForwardPreHook): HookHandle {
    return this.hook('forwardPre', hook);
  }

  /** Runs after `forward`, with its arguments and result; what it returns replaces the result. */
  registerForwardHook(hook: ForwardHook): HookHandle {
    return this.hook('forward', hook);
  }

  /** Runs when the gradients of the module's inputs are known; what it returns replaces them. */
  registerFullBackwardHook(hook: BackwardHook): HookHandle {
    return this.hook('backward', hook);
  }

  /** Runs when the gradients of the module's outputs are known; what it returns replaces them. */
  registerFullBackwardPreHook(hook: BackwardPreHook): HookHandle {
    return this.hook('backwardPre', hook);
  }

  private hook<K extends keyof Omit<Hooks, 'original'>>(kind: K, hook: Hooks[K][number]): HookHandle {
    this.hooks ??= { forwardPre: [], forward: [], backward: [], backwardPre: [], original: undefined };
    return addHook(this, this.hooks, kind, hook);
  }

  // --- text --------------------------------------------------------------------------------------------------------

  /** The class name as printed. */
  getName(): string {
    return this.constructor.name;
  }

  /** What is printed between the parentheses. */
  extraRepr(): string {
    return '';
  }

  /** The module as PyTorch prints it. */
  toString(): string {
    const extra = this.extraRepr();
    const inside = this.members().children.map(([name, child]) => `(${name}): ${indent(child.toString(), 2)}`);
    const lines = extra === '' ? inside : [...extra.split('\n'), ...inside];
    if (lines.length === 0) return `${this.getName()}()`;
    if (lines.length === 1 && inside.length === 0) return `${this.getName()}(${extra})`;
    return `${this.getName()}(\n  ${lines.join('\n  ')}\n)`;
  }
}

Object.defineProperty(Module.prototype, Symbol.for('nodejs.util.inspect.custom'), {
  configurable: true,
  value(this: Module): string {
    return this.toString();
  },
});

function isNumber(name: string): boolean {
  return /^\d+$/.test(name);
}

const snakeNames = new Map<string, string>();

function snakeCase(field: string): string {
  let name = snakeNames.get(field);
  if (name === undefined) {
    name = field.replace(/(?<=[a-z0-9])[A-Z]+/g, (part) => `_${part.toLowerCase()}`);
    snakeNames.set(field, name);
  }
  return name;
}

function join(prefix: string, name: string): string {
  return prefix === '' ? name : `${prefix}.${name}`;
}

function replace(tensor: Parameter | Buffer, by: Tensor): void {
  if (by === tensor) return;
  const crosses = (tensor.device === 'meta') !== (by.device === 'meta');
  if (crosses) tensor.become(by);
  else tensor.setData(by);
}

/** A memory format for tensors of other dimensions leaves a tensor as it is laid out. */
function formatFor(tensor: Tensor, format: ToOptions['memoryFormat']): ToOptions['memoryFormat'] {
  const dims = format === 'channels_last' ? 4 : format === 'channels_last_3d' ? 5 : tensor.dim();
  return tensor.dim() === dims ? format : undefined;
}

function notFound(module: Module, what: string, name: string, known: readonly string[]): TorchError {
  return new TorchError(
    'NOT_FOUND',
    `${module.getName()} has no ${what} '${name}'; there ${known.length === 0 ? 'is none at that place' : `are ${known.join(', ')}`}`,
  );
}

function copyModule(module: Module, copies: Map<object, object>): Module {
  const known = copies.get(module);
  if (known !== undefined) return known as Module;
  if (copies.size > 0 && module.clone !== Module.prototype.clone) {
    const own = module.clone();
    copies.set(module, own);
    return own;
  }
  refusePrivateFields(module, Module.prototype);
  const made = Object.create(Object.getPrototypeOf(module) as object) as Module;
  copies.set(module, made);
  for (const [key, value] of Object.entries(module))
    Reflect.set(made, key, key === 'hooks' ? null : copyValue(value, copies));
  Reflect.set(made, 'hooks', copyHooks(Reflect.get(module, 'hooks') as Hooks | null, made));
  return made;
}

function copyValue(value: unknown, copies: Map<object, object>): unknown {
  if (typeof value !== 'object' || value === null) return value;
  const known = copies.get(value);
  if (known !== undefined) return known;
  let made: object = value;
  if (value instanceof Module) return copyModule(value, copies);
  if (value instanceof Tensor) made = copyTensor(value);
  else if (Array.isArray(value)) made = value.map((item) => copyValue(item, copies));
  else if (value instanceof Map) made = new Map([...value].map(([key, item]) => [key, copyValue(item, copies)]));
  else if (value instanceof Set) made = new Set(value);
  copies.set(value, made);
  return made;
}

function copyTensor(tensor: Tensor): Tensor {
  return noGrad(() => {
    if (tensor instanceof Parameter)
      return scope(() => new Parameter(tensor.clone(), { requiresGrad: tensor.requiresGrad }));
    if (tensor instanceof Buffer) return scope(() => new Buffer(tensor.clone(), { persistent: tensor.persistent }));
    return tensor.clone();
  });
}
