/** @file An operator of the dispatcher as this package calls it: what `op/` makes and a recorder sees. */
import type { NativeArgument, NativeOp } from './addon.ts';

/** Turns a JavaScript value into what the addon takes, or throws saying what was expected. */
export type Encode = (value: unknown) => unknown;

/** One argument of a bound operator. */
export interface BoundArgument extends NativeArgument {
  /** The name in camelCase, as callers write it. */
  readonly key: string;
  readonly encode: Encode;
}

/** An operator ready to be called. */
export interface BoundOp {
  /** `aten::add.Tensor` */
  readonly fullName: string;
  readonly args: readonly BoundArgument[];
  readonly returns: readonly string[];
  readonly inPlace: boolean;
  /** Whether it draws random numbers, in some mode at least. */
  readonly random: boolean;
  /** Positions of the `out` arguments that it returns, if it has them. */
  readonly outs: readonly number[];
  readonly native: NativeOp['call'];
  /** The arguments that it changes without libtorch counting it, and the one that says whether it does (-1: always). */
  readonly quiet: { readonly changed: readonly number[]; readonly flag: number } | undefined;
  /** Refuses arguments with which libtorch would crash. */
  readonly guard: ((given: readonly unknown[]) => void) | undefined;
  /** Position of an argument by its camelCase name. */
  readonly positions: ReadonlyMap<string, number>;
}
