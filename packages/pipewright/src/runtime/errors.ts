/** @file The error of a step: which rank, which slot, which action, and why. */
import { type Action, formatAction } from '@pipewright/schedule';
import { distributed } from '@pipewright/torch';
import { firstCause, packThrown } from '@pipewright/torch/environment';
import { PipelineError } from '../base/errors.ts';
import { passedCode } from '../base/passed-code.ts';

/**
 * An action of a step that failed. `rank`, `slot` and `action` say where, `cause` is the error itself.
 *
 * @example try { runtime.step(x, { target }) } catch (e) { if (e instanceof StepError) console.log(e.rank, e.slot, e.action) }
 */
export class StepError extends PipelineError {
  override readonly name = 'StepError';
  readonly rank: number;
  readonly slot: number;
  readonly action: string;

  constructor(
    rank: number,
    { slot, action }: { readonly slot: number; readonly action: Action },
    cause: unknown,
    waitingFor: string | null = null,
  ) {
    const text = formatAction(action);
    const why = packThrown(cause).message;
    // A collective of shards that failed names its parameter; its cause is the reason.
    const reason = cause instanceof PipelineError && cause.code === 'COLLECTIVE_FAILED' ? cause.cause : cause;
    const disagreed = cause instanceof PipelineError && cause.code === 'NO_AGREEMENT';
    const isPassedOn = reason instanceof distributed.DistributedError;
    const code = disagreed ? 'NO_AGREEMENT' : isPassedOn ? reason.code : 'STEP_FAILED';
    const waiting = waitingFor === null ? '' : ` waiting for ${waitingFor}`;
    super(
      passedCode(code),
      `rank ${rank}, slot ${slot} (${text})${waiting}: ${why}`,
      { rank, slot, action: text },
      { cause },
    );
    this.rank = rank;
    this.slot = slot;
    this.action = text;
    // The stack shows where it happened: in the model, in the loss, in a wait.
    const frames = framesOf(cause);
    if (frames !== undefined) this.stack = `${this.name}: ${this.message}\n${frames}`;
  }
}

/** The lines of the stack of the first error in a chain of causes. */
function framesOf(error: unknown): string | undefined {
  return /^ +at .*/ms.exec(packThrown(firstCause(error)).stack ?? '')?.[0];
}
