/** @file One action of a rank's row as it is executed. */
import type { Action } from '@pipewright/schedule';
import type { Place } from '../../status/rank-status.ts';
import type { StageLinks } from './links.ts';
import type { StepState } from './step-state.ts';

/**
 * The kinds of planned actions: those of schedules, and `B_SEND_B`, a full backward in whose middle the gradients of its inputs
 * leave: input half, `SEND_B`, weight half.
 */
export type PlannedKind = Action['kind'] | 'B_SEND_B';

/** Performs actions of one kind. */
export type Executor = (planned: PlannedAction, step: StepState) => void;

/** What performs each kind of action. */
export type Executors = Readonly<Partial<Record<PlannedKind, Executor>>>;

/** One action of the row. */
export interface PlannedAction {
  readonly kind: PlannedKind;
  /** What performs it. */
  readonly execute: Executor;
  /** Its stage; that of the first part for an overlapped action. */
  readonly links: StageLinks;
  readonly microbatch: number;
  /** The cell of the schedule that it is; of a `B_SEND_B` the backward. */
  readonly action: Action;
  readonly slot: number;
  /** Position among all actions of the row, the parts of an overlapped one after itself. */
  readonly index: number;
  /** What is performed inside it: the parts of an overlapped action, the send of a `B_SEND_B`. */
  readonly parts: readonly PlannedAction[];
  /** What the rank says about itself while it does it. */
  readonly place: Place;
  /** The same while it waits for the message of a link: of `links.from` in a forward, of `links.to` in a backward. */
  readonly waits: readonly Place[];
}
