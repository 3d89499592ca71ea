/**
 * @file Changes in place that libtorch does not count as a new version of the tensor: batch norm and its relatives update their
 * running statistics that way, because their own backward does not need the values from before. Who has to know of every
 * change watches them here.
 */
import { native } from '../addon/addon.ts';
import type { BoundOp } from '../addon/bound-op.ts';
import { checkFunction } from '../base/checks.ts';
import { Tensor } from '../tensor/tensor.ts';
import type { Operand, Registers } from './prepared.ts';

/** The arguments that an operator changes without counting it. */
type QuietArguments = NonNullable<BoundOp['quiet']>;

/** What a watched function returned, and where the memory of the tensors begins that it changed quietly. */
export interface Watched<T> {
  readonly result: T;
  readonly changed: ReadonlySet<bigint>;
}

let watching: Set<bigint> | null = null;

/**
 * Runs `body`, and finds out which tensors are changed in it without a new version.
 *
 * @example watchQuietChanges(() => norm.forward(x)).changed.has(norm.runningMean.dataPtr()) // true in training
 */
export function watchQuietChanges<T>(body: () => T): Watched<T> {
  checkFunction('watchQuietChanges', body);
  const before = watching;
  const changed = new Set<bigint>();
  watching = changed;
  try {
    return { result: body(), changed };
  } finally {
    watching = before;
    if (before !== null) for (const address of changed) before.add(address);
  }
}

/** The arguments that an operator changes without counting it; undefined for almost all operators. */
export function quietArguments(name: string, args: BoundOp['args']): QuietArguments | undefined {
  if (!name.includes('_norm') || /backward|functional|no_(training|update)/.test(name)) return undefined;
  const changed = args.flatMap((arg, i) => (/^running_(mean|var)$/.test(arg.name) && !arg.written ? [i] : []));
  if (changed.length === 0) return undefined;
  return { changed, flag: args.findIndex((arg) => arg.name === 'training' || arg.name === 'use_input_stats') };
}

/** Notes what a call with these arguments will change. */
export function noteGiven({ changed, flag }: QuietArguments, given: readonly unknown[]): void {
  if (watching === null || given[flag] === false) return;
  for (const at of changed) {
    const tensor = given[at];
    if (tensor instanceof Tensor) watching.add(native.dataPointer(tensor.handle));
  }
}

/** The run of a prepared call, which also notes what it changes. */
export function notingRun(
  { changed, flag }: QuietArguments,
  operands: readonly (Operand | undefined)[],
  run: (registers: Registers) => unknown,
): (registers: Registers) => unknown {
  const read = (at: number, registers: Registers): unknown => {
    const operand = operands[at];
    if (operand === undefined || 'list' in operand) return undefined;
    return 'fixed' in operand ? operand.fixed : registers[operand.register];
  };
  return (registers) => {
    if (watching !== null && read(flag, registers) !== false)
      for (const at of changed) {
        const value = read(at, registers);
        const handle = value instanceof Tensor ? value.handle : value;
        if (typeof handle === 'number' && handle !== 0) watching.add(native.dataPointer(handle));
      }
    return run(registers);
  };
}
