/**
 * @file Overlapped actions on a GPU: the forward of one microbatch and the backward of another run in two streams, so that
 * kernels of both share the device. Autograd runs a backward in the stream of its forward, so a forward goes to the stream in
 * which the backward beside it is not.
 *
 * Memory is safe without marks on every tensor: the side stream begins each overlap by waiting for the main one and ends it
 * with the main one waiting for it, and the forward is issued first, so what the backward frees is not written by the forward. The inputs of a
 * forward in the side stream, which are memory of the main one, are freed when the streams have met.
 */
import { cuda } from '@pipewright/torch';
import { awaitParameters, perform } from '../row/perform.ts';
import type { PlannedAction } from '../row/planned-action.ts';
import type { StepState } from '../row/step-state.ts';
import type { Overlap } from './overlap.ts';

/** Runs the parts of overlapped actions in two streams. */
export class StreamOverlap implements Overlap {
  private side: cuda.Stream | null = null;
  private readonly onSide = new Set<string>();
  private current: { readonly main: cuda.Stream; readonly side: cuda.Stream } | null = null;

  run(parts: readonly PlannedAction[], step: StepState): void {
    const forward = parts.find((part) => part.kind === 'F');
    const others = parts.filter((part) => part !== forward);
    if (forward === undefined || others.length === 0) {
      for (const part of parts) perform(part, step);
      return;
    }
    // Both streams may compute with the parameters of one stage.
    for (const part of parts) awaitParameters(part, step);
    this.side ??= new cuda.Stream();
    const { side } = this;
    const main = cuda.currentStream();
    side.waitStream(main);
    const isOnSide = !others.some((part) => this.onSide.has(keyOf(part)));
    if (isOnSide) {
      this.onSide.add(keyOf(forward));
      this.current = { main, side };
      step.keepsInputs = true;
      try {
        cuda.withStream(side, () => perform(forward, step));
      } finally {
        this.current = null;
        step.keepsInputs = false;
      }
    } else perform(forward, step);
    for (const part of others) perform(part, step);
    main.waitStream(side);
    if (isOnSide) forward.links.stage.releaseInputs(forward.microbatch);
  }

  /** The stream in which something is used waits for what made it. */
  received(): void {
    if (this.current !== null) this.current.side.waitStream(this.current.main);
  }

  /** Forgets which forwards ran where. */
  reset(): void {
    this.onSide.clear();
  }
}

function keyOf({ action }: PlannedAction): string {
  return `${action.stage},${action.microbatch}`;
}
