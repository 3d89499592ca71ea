/** @file The merged outputs of a step on every rank: the rank of the last stage sends them to the others. */
import type { Schedule } from '@pipewright/schedule';
import { type distributed, noGrad } from '@pipewright/torch';
import { outputTag } from '../base/tags.ts';
import { rankStatus } from '../status/rank-status.ts';
import type { Transport } from './transport/transport.ts';
import { packValues, unpackValues } from './transport/values.ts';

/** What the rank of the last stage holds, on all ranks. All of them call it. */
export function spreadOutputs(
  outputs: unknown,
  schedule: Schedule,
  group: distributed.ProcessGroup,
  transport: Transport,
): unknown {
  const last = schedule.stages - 1;
  const holder = schedule.stageToRank[last] as number;
  const tag = outputTag(schedule, last);
  return noGrad(() => {
    if (group.rank !== holder) {
      rankStatus.set({ action: 'taking the outputs', waitingFor: holder });
      return unpackValues(transport.post({ peer: holder, tag }).wait()).values[0];
    }
    const payload = packValues([outputs]);
    for (let peer = 0; peer < group.size; peer++) if (peer !== holder) transport.send({ peer, tag }, payload);
    return outputs;
  });
}
