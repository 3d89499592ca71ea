/** @file Messages between ranks as actions: a receive is posted where it stands, and the action that computes with it takes it. */
import type { GradientTarget } from '@pipewright/torch';
import { PipelineError } from '../../base/errors.ts';
import { tensorsIn } from '../../base/tree.ts';
import type { Place } from '../../status/rank-status.ts';
import type { Link, RowMessage } from '../row/links.ts';
import type { PlannedAction } from '../row/planned-action.ts';
import { refusalIn, StepRefused } from '../row/refusal.ts';
import type { StepState } from '../row/step-state.ts';
import type { Payload, Transport } from '../transport/transport.ts';
import { packValues } from '../transport/values.ts';

/** `RECV_F`: posts the receives of a stage's inputs. */
export function postValues({ links, microbatch: m }: PlannedAction, step: StepState): void {
  for (const { local, values } of links.from) if (local === null) post(values[m]!, step);
}

/** `RECV_B`: posts the receives of the gradients of what a stage has sent. There is none for a tensor without gradient. */
export function postGrads({ links: { stage, to }, microbatch: m }: PlannedAction, step: StepState): void {
  for (const { local, grads, stage: destination } of to) {
    if (local !== null) continue;
    const sent = stage.sentTo(m, destination);
    if (sent.length > 0) post(grads[m]!, step, sent);
  }
}

/** `SEND_F`: sends what the forward of a stage has made for other ranks. */
export function sendValues({ links: { stage, to }, microbatch: m }: PlannedAction, step: StepState): void {
  const { recorder } = step.context;
  for (const { local, values, stage: destination } of to) {
    if (local !== null) continue;
    const message = values[m]!;
    const outgoing = step.outgoing[message.index];
    if (outgoing === undefined)
      throw new PipelineError(
        'OUT_OF_ORDER',
        `stage ${stage.stageIndex} has nothing to send for microbatch ${m}: its forward has not run, or it was sent already`,
      );
    step.outgoing[message.index] = undefined;
    step.hasExchanged = true;
    const payload = packValues(outgoing, step.weightToTell(m));
    const tensors = (step.training ? recorder?.leaving(payload.tensors) : undefined) ?? payload.tensors;
    transportOf(step).send(message, { ...payload, tensors });
    recorder?.sent(outgoing);
    release(outgoing, step.training);
    stage.releaseOutgoing(m, destination);
  }
}

/** `SEND_B`: sends the gradients of what a stage got from other ranks. */
export function sendGrads({ links: { stage, from }, microbatch: m }: PlannedAction, step: StepState): void {
  const { recorder } = step.context;
  for (const { local, grads: messages, stage: source } of from) {
    if (local !== null) continue;
    const grads = stage.takeInputGrads(m, source);
    if (grads.length === 0) continue;
    transportOf(step).send(messages[m]!, { tensors: recorder?.leaving(grads) ?? grads });
    recorder?.sent(grads);
    for (const grad of grads) grad?.dispose();
  }
}

/** Waits for a posted receive and returns its payload. */
export function take(message: RowMessage, link: Link, place: Place, step: StepState): Payload {
  const posted = step.posted[message.index];
  if (posted === undefined)
    throw new PipelineError(
      'OUT_OF_ORDER',
      `${place.action} has not been posted: the schedule must have it before what computes with it (validate() says where)`,
    );
  step.posted[message.index] = undefined;
  step.beginWait(link, place);
  const payload = posted.wait();
  step.endWait();
  const refused = refusalIn(payload);
  if (refused !== null) throw new StepRefused(step.context.rank, refused);
  step.hasExchanged = true;
  step.context.recorder?.received(payload.tensors);
  return payload;
}

/** Frees values that were sent, except those that the backward begins with, which the stage frees. */
export function release(values: readonly unknown[], training: boolean): void {
  for (const tensor of tensorsIn(values)) if (!training || !tensor.requiresGrad) tensor.dispose();
}

function post(message: RowMessage, step: StepState, like?: readonly GradientTarget[]): void {
  step.posted[message.index] = transportOf(step).post(message, like);
}

function transportOf(step: StepState): Transport {
  return step.context.transport!;
}
