/** @file Backwards: whole, in halves, with the gradients leaving in the middle, and on a thread of their own. */
import { scope } from '@pipewright/torch';
import type { StageBackwardOptions } from '../../stage/pipeline-stage.ts';
import { perform } from '../row/perform.ts';
import type { PlannedAction } from '../row/planned-action.ts';
import type { StepState } from '../row/step-state.ts';
import { unpackGrads } from '../transport/values.ts';
import { lossGradOf } from './loss.ts';
import { take } from './messages.ts';

/** `B`: the whole backward of a microbatch. */
export function backward(planned: PlannedAction, step: StepState): void {
  scope(() => {
    takeOutputGrads(planned, step);
    finish(planned, step, { full: true });
  });
}

/** `B_SEND_B`: the input half, the send, the weight half. */
export function backwardAndSend(planned: PlannedAction, step: StepState): void {
  const [send] = planned.parts as [PlannedAction];
  scope(() => {
    takeOutputGrads(planned, step);
    finish(planned, step, { full: true, inputsReady: () => perform(send, step) });
  });
}

/** `I`: the input half of a backward, which the stages before wait for. */
export function inputBackward(planned: PlannedAction, step: StepState): void {
  scope(() => {
    takeOutputGrads(planned, step);
    finish(planned, step, { full: false });
  });
}

/** `W`: the weight half. */
export function weightBackward({ links: { stage }, microbatch }: PlannedAction): void {
  scope(() => stage.backwardWeightOneChunk(microbatch));
}

/** Begins a whole backward on a thread of its own, with so many cores; `finishBackward` waits for it. */
export function startBackward(planned: PlannedAction, step: StepState, threads: number): void {
  const { links, microbatch: m } = planned;
  scope(() => {
    takeOutputGrads(planned, step);
    links.stage.startBackward(m, { lossGrad: lossGradOf(links.stage, m, step), threads });
  });
}

/** Waits for a backward that was started, and hands its gradients on. */
export function finishBackward(planned: PlannedAction, step: StepState): void {
  scope(() => finish(planned, step, { full: true }));
}

/** Takes the gradients that were posted, unless the action has them already. */
export function takeOutputGrads(planned: PlannedAction, step: StepState): void {
  if (step.taken === planned) return;
  const { links, microbatch: m, waits } = planned;
  const { stage, to } = links;
  for (let i = 0; i < to.length; i++) {
    const link = to[i]!;
    if (link.local !== null) continue; // handed over when they were computed
    const count = stage.sentTo(m, link.stage).length;
    if (count === 0) continue;
    const payload = take(link.grads[m]!, link, waits[i]!, step);
    stage.setOutputGrads(m, link.stage, unpackGrads(payload, count, link.rank));
  }
}

function finish(
  planned: PlannedAction,
  step: StepState,
  options: Pick<StageBackwardOptions, 'full' | 'inputsReady'>,
): void {
  const { links, microbatch: m } = planned;
  const { stage } = links;
  stage.backwardOneChunk(m, { ...options, lossGrad: lossGradOf(stage, m, step) });
  giveInputGrads(planned);
}

/** Hands gradients to the stages of this rank; the others are left to `SEND_B`. */
export function giveInputGrads({ links: { stage, from }, microbatch: m }: PlannedAction): void {
  for (const link of from) {
    if (link.local === null) continue;
    link.local.setOutputGrads(m, stage.stageIndex, stage.takeInputGrads(m, link.stage));
  }
}
