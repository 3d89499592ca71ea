/**
 * @file Who watches operators as they run: what a tracer hooks into. Every operator passes `callGiven`, where the
 * recorder takes over; hot operators take that way too while somebody watches. Without a recorder the cost is a comparison with null.
 */

import { native } from '../addon/addon.ts';
import type { BoundOp } from '../addon/bound-op.ts';
import { checkFunction, checkGiven } from '../base/checks.ts';
import type { Device } from './device.ts';
import type { Tensor } from './tensor.ts';

/** How a checkpoint runs its function again. */
export interface CheckpointOptions {
  /** Gives the function the same random numbers both times. Default true. */
  preserveRandomState?: boolean | undefined;
  /** Ends the second run as soon as everything that was dropped is there again. Default true. */
  earlyStop?: boolean | undefined;
  /** Compares shape, element type and device of what the two runs save, and says what differs. Default true. */
  determinismCheck?: boolean | undefined;
}

/** What `forward` returns: a tensor, or several (null where there is none). */
export type FunctionOutput = Tensor | readonly (Tensor | null)[];

/** What `backward` returns: a gradient per argument of `forward`, null for those that have none; a single one alone. */
export type FunctionGradients = Tensor | null | readonly (Tensor | null)[];

/** A custom autograd function as a recorder sees it; `ctx` is a `FunctionContext`, which only `autograd/` knows. */
export interface CustomFunction {
  readonly name: string;
  forward(ctx: never, ...args: unknown[]): FunctionOutput;
  backward(ctx: never, ...grads: Tensor[]): FunctionGradients;
}

/** Sees all that happens to tensors in this thread, and decides what each call gives. */
export interface Recorder {
  /** An operator with its arguments in schema order (`undefined` for defaults): returns what the caller gets. */
  operator(op: BoundOp, given: readonly unknown[]): unknown;
  /** A custom autograd function: returns what the caller gets. */
  customFunction(type: CustomFunction, args: unknown[]): FunctionOutput;
  /** A function whose operators are computed again for backward: returns its result. */
  checkpoint<T>(body: () => T, options: CheckpointOptions | undefined): T;
  /** A second handle of a tensor. */
  alias(tensor: Tensor): Tensor;
  /** Where the caller shall believe the tensor to be. */
  deviceOf(tensor: Tensor): Device;
  /** Something that is no operator reads or changes a tensor: throws where that cannot be recorded. */
  beforeAccess(tensor: Tensor, what: string): void;
}

/** The recorder of this thread, if somebody watches. */
export let recorder: Recorder | null = null;

/** Runs `body` with another recorder, or with none, and puts the one before back. */
export function withRecorder<T>(next: Recorder | null, body: () => T): T {
  checkFunction('withRecorder', body, 'the second argument');
  const before = recorder;
  recorder = next;
  try {
    return body();
  } finally {
    recorder = before;
  }
}

/** Whether other tensors share this one's memory: its base, its views, or what backward keeps of it. Works on meta tensors too. */
export function sharesStorage(tensor: Tensor): boolean {
  checkGiven(
    'sharesStorage',
    typeof (tensor as Tensor | null)?.handle === 'number',
    ['the argument', tensor],
    'a tensor',
  );
  return native.storageUseCount(tensor.handle) > 1;
}

/** Where the files of this package are: frames of a stack that begin with it are not the user's. */
export const torchSourceRoot: string = new URL('..', import.meta.url).href;
