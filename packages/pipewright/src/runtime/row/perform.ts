/** @file How a row is walked: every action, and every part of one, is announced, performed and recorded here. */
import { rankStatus } from '../../status/rank-status.ts';
import { StepError } from '../errors.ts';
import type { PlannedAction } from './planned-action.ts';
import type { StepState } from './step-state.ts';

/** Performs all actions of a row; what goes wrong is told as the error of the action that was under way. */
export function walk(row: readonly PlannedAction[], step: StepState): void {
  try {
    for (const planned of row) perform(planned, step);
  } catch (cause) {
    if (cause instanceof StepError || step.current === null) throw cause;
    throw new StepError(step.context.rank, step.current, cause, step.waitingFor);
  }
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
}

/** An action goes on after something was performed inside of it. */
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
