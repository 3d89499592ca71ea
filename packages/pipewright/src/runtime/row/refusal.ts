/**
 * @file Steps that are refused. Where a rank finds that it cannot begin (a wrong input), it goes through its row without
 * computing: what it would have sent are refusals, and what it is sent is taken and dropped. Who gets a refusal does the same.
 * So no message is left over, no backward runs anywhere, and all ranks can go on with the next step.
 */
import { PipelineError } from '../../base/errors.ts';
import { tensorsIn } from '../../base/tree.ts';
import type { Payload } from '../transport/transport.ts';
import { packValues, unpackValues } from '../transport/values.ts';
import type { Link, RowMessage } from './links.ts';
import type { PlannedAction } from './planned-action.ts';
import type { StepState } from './step-state.ts';

/** Another rank has refused the step. */
export class StepRefused extends PipelineError {
  /** What the rank that refused it said. */
  readonly reason: string;

  constructor(rank: number, reason: string) {
    super(
      'STEP_REFUSED',
      `rank ${rank}: the step was refused: ${reason}. Nothing was added to the gradients; the runtime can go on with another step`,
      { rank },
    );
    this.reason = reason;
  }
}

/** The reason in a message that is a refusal, else null. */
export function refusalIn({ header }: Payload): string | null {
  if (typeof header !== 'object' || header === null || !('refused' in header)) return null;
  return String(header['refused']);
}

/** A message that says that there will be none. */
export function refusal(reason: string): Payload {
  return { tensors: [], header: { refused: reason } };
}

/** Goes through the rest of a row without computing. */
export function refuseRow(row: readonly PlannedAction[], from: number, step: StepState, reason: string): void {
  for (const planned of row.slice(from)) refuseAction(planned, step, reason);
}

function refuseAction(planned: PlannedAction, step: StepState, reason: string): void {
  const { kind, links, microbatch: m } = planned;
  const transport = step.context.transport!;
  switch (kind) {
    case 'OVERLAP_F_B':
      for (const part of planned.parts) refuseAction(part, step, reason);
      return;
    case 'RECV_F':
    case 'RECV_B':
      planned.execute(planned, step);
      return;
    case 'F':
      for (const link of remote(links.from)) {
        const payload = drain(link.values[m]!, step);
        if (payload === null || refusalIn(payload) !== null) continue;
        const { values, leaves } = unpackValues(payload);
        links.stage.setInput(m, link.stage, values, leaves);
      }
      return;
    case 'B':
    case 'B_SEND_B':
    case 'I':
      for (const link of remote(links.to)) drain(link.grads[m]!, step);
      for (const part of planned.parts) refuseAction(part, step, reason);
      return;
    case 'SEND_F':
      for (const link of remote(links.to)) {
        const message = link.values[m]!;
        const outgoing = step.outgoing[message.index];
        step.outgoing[message.index] = undefined;
        transport.send(message, outgoing === undefined ? refusal(reason) : packValues(outgoing));
        for (const tensor of tensorsIn(outgoing ?? [])) if (!tensor.requiresGrad) tensor.dispose();
      }
      return;
    case 'SEND_B':
      for (const link of remote(links.from))
        if (links.stage.owesGrads(m, link.stage)) transport.send(link.grads[m]!, refusal(reason));
      return;
    default:
  }
}

function remote(links: readonly Link[]): readonly Link[] {
  return links.filter(({ local }) => local === null);
}

/** What a posted receive brings; null where it was taken already, or nothing will come. */
function drain(message: RowMessage, step: StepState): Payload | null {
  const posted = step.posted[message.index];
  step.posted[message.index] = undefined;
  return posted?.wait() ?? null;
}
