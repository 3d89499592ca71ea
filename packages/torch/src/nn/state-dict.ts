/** @file The state of a module by name: collected, and loaded with everything that does not fit listed. */

import { noGrad } from '../autograd/modes.ts';
import { checkObject } from '../base/checks.ts';
import { checkOptions, didYouMean, TorchError } from '../base/errors.ts';
import { Tensor } from '../tensor/tensor.ts';
import type { Module } from './module.ts';
import type { Buffer, Parameter } from './parameter.ts';

/** Tensors by name, in the order of PyTorch's `state_dict`. */
export type StateDict = Map<string, Tensor>;

/** What a state can be loaded from. */
export type StateSource = ReadonlyMap<string, Tensor> | Readonly<Record<string, Tensor>>;

/** How strictly a state is loaded. */
export interface LoadOptions {
  /** Missing and unexpected names are an error (the default). */
  strict?: boolean | undefined;
  /** The tensors given become the module's own memory, without a copy. */
  assign?: boolean | undefined;
}

/** Names that were not there, and names that nobody wanted. */
export interface LoadResult {
  readonly missingKeys: string[];
  readonly unexpectedKeys: string[];
}

/** Every parameter and persistent buffer under `prefix`, shared ones under each of their names. */
function entries(module: Module, prefix: string): [string, Parameter | Buffer][] {
  const { parameters, buffers, children } = module.members();
  const own: [string, Parameter | Buffer][] = parameters.map(([name, tensor]) => [prefix + name, tensor]);
  for (const [name, buffer] of buffers) if (buffer.persistent) own.push([prefix + name, buffer]);
  return own.concat(children.flatMap(([name, child]) => entries(child, `${prefix}${name}.`)));
}

/** The state of a module. */
export function collectState(module: Module, prefix: string, keepVars: boolean): StateDict {
  return new Map(entries(module, prefix).map(([name, tensor]) => [name, keepVars ? tensor : tensor.detach()]));
}

/** Loads a state into a module. */
export function loadState(module: Module, source: StateSource, options?: LoadOptions): LoadResult {
  checkOptions('loadStateDict', options, ['strict', 'assign']);
  checkObject('loadStateDict', 'the state', source, 'tensors by name, as stateDict() gives them');
  const given = new Map<string, Tensor>(
    source instanceof Map ? source : Object.entries(source as Readonly<Record<string, Tensor>>),
  );
  const wanted = entries(module, '');
  const names = new Set(wanted.map(([name]) => name));
  const missingKeys = wanted.map(([name]) => name).filter((name) => !given.has(name));
  const unexpectedKeys = [...given.keys()].filter((name) => !names.has(name));
  const misfits = wanted.flatMap(([name, tensor]) => misfit(name, tensor, given.get(name)));
  const problems = [...misfits];
  if (options?.strict !== false) {
    if (missingKeys.length > 0) problems.push(`missing: ${missingKeys.join(', ')}`);
    if (unexpectedKeys.length > 0)
      problems.push(`unexpected: ${unexpectedKeys.map((name) => name + didYouMean(name, missingKeys)).join(', ')}`);
  }
  if (problems.length > 0) {
    const wayOut = misfits.length > 0 ? '' : '; pass { strict: false } to load what fits';
    throw new TorchError(
      'STATE_DICT',
      `loadStateDict: the state does not fit ${module.getName()}${wayOut}\n  ${problems.join('\n  ')}`,
    );
  }
  noGrad(() => {
    for (const [name, tensor] of wanted) {
      const value = given.get(name);
      if (value === undefined) continue;
      if (options?.assign === true) assign(tensor, value);
      else tensor.copy_(value);
    }
  });
  return { missingKeys, unexpectedKeys };
}

function misfit(name: string, tensor: Tensor, value: unknown): string[] {
  if (value === undefined) return [];
  if (!(value instanceof Tensor)) return [`${name} is not a tensor`];
  const [have, got] = [tensor.shape.join(', '), value.shape.join(', ')];
  return have === got ? [] : [`shape of ${name}: the module has [${have}], the state [${got}]`];
}

function assign(tensor: Parameter | Buffer, value: Tensor): void {
  if (tensor.dtype !== value.dtype || tensor.device !== value.device) tensor.grad = null; // it would be of another kind
  if (tensor.device === value.device) tensor.setData(value);
  else tensor.become(value);
}
