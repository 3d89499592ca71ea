/** @file Microbatches that a caller has cut already, by a data loader for example: their shapes may differ. */

import { show } from '../base/checks.ts';
import { PipelineError } from '../base/errors.ts';
import { isPlainObject, tensorsIn } from '../base/tree.ts';
import type { Value } from '../base/value.ts';
import type { Microbatches } from './split.ts';

/** The inputs of microbatches; every list has one entry for each. */
export interface GivenMicrobatches<Input = Value, Target = Value> {
  /** Positional inputs. */
  readonly argMbs?: readonly (readonly Input[])[] | undefined;
  /** Named inputs. */
  readonly kwargMbs?: readonly Readonly<Record<string, Value>>[] | undefined;
  readonly targetMbs?: readonly Target[] | undefined;
}

/** Whether microbatches were given that are cut already. */
export function isCut({ argMbs, kwargMbs, targetMbs }: GivenMicrobatches): boolean {
  return argMbs !== undefined || kwargMbs !== undefined || targetMbs !== undefined;
}

/** Checks microbatches that come ready. @example takeMicrobatches('step', { argMbs: [[x], [y]] }, 2) */
export function takeMicrobatches(where: string, given: GivenMicrobatches, count: number): Microbatches {
  const refuse = (name: string, wrong: unknown, wanted: string): never => {
    throw new PipelineError('BAD_INPUT', `${where}: ${name} is ${show(wrong)}; give ${wanted}`);
  };
  for (const name of ['argMbs', 'kwargMbs', 'targetMbs'] as const) {
    const list: unknown = given[name];
    if (list === undefined) continue;
    if (!Array.isArray(list)) refuse(name, list, 'an array with an entry for each microbatch');
    const { length } = list as unknown[];
    if (length !== count)
      throw new PipelineError(
        'BAD_INPUT',
        `${where}: ${name} has ${length} entries, but there are ${count} microbatches; give one for each`,
      );
  }
  const { argMbs = [], kwargMbs = [], targetMbs } = given;
  const args = argMbs.map((each, m) =>
    Array.isArray(each)
      ? [...(each as unknown[])]
      : refuse(`argMbs[${m}]`, each, 'an array of the positional inputs of that microbatch'),
  );
  const kwargs = kwargMbs.map((each, m) =>
    isPlainObject(each) ? { ...each } : refuse(`kwargMbs[${m}]`, each, 'an object of the named inputs'),
  );
  // The target first: on the rank of the last stage it is often all that is given.
  const sizes = Array.from({ length: count }, (_, m) => rowsOf([targetMbs?.[m], args[m], kwargs[m]]));
  return {
    args: argMbs.length > 0 ? args : Array.from({ length: count }, () => []),
    kwargs: kwargMbs.length > 0 ? kwargs : Array.from({ length: count }, () => ({})),
    target: targetMbs === undefined ? undefined : [...targetMbs],
    sizes: sizes.every((size) => size !== undefined) ? sizes : [],
  };
}

/** Rows of a microbatch: the length of its first tensor. */
function rowsOf(values: readonly unknown[]): number | undefined {
  return tensorsIn(values).find((tensor) => tensor.ndim > 0)?.shape[0];
}
