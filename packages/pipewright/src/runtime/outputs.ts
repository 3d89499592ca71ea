/** @file The outputs of a step: merged, and with `returnOutputs: 'everywhere'` sent to all ranks. */
import type { Schedule } from '@pipewright/schedule';
import { noGrad } from '@pipewright/torch';
import { PipelineError } from '../base/errors.ts';
import { passedCode } from '../base/passed-code.ts';
import { outputTag } from '../base/tags.ts';
import { mergeChunks } from '../microbatch/index.ts';
import { rankStatus } from '../status/rank-status.ts';
import type { RuntimeOptions } from './options.ts';
import { refusal, refusalIn, StepRefused } from './row/refusal.ts';
import type { StepState } from './row/step-state.ts';
import type { Payload, Transport } from './transport/transport.ts';
import { packValues, unpackValues } from './transport/values.ts';

/** Where the outputs of a step go, and what happens if it was refused or they cannot be sent. */
interface Destination {
  readonly schedule: Schedule;
  readonly rank: number;
  readonly transport: Transport | null;
  readonly spec: RuntimeOptions['outputMergeSpec'];
  /** Why the step was refused, as an error and as the reason for other ranks; null if it was not. */
  readonly refused: { readonly error: Error; readonly reason: string } | null;
  /** Called on a failure: the other ranks wait for outputs that will not come. */
  readonly giveUp: (error: unknown) => void;
}

/** The outputs that a step returns: merged where the last stage is; on all ranks where that was asked for. Throws where it was refused. */
export function stepOutputs(where: string, step: StepState, to: Destination): unknown {
  const { schedule, rank, refused } = to;
  const transport = step.options.returnOutputs === 'everywhere' ? to.transport : null;
  if (refused !== null) {
    if (transport !== null) spreadOutputs(refusal(refused.reason), schedule, rank, transport);
    throw refused.error;
  }
  try {
    const outputs = mergeOutputs(where, step, to.spec);
    if (transport === null) return outputs;
    const payload = packValues([outputs]);
    const [given] = noGrad(() => unpackValues(checkedSpread(payload, schedule, rank, transport)).values);
    return given;
  } catch (error) {
    if (transport !== null && !(error instanceof StepRefused)) to.giveUp(error); // else nobody waits for them
    throw error;
  }
}

/** The outputs of the rank of the last stage, on all ranks; throws if that rank refused the step. */
function checkedSpread(payload: Payload, schedule: Schedule, rank: number, transport: Transport): Payload {
  const got = spreadOutputs(payload, schedule, rank, transport);
  const refused = refusalIn(got);
  if (refused !== null && got !== payload) throw new StepRefused(rank, refused);
  return got;
}

/** Sends the outputs of the rank of the last stage to all ranks. All of them call it. */
function spreadOutputs(payload: Payload, schedule: Schedule, rank: number, transport: Transport): Payload {
  const last = schedule.stages - 1;
  const holder = schedule.stageToRank[last]!;
  const tag = outputTag(schedule, last);
  if (rank !== holder) {
    rankStatus.set({ action: 'taking the outputs', waitingFor: holder });
    return transport.post({ peer: holder, tag }).wait();
  }
  for (let peer = 0; peer < schedule.ranks; peer++) if (peer !== holder) transport.send({ peer, tag }, payload);
  return payload;
}

/** The outputs of a step's microbatches as one; undefined where this rank has none. */
function mergeOutputs(
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
      passedCode(cause.code),
      `${where}: ${cause.message}. Where they are not needed as one, say returnOutputs: false, or take each with onOutput${training ? '. All else of the step is done: gradients are there' : ''}`,
      cause.details,
      { cause },
    );
  }
}
