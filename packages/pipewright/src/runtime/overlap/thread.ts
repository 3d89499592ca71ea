/**
 * @file Overlapped actions on the CPU: the backward of one microbatch runs on a thread of its own while the forward of another
 * runs here, and the rank's cores are divided between them. Operators of a small model do not fill several cores, two at a
 * time do better. With one core, or a backward of the user's own, the parts run one after the other.
 */
import { distributed } from '@pipewright/torch';
import { backward, finishBackward, startBackward } from '../actions/backward.ts';
import { enter, leave, perform, resume } from '../row/perform.ts';
import type { PlannedAction } from '../row/planned-action.ts';
import type { StepState } from '../row/step-state.ts';
import type { Overlap } from './overlap.ts';

/** A backward is about twice the work of a forward. */
const FORWARD_SHARE = 1 / 3;

/** Runs the parts of overlapped actions in two threads. */
export class ThreadOverlap implements Overlap {
  run(parts: readonly PlannedAction[], step: StepState): void {
    const cores = distributed.getNumThreads();
    const forward = parts.find((part) => part.kind === 'F');
    const beside = parts.find((part) => part.execute === backward);
    if (cores < 2 || parts.length !== 2 || forward === undefined || beside === undefined) {
      for (const part of parts) perform(part, step);
      return;
    }
    const own = Math.max(1, Math.floor(cores * FORWARD_SHARE));
    enter(beside, step);
    startBackward(beside, step, cores - own);
    distributed.setNumThreads(own);
    try {
      perform(forward, step);
    } finally {
      distributed.setNumThreads(cores);
    }
    resume(beside, step);
    finishBackward(beside, step);
    leave(beside, step);
  }
}
