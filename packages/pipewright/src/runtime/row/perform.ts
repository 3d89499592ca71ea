/** @file Walks a row: announces, performs and records every action and every part of one. */
import { PipelineError } from '../../base/errors.ts';
import { rankStatus } from '../../status/rank-status.ts';
import { StepError } from '../errors.ts';
import type { PlannedAction } from './planned-action.ts';
import { refuseRow, StepRefused } from './refusal.ts';
import type { StepState } from './step-state.ts';

/**
 * Performs all actions of a row; a failure is reported as the error of the action that was under way. Returns the error of a step
 * that was refused, on this rank or another, after its row has ended.
 */
export function walk(row: readonly PlannedAction[], step: StepState): Error | null {
  let at = 0;
  try {
    for (; at < row.length; at++) perform(row[at]!, step);
    return null;
  } catch (cause) {
    if (cause instanceof StepRefused) {
      refuseRow(row, at, step, cause.reason);
      return cause;
    }
    if (cause instanceof StepError || step.current === null) throw cause;
    const error = new StepError(step.context.rank, step.current, cause, step.waitingFor);
    const isAlone = step.context.parallel === null; // replicas have begun, and would wait
    if (!isAlone || !step.context.mayRefuse || step.hasExchanged || !isWrongInput(cause)) throw error;
    // No other rank has received anything that was computed before.
    for (const { links } of row) links.stage.clearRuntimeStates();
    step.outgoing.length = 0;
    refuseRow(row, at, step, error.message);
    return error;
  }
}

/** Whether an error comes from the inputs of the first stage. */
function isWrongInput(cause: unknown): boolean {
  return cause instanceof PipelineError && cause.code === 'STAGE_FAILED';
}

/** Performs one action, or a part of one inside of it. */
export function perform(planned: PlannedAction, step: StepState): void {
  const outer = step.current;
  enter(planned, step);
  planned.execute(planned, step);
  leave(planned, step);
  if (outer === null) step.current = null;
  else resume(outer, step);
}

/** An action begins. */
export function enter(planned: PlannedAction, step: StepState): void {
  const { recorder, hooks } = step.context;
  step.current = planned;
  rankStatus.set(planned.place);
  recorder?.begin(planned.index);
  for (const hook of hooks) hook.before?.(planned.action, planned.slot);
  awaitParameters(planned, step);
}

/** What an action computes with is gathered: on a GPU for what is computed next in the current stream. */
export function awaitParameters(planned: PlannedAction, step: StepState): void {
  const { recorder, parallel } = step.context;
  if (parallel === null || !computing.includes(planned.kind)) return;
  const { stageIndex } = planned.links.stage;
  const waited = parallel.ready(stageIndex);
  recorder?.parametersCame();
  if (waited === null || recorder === null) return;
  recorder.received([]);
  const gathering = step.gathering.get(stageIndex);
  if (gathering !== undefined) recorder.prolong(gathering, waited);
}

/** Kinds that compute with the parameters of a stage. */
const computing: readonly string[] = ['F', 'B', 'B_SEND_B', 'I', 'W'];

/** An action goes on after another one was performed inside of it. */
export function resume(planned: PlannedAction, step: StepState): void {
  step.current = planned;
  rankStatus.set(planned.place);
}

/** An action ends. */
export function leave(planned: PlannedAction, step: StepState): void {
  const { recorder, hooks } = step.context;
  for (const hook of hooks) hook.after?.(planned.action, planned.slot);
  recorder?.end(planned.index);
}
