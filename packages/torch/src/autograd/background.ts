/** @file A backward on a thread of its own, while this thread goes on. */
import { native } from '../addon/addon.ts';
import { checkOptions, TorchError } from '../base/errors.ts';
import type { Tensor } from '../tensor/tensor.ts';
import { forbidWhileRecording, gradientsOf, listOf } from './backward.ts';
import { collectCallbacks } from './callbacks.ts';
import type { GradientTarget } from './gradient-edge.ts';

/** How `startBackward` goes through the graph. */
export interface StartBackwardOptions {
  /** Gradients of the tensors; a tensor of one element needs none. */
  gradTensors?: readonly (Tensor | null)[] | undefined;
  /** Cores for its operators. Default: as many as the operators of this thread have. */
  threads?: number | undefined;
}

/** A backward under way beside this thread. */
export class BackwardRun {
  private pending = true;

  /** Whether `finish` is still to be called. */
  get isPending(): boolean {
    return this.pending;
  }

  /** Whether `finish` would not have to wait. */
  get isDone(): boolean {
    return !this.pending || native.isBackwardDone();
  }

  /**
   * Waits until all gradients are there, and throws what went wrong. Hooks, custom functions and checkpoints of the graph
   * run in here, on this thread. A second time it does nothing.
   */
  finish(): void {
    if (!this.pending) return;
    this.pending = false;
    native.finishBackward();
    collectCallbacks();
  }

  [Symbol.dispose](): void {
    this.finish();
  }
}

/**
 * Begins to add the gradients of the tensors to every leaf they were computed from, on another thread: this one may run
 * operators meanwhile, but must not read or change those gradients before `finish`. One at a time; another backward of this
 * thread first waits for it.
 *
 * @example const run = startBackward([loss]); const y = model.forward(x); run.finish()
 */
export function startBackward(
  tensors: GradientTarget | readonly GradientTarget[],
  options?: StartBackwardOptions,
): BackwardRun {
  checkOptions('startBackward', options, ['gradTensors', 'threads']);
  const roots = listOf('startBackward', 'tensors', tensors);
  forbidWhileRecording('startBackward()', roots);
  const gradients = gradientsOf('startBackward', roots, options?.gradTensors);
  const threads = options?.threads ?? native.getNumThreads();
  if (!Number.isInteger(threads) || threads < 1 || threads > 4096)
    throw new TorchError(
      'BAD_ARGUMENT',
      `startBackward: threads is ${String(threads)}; give a whole number, at least 1`,
    );
  native.startBackward(
    roots.map((root) => root.handle),
    gradients,
    threads,
  );
  return new BackwardRun();
}
