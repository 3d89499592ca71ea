/** @file The errors of a stage: calls in a wrong order, computations that fail, tensors that are not what was declared. */
import { Tensor } from '@pipewright/torch';
import { show } from '../base/checks.ts';
import { describeTensor } from '../base/describe.ts';
import { PipelineError } from '../base/errors.ts';
import { tensorsIn } from '../base/tree.ts';

/** A microbatch at a stage: where an error happened, also in its `details`. */
export type StagePlace = { readonly stage: number; readonly microbatch: number };

/** The error for a call whose predecessor is missing. */
export function outOfOrder({ stage, microbatch }: StagePlace, what: string, missing: string): PipelineError {
  return new PipelineError(
    'OUT_OF_ORDER',
    `stage ${stage}: ${what} of microbatch ${show(microbatch)} without ${missing}; the schedule must have it before (validate() says where)`,
    { stage, microbatch },
  );
}

/** The error for a call that comes once in a step and was made again; `other` names the other stage where there is one. */
export function repeated({ stage, microbatch }: StagePlace, what: string, other = ''): PipelineError {
  return new PipelineError(
    'OUT_OF_ORDER',
    `stage ${stage}: ${what} of microbatch ${microbatch}${other} for the second time; each comes once in a step (clearRuntimeStates begins anew)`,
    { stage, microbatch },
  );
}

/** The error for a forward or backward that has failed; `tensors` says what it computed with. */
export function computationFailed(
  { stage, microbatch }: StagePlace,
  what: string,
  cause: unknown,
  tensors: string | null = null,
): PipelineError {
  const reason = cause instanceof Error ? cause.message : String(cause);
  return new PipelineError(
    'STAGE_FAILED',
    `stage ${stage}, ${what} of microbatch ${microbatch}: ${reason}${tensors === null ? '' : ` (${tensors})`}`,
    { stage, microbatch },
    { cause },
  );
}

/** Refuses what cannot be the gradient of an input. */
export function checkInputGrad({ stage, microbatch }: StagePlace, input: Tensor, grad: unknown): void {
  if (grad === null || grad === undefined) return;
  if (grad instanceof Tensor && grad.shape.join() === input.shape.join()) return;
  throw new PipelineError(
    'GRADIENT_MISMATCH',
    `stage ${stage}, microbatch ${microbatch}: the gradient of an input ${describeTensor(input)} is ${grad instanceof Tensor ? describeTensor(grad) : show(grad)}; give a tensor of its shape, or null`,
    { stage, microbatch },
  );
}

/** Refuses tensors that differ from those that `inputArgs` or `outputArgs` declare. */
export function checkDeclared(
  stage: number,
  what: 'inputs' | 'outputs',
  expected: readonly string[],
  given: unknown,
): void {
  const tensors = tensorsIn(given).map(describeTensor);
  if (tensors.join() === expected.join()) return;
  const different = expected.findIndex((text, i) => text !== tensors[i]);
  const place = tensors.length === expected.length ? `tensor ${different}` : 'the number of tensors';
  throw new PipelineError(
    'SHAPE_MISMATCH',
    `stage ${stage}: ${place} of its ${what} differs from ${what === 'inputs' ? 'inputArgs' : 'outputArgs'}: declared ${expected.join(', ')}; got ${tensors.join(', ')}. Declare what the stage really gets, or leave both out: shapes travel with every message`,
    { stage, expected, got: tensors },
  );
}
