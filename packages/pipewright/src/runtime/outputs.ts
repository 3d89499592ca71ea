/** @file The merged outputs of a step on every rank: the rank of the last stage sends them to the others. */
import type { Schedule } from '@pipewright/schedule';
import { type distributed, noGrad } from '@pipewright/torch';
import { rankStatus } from '../status/rank-status.ts';
import { recvValues, sendValues } from './messages.ts';
import { ownTag } from './plan.ts';

/** What the rank of the last stage holds, on all ranks. All of them call it. */
export function spreadOutputs(outputs: unknown, schedule: Schedule, group: distributed.ProcessGroup): unknown {
  const last = schedule.stages - 1;
  const holder = schedule.stageToRank[last] as number;
  const tag = ownTag(schedule, last);
  return noGrad(() => {
    if (group.rank !== holder) {
      rankStatus.set({ action: 'taking the outputs', waitingFor: holder });
      return recvValues(group.channel(holder), tag).values[0];
    }
    for (let rank = 0; rank < group.size; rank++) if (rank !== holder) sendValues(group.channel(rank), tag, [outputs]);
    return outputs;
  });
}
