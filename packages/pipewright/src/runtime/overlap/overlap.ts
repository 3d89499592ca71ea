/** @file Overlapped actions: how the parts of one share a rank. */
import type { PlannedAction } from '../row/planned-action.ts';
import type { StepState } from '../row/step-state.ts';

/** A way to run the parts of overlapped actions. */
export interface Overlap {
  /** Performs all parts. */
  run(parts: readonly PlannedAction[], step: StepState): void;
  /** Called when a message has arrived from another rank. */
  received?(): void;
  /** Called when a step begins. */
  reset?(): void;
}
