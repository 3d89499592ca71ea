/** @file The outputs of a step: merged, and on every rank, to which the rank of the last stage sends them. */
import type { Schedule } from '@pipewright/schedule';
import { PipelineError, type PipelineErrorCode } from '../base/errors.ts';
import { outputTag } from '../base/tags.ts';
import { mergeChunks } from '../microbatch/index.ts';
import { rankStatus } from '../status/rank-status.ts';
import type { RuntimeOptions } from './options.ts';
import type { StepState } from './row/step-state.ts';
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

/** The outputs of a step's microbatches as one; undefined where this rank has none. */
export function mergeOutputs(
  where: string,
  { outputs, training }: Pick<StepState, 'outputs' | 'training'>,
  spec: RuntimeOptions['outputMergeSpec'],
): unknown {
  if (outputs.length === 0) return undefined;
  try {
    return mergeChunks(outputs, spec);
  } catch (cause) {
    if (!(cause instanceof PipelineError)) throw cause;
    throw new PipelineError(
      cause.code as PipelineErrorCode,
      `${where}: ${cause.message}. Where they are not needed as one, say returnOutputs: false, or take each with onOutput${training ? '. All else of the step is done: gradients are there' : ''}`,
      cause.details,
      { cause },
    );
  }
}
