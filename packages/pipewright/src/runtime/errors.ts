/** @file What went wrong in a step: which rank, which slot, which action, and why. */
import { formatAction } from '@pipewright/schedule';
import { distributed } from '@pipewright/torch';
import { PipelineError } from '../errors.ts';
import type { PlannedAction } from './plan.ts';

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

  constructor(rank: number, { slot, action }: PlannedAction, cause: unknown, waitingFor: string | null = null) {
    const text = formatAction(action);
    const why = cause instanceof Error ? cause.message : String(cause);
    const code = cause instanceof distributed.DistributedError ? cause.code : 'STEP_FAILED';
    const waiting = waitingFor === null ? '' : ` waiting for ${waitingFor}`;
    super(code, `rank ${rank}, slot ${slot} (${text})${waiting}: ${why}`, { rank, slot, action: text }, { cause });
    this.rank = rank;
    this.slot = slot;
    this.action = text;
  }
}
