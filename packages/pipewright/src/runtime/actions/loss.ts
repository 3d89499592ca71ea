/** @file The loss of a microbatch on the last stage, and the output that the user gets. */
import { keep, Tensor } from '@pipewright/torch';
import { show } from '../../base/checks.ts';
import { debugInfo } from '../../base/describe.ts';
import { PipelineError } from '../../base/errors.ts';
import { mapTensors } from '../../base/tree.ts';
import type { Value } from '../../base/value.ts';
import type { PipelineStage } from '../../stage/pipeline-stage.ts';
import type { LossCaller } from '../options.ts';
import type { StepState } from '../row/step-state.ts';
import { mayChange } from './live-values.ts';

/** Takes what the last stage returned for a microbatch: computes the loss, and keeps what the user wants to see. */
export function takeOutput(stage: PipelineStage, m: number, output: unknown, step: StepState): void {
  const { target } = step.batch;
  const { loss: caller } = step.context;
  if (step.losses[m] === undefined && caller !== null && (target !== undefined || !caller.needsTarget)) {
    const loss = lossOf(caller, {
      stage: stage.stageIndex,
      microbatch: m,
      output,
      target: target?.[m],
      options: step.options.lossKwargs,
    });
    keepLoss(stage, m, loss, step);
  }
  const { returnOutputs, onOutput } = step.options;
  if (returnOutputs === false && onOutput === undefined) return;
  const seen = mapTensors(output, (tensor) => seenNow(tensor, stage, step));
  if (returnOutputs !== false) step.outputs[m] = keep(seen);
  onOutput?.(seen as Value, m);
}

/** Remembers the loss of a microbatch. */
export function keepLoss(stage: PipelineStage, m: number, loss: Tensor, step: StepState): void {
  if (step.training) stage.setLoss(m, keep(loss.alias()));
  step.losses[m] = keep(seenNow(loss, stage, step));
}

/** A tensor as it is now, outside of the graph. */
function seenNow(tensor: Tensor, stage: PipelineStage, step: StepState): Tensor {
  return mayChange(tensor, stage, step) ? tensor.clone() : tensor.detach();
}

/** The gradient that the backward of the last stage begins with: the weight of the loss, times the scaler's scale. */
export function lossGradOf(stage: PipelineStage, m: number, step: StepState): Tensor | undefined {
  const loss = stage.isLast ? step.losses[m] : undefined;
  if (loss === undefined) return undefined;
  const { options } = step.context;
  const grad = step.lossGrads.of(m, loss, step.weights[m]!);
  return options.scaler === undefined ? grad : options.scaler.scale(grad);
}

/** Calls the loss; if it throws, the error names its arguments. */
function lossOf(
  caller: LossCaller,
  of: { stage: number; microbatch: number; output: unknown; target: unknown; options: unknown },
): Tensor {
  const { stage, microbatch, output, target, options } = of;
  let loss: unknown;
  try {
    loss = caller.call(output, target, options);
  } catch (cause) {
    const why = cause instanceof Error ? cause.message : String(cause);
    throw new PipelineError(
      'LOSS_FAILED',
      `stage ${stage}, loss of microbatch ${microbatch}: ${why} (output: ${debugInfo(output)}; target: ${debugInfo(target)})`,
      { stage, microbatch },
      { cause },
    );
  }
  if (loss instanceof Tensor && loss.numel() === 1) return loss;
  throw new PipelineError(
    'BAD_LOSS',
    `lossFn returned ${loss instanceof Tensor ? `a tensor of shape [${loss.shape.join(', ')}]` : show(loss)} for microbatch ${microbatch}; return a tensor of one element`,
  );
}
