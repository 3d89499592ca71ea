/**
 * @file Activation checkpointing: what a function's graph would keep for backward is dropped, and the function is run
 * again when backward first asks for it.
 */
import { native } from '../addon/addon.ts';
import { checkOptions, TorchError } from '../base/errors.ts';
import { saveDraws, withoutDraws } from '../tensor/draws.ts';
import { type CheckpointOptions, recorder } from '../tensor/recorder.ts';
import { unscoped } from '../tensor/scope.ts';
import { Tensor } from '../tensor/tensor.ts';
import { mapTensors, tensorsIn } from '../tensor/tree.ts';
import { type AutocastState, autocastState, withAutocastState } from './autocast.ts';
import { addCallback, dropCallback } from './callbacks.ts';
import { synchronous } from './modes.ts';
import { engine } from './native.ts';

/**
 * Calls `fn` with `args`, keeping only the arguments for backward and computing the rest again there: less memory for
 * one more forward. The result and the gradients are those of `fn(...args)`.
 *
 * @example const y = checkpoint((x: Tensor) => block.forward(x), [x])
 */
export function checkpoint<Args extends unknown[], T>(
  fn: (...args: Args) => T,
  args: readonly [...Args],
  options?: CheckpointOptions,
): T {
  checkOptions('checkpoint', options, ['preserveRandomState', 'earlyStop', 'determinismCheck']);
  if (typeof fn !== 'function')
    throw new TorchError('BAD_ARGUMENT', `checkpoint: expected a function, got a ${typeof fn}`);
  if (!Array.isArray(args))
    throw new TorchError(
      'BAD_ARGUMENT',
      'checkpoint: the second argument is the array of arguments: checkpoint(fn, [x])',
    );
  if (recorder !== null) return recorder.checkpoint(() => fn(...(args as unknown as Args)), options);
  if (!native.isGradEnabled()) return fn(...(args as unknown as Args));

  const tensors = tensorsIn(args);
  const shape = mapTensors(args, (tensor) => tensor) as Args; // arrays and objects copied: later changes do not count
  const random = options?.preserveRandomState === false ? [] : randomStates(tensors);
  const autocast = autocastState(devicesOf(tensors));
  const draws = options?.preserveRandomState === false ? null : (saveDraws() ?? withoutDraws);
  const id = addCallback(
    (given) => {
      let next = 0;
      const again = mapTensors(shape, () => given[next++]!) as Args;
      const run = (): unknown => fn(...again);
      rerun(draws === null ? run : () => draws(run), random, autocast);
      return undefined;
    },
    () => random.forEach(({ state }) => state.dispose()),
  );
  try {
    engine.pushCheckpoint(
      id,
      tensors.map((tensor) => tensor.handle),
      options?.earlyStop !== false,
      options?.determinismCheck !== false,
    );
  } catch (error) {
    dropCallback(id);
    throw error;
  }
  try {
    return synchronous('checkpoint', fn(...(args as unknown as Args)));
  } finally {
    engine.popSavedHooks();
  }
}

interface RandomState {
  /** The generator's handle; null is the CPU's. */
  readonly device: string | null;
  readonly state: Tensor;
}

function devicesOf(tensors: readonly Tensor[]): string[] {
  return [...new Set(tensors.map((tensor) => tensor.device as string))].filter((device) => device.startsWith('cuda'));
}

function randomStates(tensors: readonly Tensor[]): RandomState[] {
  return [null, ...devicesOf(tensors)].map((device) => ({ device, state: readState(device) }));
}

function withGenerator<T>(device: string | null, body: (generator: number | null) => T): T {
  if (device === null) return body(null);
  const generator = native.defaultGenerator(device);
  try {
    return body(generator);
  } finally {
    native.releaseGenerator(generator);
  }
}

function readState(device: string | null): Tensor {
  return withGenerator(device, (generator) => unscoped(() => Tensor.adopt(native.getRandomState(generator))));
}

function writeState(device: string | null, state: Tensor): void {
  withGenerator(device, (generator) => native.setRandomState(generator, state.handle));
}

/** The second run: recording, under the first one's autocast and random state; then the generators go on as before. */
function rerun(body: () => unknown, random: readonly RandomState[], autocast: AutocastState): void {
  const before = random.map(({ device }) => ({ device, state: readState(device) }));
  const grad = native.setGradEnabled(true);
  try {
    for (const { device, state } of random) writeState(device, state);
    withAutocastState(autocast, body);
  } catch (error) {
    if (error instanceof TorchError && error.code === 'CHECKPOINT_STOP') return;
    if (error instanceof TorchError && error.code === 'DISPOSED') {
      throw new TorchError(
        'DISPOSED',
        `checkpoint: running the function again for backward: ${error.message}; hand tensors over in the array of arguments, where they are kept`,
        { cause: error },
      );
    }
    throw error;
  } finally {
    native.setGradEnabled(grad);
    for (const { device, state } of before) {
      writeState(device, state);
      state.dispose();
    }
  }
}
