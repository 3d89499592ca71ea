/**
 * @file The table of executors: the function that performs each kind of action in a row. A new kind of action needs an entry here
 * and nothing else.
 */

import type { DataParallel } from '../parallel/data-parallel.ts';
import { backward, backwardAndSend, inputBackward, weightBackward } from './actions/backward.ts';
import { forward } from './actions/forward.ts';
import { postGrads, postValues, sendGrads, sendValues } from './actions/messages.ts';
import type { Overlap } from './overlap/overlap.ts';
import type { Executors } from './row/planned-action.ts';

/** What the runtime itself does for each kind of action. */
export function builtInExecutors(overlap: Overlap, parallel: DataParallel | null = null, unshards = false): Executors {
  return {
    F: forward,
    B: backward,
    B_SEND_B: backwardAndSend,
    I: inputBackward,
    W: weightBackward,
    RECV_F: postValues,
    RECV_B: postGrads,
    SEND_F: sendValues,
    SEND_B: sendGrads,
    OVERLAP_F_B: ({ parts }, step) => overlap.run(parts, step),
    ...(parallel !== null && {
      REDUCE_GRAD: ({ links }, step) => {
        if (step.options.sync !== false) parallel.reduce(links.stage.stageIndex);
      },
    }),
    ...(parallel !== null &&
      unshards && {
        UNSHARD: ({ links, index }, step) => {
          step.gathering.set(links.stage.stageIndex, index);
          parallel.unshard(links.stage.stageIndex);
        },
        RESHARD: ({ links }) => parallel.reshard(links.stage.stageIndex),
      }),
  };
}
