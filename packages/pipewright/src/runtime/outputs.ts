/** @file The merged outputs of a step on every rank: the rank of the last stage sends them to the others. */
import type { Schedule } from '@pipewright/schedule';
import { outputTag } from '../base/tags.ts';
import { rankStatus } from '../status/rank-status.ts';
import type { Payload, Transport } from './transport/transport.ts';

/** What the rank of the last stage gives, on all ranks. All of them call it. */
export function spreadOutputs(payload: Payload, schedule: Schedule, rank: number, transport: Transport): Payload {
  const last = schedule.stages - 1;
  const holder = schedule.stageToRank[last] as number;
  const tag = outputTag(schedule, last);
  if (rank !== holder) {
    rankStatus.set({ action: 'taking the outputs', waitingFor: holder });
    return transport.post({ peer: holder, tag }).wait();
  }
  for (let peer = 0; peer < schedule.ranks; peer++) if (peer !== holder) transport.send({ peer, tag }, payload);
  return payload;
}
