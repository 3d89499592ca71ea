/**
 * @file Random numbers that depend on names, not on who draws them: initial values are a function of a seed, the parameter's
 * name and the element; what layers draw in a forward is one of the seed, the step, the microbatch and the layer's name. So a
 * model begins and stays the same however it is divided into stages and replicas.
 */
import { native } from '../addon/addon.ts';
import { checkFunction, checkGiven, show } from '../base/checks.ts';
import { checkOptions, TorchError } from '../base/errors.ts';
import { type DrawName, drawName, drawsByName, inLayer, withDraws } from '../tensor/draws.ts';
import type { Tensor } from '../tensor/tensor.ts';
import { Module } from './module.ts';

/** The names of a part of a model in the whole: the beginnings of names that differ, or a function of the name here. */
export type NamesInWhole = Readonly<Record<string, string>> | ((name: string) => string);

/** How a module is given initial values. */
export interface InitializeOptions {
  /** Names in the whole model, where the module is a part of it that has other names. */
  readonly names?: NamesInWhole | undefined;
  /** What fills the parameters. Default: `resetParameters` of every module, those inside first. */
  readonly init?: ((module: Module) => void) | undefined;
}

/** What a forward draws for. */
export interface DrawOptions {
  /** The number of the microbatch in the whole batch, over all replicas. Default 0. */
  readonly microbatch?: number | undefined;
  /** Whether the forward belongs to training (default): an evaluation draws other numbers. */
  readonly training?: boolean | undefined;
}

/** What a `NamedRandom` says of itself, as plain data. */
export interface NamedRandomState {
  readonly seed: string;
  readonly step: number;
}

const kinds = { initialize: 1, training: 2, evaluation: 3 };
const layerNames = new WeakMap<Module, DrawName>();

/**
 * Draws random numbers by name. Counted steps are the only state, so a run that is continued draws what it would have drawn.
 *
 * @example const random = new nn.NamedRandom({ seed: 1 }); random.initialize(model); random.run(() => model.forward(x))
 */
export class NamedRandom {
  private seedValue: bigint;
  private stepValue = 0;

  constructor(options: { readonly seed: number | bigint }) {
    checkOptions('NamedRandom', options, ['seed']);
    this.seedValue = checkSeed((options as { readonly seed?: unknown } | undefined)?.seed);
  }

  /** What all draws depend on. */
  get seed(): bigint {
    return this.seedValue;
  }

  /** The step that forwards draw for. A runtime counts it; plain training does so itself. */
  get step(): number {
    return this.stepValue;
  }

  set step(step: number) {
    if (!Number.isSafeInteger(step) || step < 0)
      throw new TorchError('BAD_ARGUMENT', `NamedRandom: the step is ${show(step)}; give a whole number of at least 0`);
    this.stepValue = step;
  }

  /**
   * Tells the layers of a module the names that they draw by: theirs in the module, or in the whole model. Without `names`,
   * layers that have been told a name keep it.
   *
   * @example random.name(stage, { 'blocks.0': 'blocks.4' })
   */
  name(module: Module, names?: NamesInWhole): this {
    checkModule('NamedRandom.name', module);
    const inWhole = namesInWhole('NamedRandom.name', names);
    for (const [name, part] of module.namedModules()) {
      if (layerNames.has(part) && names === undefined) continue;
      if (!layerNames.has(part)) watch(part);
      layerNames.set(part, drawName(inWhole(name)));
    }
    return this;
  }

  /**
   * Gives the parameters of a module their initial values: every one those of its name. Also names its layers.
   *
   * @example random.initialize(stage, { names: { 'blocks.0': 'blocks.4' } })
   */
  initialize<T extends Module>(module: T, options: InitializeOptions = {}): T {
    checkOptions('NamedRandom.initialize', options, ['names', 'init']);
    checkModule('NamedRandom.initialize', module);
    if (options.init !== undefined) checkFunction('NamedRandom.initialize', options.init, 'init');
    const inWhole = namesInWhole('NamedRandom.initialize', options.names);
    const named = module.namedParameters();
    const versions = named.map(([, parameter]) => native.version(parameter.handle));
    const parameters = new Map<Tensor, DrawName>(
      named.map(([name, parameter]) => [parameter, drawName(inWhole(name))]),
    );
    const place = { seed: this.seedValue, step: 0, kind: kinds.initialize, microbatch: 0 };
    withDraws(place, () => (options.init ?? resetAll)(module), parameters);
    const missed = named.flatMap(([name, parameter], i) =>
      parameter.isMeta || native.version(parameter.handle) !== versions[i] ? [] : [name],
    );
    if (missed.length > 0)
      throw new TorchError(
        'NOT_INITIALIZED',
        `NamedRandom.initialize: nothing has filled ${missed.slice(0, 5).join(', ')}${missed.length > 5 ? ` and ${missed.length - 5} more` : ''}: ${options.init === undefined ? 'its module has no resetParameters; give { init } that fills all parameters in place' : 'init must fill all parameters in place, with nn.init for example'}`,
      );
    this.name(module, options.names);
    return module;
  }

  /** Runs a function whose random numbers are drawn by name, for the step that `step` says. */
  run<T>(body: () => T, options: DrawOptions = {}): T {
    checkFunction('NamedRandom.run', body);
    checkOptions('NamedRandom.run', options, ['microbatch', 'training']);
    const { microbatch = 0, training = true } = options;
    if (!Number.isSafeInteger(microbatch) || microbatch < 0)
      throw new TorchError(
        'BAD_ARGUMENT',
        `NamedRandom.run: microbatch is ${show(microbatch)}; give a whole number of at least 0`,
      );
    const kind = training ? kinds.training : kinds.evaluation;
    return withDraws({ seed: this.seedValue, step: this.stepValue, kind, microbatch }, body);
  }

  /** The seed and the step, as plain data. */
  stateDict(): NamedRandomState {
    return { seed: String(this.seedValue), step: this.stepValue };
  }

  /** Goes on where another one was. */
  loadStateDict(state: NamedRandomState): void {
    const seed: unknown = (state as NamedRandomState | null)?.seed;
    if (typeof seed !== 'string' || !/^-?\d+$/.test(seed))
      throw new TorchError('BAD_ARGUMENT', 'NamedRandom.loadStateDict: this is not what stateDict() gave');
    this.step = state.step;
    this.seedValue = checkSeed(BigInt(seed));
  }
}

function checkModule(where: string, module: unknown): void {
  checkGiven(where, module instanceof Module, ['the first argument', module], 'a module');
}

function checkSeed(seed: unknown): bigint {
  if (typeof seed === 'bigint' && BigInt.asIntN(64, seed) === seed) return seed;
  if (typeof seed === 'number' && Number.isSafeInteger(seed)) return BigInt(seed);
  throw new TorchError(
    'BAD_ARGUMENT',
    `NamedRandom: the seed is ${show(seed)}; give { seed }, a whole number of at most 64 bits`,
  );
}

/** A name here as a name in the whole model. In a table the longest beginning counts; the entry '' is for all others. */
function namesInWhole(where: string, names: NamesInWhole | undefined): (name: string) => string {
  if (names === undefined) return (name) => name;
  if (typeof names === 'function') return (name) => (name === '' ? '' : names(name));
  const isTable =
    typeof (names as unknown) === 'object' &&
    names !== null &&
    Object.values(names).every((name) => typeof (name as unknown) === 'string');
  checkGiven(where, isTable, ['names', names], 'a function of a name, or an object of names');
  const table = Object.entries(names).sort(([a], [b]) => b.length - a.length);
  return (name) => {
    for (const [from, to] of table) {
      if (name === from) return to;
      if (from === '') return `${to}.${name}`;
      if (name.startsWith(`${from}.`)) return to + name.slice(from.length);
    }
    return name;
  };
}

/** `resetParameters` of a module and all inside, those inside first. */
function resetAll(module: Module): void {
  module.apply((part) => {
    const reset: unknown = Reflect.get(part, 'resetParameters');
    if (typeof reset === 'function') reset.call(part);
  });
}

/** Puts a wrapper over the `forward` of a module, so that its draws are known as its own. */
function watch(module: Module): void {
  const forward = module.forward as (...inputs: unknown[]) => unknown;
  const value = (...inputs: unknown[]): unknown => {
    const name = layerNames.get(module);
    if (name === undefined || !drawsByName()) return forward.apply(module, inputs);
    return inLayer(name, () => forward.apply(module, inputs));
  };
  Object.defineProperty(module, 'forward', { value, writable: true, enumerable: false, configurable: true });
}
