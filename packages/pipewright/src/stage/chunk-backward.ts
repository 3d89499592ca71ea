/** @file The backward of a microbatch: in full, or only the half that the stages before wait for. */
import {
  backward,
  backwardInputsFirst,
  inputBackward,
  keep,
  type Tensor,
  type WeightBackward,
} from '@pipewright/torch';
import { type Chunk, disposeAll } from './chunk.ts';

/** How a backward is computed. */
export interface BackwardOptions {
  /** Both halves at once, or only the input half, which the stages before wait for. */
  readonly full: boolean;
  /** Called as soon as the gradients of the inputs are there. */
  readonly inputsReady: Once | null;
  /** Makes the function that computes the weight half, if the module computes it itself. */
  readonly dwBuilder: (() => () => void) | undefined;
}

/** Computes the gradients of what arrived, and with `full` those of the weights; else `chunk.weights` computes them later. */
export function computeBackward(chunk: Chunk, { full, inputsReady, dwBuilder }: BackwardOptions): void {
  const { roots, rootGrads } = chunk;
  const leaves = chunk.leaves();
  for (const item of chunk.arrived) item.grads = item.leaves.map(() => null);
  if (roots.length === 0) {
    if (!full) chunk.weights = nothing;
  } else if (full && inputsReady !== null && leaves.length > 0 && chunk.run === null && dwBuilder === undefined) {
    // The host of a GPU only starts kernels: those of the weights are started after what the gradients are sent with.
    if (leaves.some((leaf) => leaf.isCuda)) {
      const weights = inputHalf(chunk, leaves);
      try {
        inputsReady.call();
        weights.run();
      } finally {
        weights.drop();
      }
      return;
    }
    const ready = (): void => {
      chunk.takeGrads();
      inputsReady.call();
    };
    backwardInputsFirst(roots, { gradTensors: rootGrads, inputs: leaves, ready });
  } else if (full || dwBuilder !== undefined) {
    if (chunk.run === null) backward(roots, { gradTensors: rootGrads });
    else chunk.run.finish();
    chunk.takeGrads();
    const runner = dwBuilder?.() ?? nothing;
    if (full) {
      inputsReady?.call();
      runner();
    } else chunk.weights = runner;
  } else if (leaves.length === 0) {
    // No stage waits for gradients: the weight half will be the whole backward.
    keep(rootGrads);
    chunk.weights = () => {
      backward(roots, { gradTensors: rootGrads });
      disposeAll(roots);
      disposeAll(rootGrads);
    };
    chunk.outgoing = [];
    chunk.roots = [];
    chunk.rootGrads = [];
    chunk.loss = null;
  } else {
    chunk.weights = inputHalf(chunk, leaves);
  }
  inputsReady?.call();
}

/** Computes the gradients of what arrived; returns the weight half. */
function inputHalf(chunk: Chunk, leaves: readonly Tensor[]): WeightBackward {
  const { roots, rootGrads } = chunk;
  const { inputGrads, weights } = inputBackward({ outputs: roots, gradOutputs: rootGrads, inputs: leaves });
  keep(inputGrads);
  let next = 0;
  for (const item of chunk.arrived) item.grads = inputGrads.slice(next, (next += item.leaves.length));
  return weights;
}

/** A callback that is called once; its error can be told from those of the backward that calls it. */
export class Once {
  hasFailed = false;
  error: unknown;
  private callback: (() => void) | undefined;

  constructor(callback: () => void) {
    this.callback = callback;
  }

  call(): void {
    const { callback } = this;
    this.callback = undefined;
    try {
      callback?.();
    } catch (error) {
      this.hasFailed = true;
      this.error = error;
      throw error;
    }
  }
}

function nothing(): void {}
