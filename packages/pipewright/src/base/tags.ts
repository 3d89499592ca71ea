/**
 * @file Tags of messages between ranks: every message that may be under way at the same time has one of its own. Activations
 * and gradients have the lowest, then recordings, then tied parameters. All of these stay below `STEP_TAGS`: what a step sends
 * has a multiple of it added, for which step it is and of what kind. Above are the copies by which lost ranks are replaced.
 */

/** Tags of one microbatch along one edge: forward and backward. */
const PER_MICROBATCH = 2;
/** Tags of messages within a step are smaller. */
export const STEP_TAGS: number = 2 ** 32;
/** The tag of recordings. */
export const RECORDING_TAG = 0xe000_0000;
/** The tag of the tensors that order the streams of ranks whose steps are one graph. */
export const JOINT_TAG = 0xe000_0001;
/** The first tag of tied parameters. */
const FIRST_TIE_TAG = 0xf000_0000;
/** Tags of copies of a rank's state: kept by others, given back to a rank that takes its place, and what replicas share. */
export const COPY_TAG: number = 2 ** 46;
export const STATE_TAG: number = COPY_TAG + 1;
export const SHARED_TAG: number = COPY_TAG + 2;

/** What tags of activations depend on. */
interface Shape {
  readonly stages: number;
  readonly microbatches: number;
}

/** The first tag of the messages from one stage to another; those of microbatch m follow with `messageTag`. */
export function edgeTag({ stages, microbatches }: Shape, from: number, to: number): number {
  return (from * stages + to) * microbatches * PER_MICROBATCH;
}

/** The tag of a microbatch's message along an edge. */
export function messageTag(edge: number, microbatch: number, direction: 'forward' | 'backward'): number {
  return edge + microbatch * PER_MICROBATCH + (direction === 'forward' ? 0 : 1);
}

/** The tag of what a stage gives to ranks rather than to stages: no stage sends itself messages. */
export function outputTag(shape: Shape, stage: number): number {
  return edgeTag(shape, stage, stage);
}

/** The tags of a tied parameter: to the rank that sums, and back. */
export function tieTags(position: number): { readonly gather: number; readonly spread: number } {
  return { gather: FIRST_TIE_TAG + 2 * position, spread: FIRST_TIE_TAG + 2 * position + 1 };
}
