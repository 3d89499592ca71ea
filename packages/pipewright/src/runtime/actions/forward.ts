/** @file Forwards. */
import { autocast, keep, scope, Tensor } from '@pipewright/torch';
import { mapTensors, tensorsIn } from '../../base/tree.ts';
import { pick } from '../../stage/wiring.ts';
import type { Place } from '../../status/rank-status.ts';
import type { Link, RowMessage } from '../row/links.ts';
import type { PlannedAction } from '../row/planned-action.ts';
import type { StepState } from '../row/step-state.ts';
import { handOver, unpackValues } from '../transport/values.ts';
import { takeOutput } from './loss.ts';
import { release, take } from './messages.ts';

/** `F`: takes the inputs that were posted, runs the module, hands its outputs to the stages of this rank, and leaves the others to `SEND_F`. */
export function forward(planned: PlannedAction, step: StepState): void {
  scope(() => {
    takeInputs(planned, step);
    giveOutputs(planned, compute(planned, step), step);
  });
}

function takeInputs({ links: { stage, from }, microbatch: m, waits }: PlannedAction, step: StepState): void {
  for (let i = 0; i < from.length; i++) {
    const link = from[i] as Link;
    if (link.local !== null) continue; // handed over when it was computed
    const { values, leaves } = unpackValues(take(link.values[m] as RowMessage, link, waits[i] as Place, step));
    stage.setInput(m, link.stage, values, keep(leaves));
  }
}

function compute({ links: { stage }, microbatch: m }: PlannedAction, step: StepState): unknown {
  const { args, kwargs } = step.batch;
  const { autocast: precision } = step.context.options;
  const run = (): unknown => {
    const result = stage.forwardOneChunk(m, args[m], kwargs[m]);
    if (stage.isLast) takeOutput(stage, m, result, step);
    return result;
  };
  return precision === undefined ? run() : autocast(precision, run);
}

function giveOutputs({ links: { stage, to }, microbatch: m }: PlannedAction, output: unknown, step: StepState): void {
  const { training } = step;
  for (const link of to) {
    const values = pick(output, link.wanted, stage.stageIndex, link.stage);
    // Aliases: what the module returned may be its own (an input, a parameter).
    const own = keep(aliases(values));
    if (training) stage.setOutgoing(m, link.stage, withGrad(own));
    if (link.local === null) step.outgoing[(link.values[m] as RowMessage).index] = own;
    else {
      const { values: handed, leaves } = keep(handOver(own));
      link.local.setInput(m, stage.stageIndex, handed, leaves);
      release(own, training);
    }
  }
  if (training) stage.releaseInputs(m);
  else stage.forget(m);
}

/** The same values under handles of our own. */
function aliases(values: readonly unknown[]): unknown[] {
  const [only] = values;
  if (values.length === 1 && only instanceof Tensor) return [only.alias()];
  return mapTensors(values, (tensor) => tensor.alias()) as unknown[];
}

/** The tensors that gradients will come back for. */
function withGrad(values: readonly unknown[]): Tensor[] {
  const [only] = values;
  if (values.length === 1 && only instanceof Tensor) return only.requiresGrad ? [only] : [];
  return tensorsIn(values).filter((tensor) => tensor.requiresGrad);
}
