/** @file What a kind of optimizer is, and checks of its options. */
import type { NativeStep } from '../addon/addon.ts';
import { TorchError } from '../base/errors.ts';
import type { Tensor } from '../tensor/tensor.ts';
import type { Slot } from './optimizer-state.ts';

/** What a kind of optimizer is. */
export interface Kind<O> {
  readonly name: string;
  readonly defaults: O;
  readonly step: NativeStep;
  /** Refuses options that make no sense. */
  check(options: O): void;
  /** Computes with whole tensors, rows and columns of matrices for example, so that a shard is not enough. */
  readonly needsWhole?: boolean;
  /** Refuses parameters that it cannot move. */
  checkParameter?(parameter: Tensor): void;
  /** What is remembered of each parameter, in the order that native/optim wants. */
  slots(options: O): readonly Slot[];
  /** Changes when `slots` would give something else. */
  slotKey?(options: O): number;
  /** Names of the numbers of a step, in the order that native/optim wants; the first is the learning rate. */
  readonly numbers: readonly string[];
  /** The number of an option that is no number, boolean or array of numbers; undefined for the others. */
  numberOf?(name: string, options: O): number | undefined;
}

/** What every optimizer has: the learning rate, as a number or as a tensor of one element that graphs can read. */
export interface BaseOptions {
  lr: number | Tensor;
  maximize: boolean;
}

/** Refuses numbers below zero, by name. */
export function checkNotNegative(where: string, options: object, names: readonly string[]): void {
  for (const name of names) {
    const value = Reflect.get(options, name) as number;
    if (!(value >= 0)) throw new TorchError('BAD_ARGUMENT', `${where}: ${name} must be at least 0, got ${value}`);
  }
}

/** Refuses betas that are not two numbers from 0 up to 1. */
export function checkBetas(where: string, betas: readonly number[]): void {
  if (Array.isArray(betas) && betas.length === 2 && betas.every((beta) => beta >= 0 && beta < 1)) return;
  throw new TorchError(
    'BAD_ARGUMENT',
    `${where}: betas are two numbers of at least 0 and less than 1, got ${JSON.stringify(betas)}`,
  );
}
