/** @file Overlapped actions: how the parts of one share a rank. */
import type { PlannedAction } from '../plan.ts';

/** What an overlap does with the parts of an action. */
export interface PartRunner {
  /** Performs a part. */
  perform(part: PlannedAction): void;
  /** Performs a backward on a thread of its own, with so many cores, and `meanwhile` on this one. */
  performBeside(part: PlannedAction, threads: number, meanwhile: () => void): void;
}

/** A way to run the parts of overlapped actions. */
export interface Overlap {
  /** Performs all parts. */
  run(parts: readonly PlannedAction[], runner: PartRunner): void;
  /** Something has come from another rank. */
  received?(): void;
  /** A step begins. */
  reset?(): void;
}
