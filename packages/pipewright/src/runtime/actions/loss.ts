/** @file The loss of a microbatch, on the last stage, and what users see of its output. */
import { keep, Tensor } from '@pipewright/torch';
import { show } from '../../base/checks.ts';
import { debugInfo } from '../../base/describe.ts';
import { PipelineError } from '../../base/errors.ts';
import { mapTensors } from '../../base/tree.ts';
import type { PipelineStage } from '../../stage/pipeline-stage.ts';
import type { LossFunction } from '../options.ts';
import type { StepState } from '../row/step-state.ts';

/** Takes what the last stage returned for a microbatch: computes the loss, and keeps what the user wants to see. */
export function takeOutput(stage: PipelineStage, m: number, output: unknown, step: StepState): void {
  const { target } = step.batch;
  const { lossFn } = step.context.options;
  if (lossFn !== undefined && (target !== undefined || lossFn.length < 2)) {
    const loss = lossOf(lossFn, {
      stage: stage.stageIndex,
      microbatch: m,
      output,
      target: target?.[m],
      options: step.options.lossKwargs,
    });
    if (step.training) stage.setLoss(m, keep(loss.alias()));
    step.losses[m] = keep(loss.detach());
  }
  const { returnOutputs, onOutput } = step.options;
  if (returnOutputs === false && onOutput === undefined) return;
  const seen = mapTensors(output, (tensor) => tensor.detach());
  if (returnOutputs !== false) step.outputs[m] = keep(seen);
  onOutput?.(seen, m);
}

/** The gradient that the backward of the last stage begins with: the weight of the loss, times the scaler's scale. */
export function lossGradOf(stage: PipelineStage, m: number, step: StepState): Tensor | undefined {
  const loss = stage.isLast ? step.losses[m] : undefined;
  if (loss === undefined) return undefined;
  const { options, lossGrads } = step.context;
  const grad = lossGrads.of(m, loss, step.weights[m] as number);
  return options.scaler === undefined ? grad : options.scaler.scale(grad);
}

/** Calls the loss; where it throws, the error says on what. */
function lossOf(
  lossFn: LossFunction,
  of: { stage: number; microbatch: number; output: unknown; target: unknown; options: unknown },
): Tensor {
  const { stage, microbatch, output, target, options } = of;
  let loss: unknown;
  try {
    const call = lossFn as (output: unknown, target: unknown, options?: unknown) => unknown;
    loss = options === undefined ? call(output, target) : call(output, target, options);
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
