/**
 * @file Overlapped actions on the CPU: the backward of one microbatch runs on a thread of its own while the forward of another
 * runs here, and the rank's cores are divided between them. Operators of a small model do not fill several cores, two at a
 * time do better. With one core the parts run one after the other.
 */
import { distributed } from '@pipewright/torch';
import type { PlannedAction } from '../plan.ts';
import type { Overlap, PartRunner } from './overlap.ts';

/** A backward is about twice the work of a forward. */
const FORWARD_SHARE = 1 / 3;

/** Runs the parts of overlapped actions in two threads. */
export class ThreadOverlap implements Overlap {
  run(parts: readonly PlannedAction[], { perform, performBeside }: PartRunner): void {
    const cores = distributed.getNumThreads();
    const forward = parts.find((part) => part.kind === 'F');
    const backward = parts.find((part) => part.kind === 'B');
    if (cores < 2 || parts.length !== 2 || forward === undefined || backward === undefined) {
      for (const part of parts) perform(part);
      return;
    }
    const own = Math.max(1, Math.floor(cores * FORWARD_SHARE));
    performBeside(backward, cores - own, () => {
      distributed.setNumThreads(own);
      try {
        perform(forward);
      } finally {
        distributed.setNumThreads(cores);
      }
    });
  }
}
