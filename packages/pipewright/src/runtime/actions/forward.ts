/** @file Forwards. */
import { autocast, keep, scope, Tensor } from '@pipewright/torch';
import { storageOf } from '../../base/memory.ts';
import { mapTensors, tensorsIn } from '../../base/tree.ts';
import type { PipelineStage } from '../../stage/pipeline-stage.ts';
import { pick } from '../../stage/wiring.ts';
import type { PlannedAction } from '../row/planned-action.ts';
import type { StepState } from '../row/step-state.ts';
import { handOver, unpackValues, weightIn } from '../transport/values.ts';
import { mayChange } from './live-values.ts';
import { takeOutput } from './loss.ts';
import { release, take } from './messages.ts';

/** `F`: takes the inputs that were posted, runs the module, hands its outputs to the stages of this rank, and leaves the others to `SEND_F`. */
export function forward(planned: PlannedAction, step: StepState): void {
  scope(() => {
    takeInputs(planned, step);
    giveOutputs(planned, compute(planned, step), step);
  });
}

/** Takes the inputs that were posted, unless the action has them already. */
export function takeInputs(planned: PlannedAction, step: StepState): void {
  if (step.taken === planned) return;
  const { links, microbatch: m, waits } = planned;
  const { stage, from } = links;
  for (let i = 0; i < from.length; i++) {
    const link = from[i]!;
    if (link.local !== null) continue; // handed over when it was computed
    const payload = take(link.values[m]!, link, waits[i]!, step);
    step.learnWeight(m, weightIn(payload));
    const { values, leaves } = unpackValues(payload);
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
  const compute = precision === undefined ? run : (): unknown => autocast(precision, run);
  const { random } = step.context;
  if (random === null) return compute();
  return random.source.run(compute, { microbatch: random.before + m, training: step.training });
}

/** Hands outputs to the stages of this rank, and leaves the others to `SEND_F`. */
export function giveOutputs(
  { links: { stage, to }, microbatch: m }: PlannedAction,
  output: unknown,
  step: StepState,
): void {
  const { training } = step;
  const given: Tensor[] | null = to.length > 1 ? [] : null;
  for (const link of to) {
    const values = pick(output, link.wanted, stage.stageIndex, link.stage);
    const own = keep(ownValues(values, (tensor) => ownValue(tensor, { stage, step, given })));
    if (training) stage.setOutgoing(m, link.stage, withGrad(own));
    if (link.local === null) step.outgoing[link.values[m]!.index] = own;
    else {
      const { values: handed, leaves } = keep(handOver(own));
      link.local.setInput(m, stage.stageIndex, handed, leaves);
      release(own, training);
      stage.releaseOutgoing(m, link.stage);
    }
  }
  if (!training) stage.forget(m);
  else if (!step.keepsInputs) stage.releaseInputs(m);
}

/** The values with every tensor replaced by `make`. */
function ownValues(values: readonly unknown[], make: (tensor: Tensor) => Tensor): unknown[] {
  const [only] = values;
  if (values.length === 1 && only instanceof Tensor) return [make(only)];
  return mapTensors(values, make) as unknown[];
}

/** The stage whose output is handed on, and the tensors that other stages have got already; null where only one stage gets the output. */
interface Giving {
  readonly stage: PipelineStage;
  readonly step: StepState;
  readonly given: Tensor[] | null;
}

/**
 * A value under a handle of our own, for what the module returned may be its own (an input, a parameter). A copy where the
 * module may change it later, and where another stage gets it too and could change it in place: without gradients nothing
 * forbids it, and stages that share memory must not see each other's changes.
 */
function ownValue(tensor: Tensor, { stage, step, given }: Giving): Tensor {
  const isShared = given !== null && !tensor.requiresGrad && given.some((other) => sharesMemory(other, tensor));
  given?.push(tensor);
  return isShared || mayChange(tensor, stage, step) ? tensor.clone() : tensor.alias();
}

function sharesMemory(a: Tensor, b: Tensor): boolean {
  if (a === b) return true;
  const memory = storageOf(a);
  return memory !== 0n && memory === storageOf(b);
}

/** The tensors that gradients will come back for. */
function withGrad(values: readonly unknown[]): Tensor[] {
  const [only] = values;
  if (values.length === 1 && only instanceof Tensor) return only.requiresGrad ? [only] : [];
  return tensorsIn(values).filter((tensor) => tensor.requiresGrad);
}
