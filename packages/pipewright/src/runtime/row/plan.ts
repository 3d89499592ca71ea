/** @file A rank's row of a lowered schedule, compiled into the list that steps walk. */
import { type Action, formatAction, type Schedule } from '@pipewright/schedule';
import { PipelineError } from '../../base/errors.ts';
import type { PipelineStage } from '../../stage/pipeline-stage.ts';
import type { StageDescription } from '../../stage/wiring.ts';
import type { Place } from '../../status/rank-status.ts';
import { sendInBackwards } from './early-gradients.ts';
import { linksOf, type StageLinks } from './links.ts';
import type { Executor, Executors, PlannedAction } from './planned-action.ts';

/** Kinds that are left out of the row where nothing executes them. */
const optional: readonly string[] = ['UNSHARD', 'RESHARD', 'REDUCE_GRAD'];
const forwardKinds: readonly string[] = ['F', 'SEND_F', 'RECV_F', 'UNSHARD', 'RESHARD'];

/** What a row is compiled for. */
export interface RowOptions {
  /** The function that performs each kind of action. */
  readonly executors: Executors;
  /** Gradients leave in the middle of a full backward where its send follows it. */
  readonly earlyGradients: boolean;
}

/** Everything that a rank needs to compile its rows; made once. */
export class Plan {
  readonly stages: readonly StageLinks[];
  /** Number of actions, parts of overlapped ones counted too. */
  readonly count: number;
  private readonly rank: number;
  private readonly row: readonly (Action | null)[];
  private readonly links: ReadonlyMap<number, StageLinks>;
  /** Where the receives of the row stand, by their text. */
  private readonly receives: ReadonlyMap<string, number>;

  constructor(
    schedule: Schedule,
    rank: number,
    stages: readonly PipelineStage[],
    descriptions: readonly StageDescription[],
  ) {
    this.rank = rank;
    this.row = schedule.order[rank] ?? [];
    this.links = linksOf(schedule, stages, descriptions);
    this.stages = [...this.links.values()];
    this.receives = new Map(
      this.row.flatMap((action, slot) =>
        action?.kind === 'RECV_F' || action?.kind === 'RECV_B' ? [[formatAction(action), slot] as const] : [],
      ),
    );
    this.count = this.row.reduce((sum, action) => sum + (action === null ? 0 : 1 + (action.parts?.length ?? 0)), 0);
  }

  /** What a training step walks. */
  trainingRow({ executors, earlyGradients }: RowOptions): readonly PlannedAction[] {
    const row = this.compile(executors);
    return earlyGradients ? sendInBackwards(row, executors) : row;
  }

  /** Forwards and their messages only: what an evaluation walks. */
  forwardRow({ executors }: RowOptions): readonly PlannedAction[] {
    const row = this.compile(executors)
      .flatMap((planned) => (planned.kind === 'OVERLAP_F_B' ? planned.parts : [planned]))
      .filter(({ kind }) => forwardKinds.includes(kind));
    return row.filter((planned, at) => isUsed(row, planned, at));
  }

  private compile(executors: Executors): PlannedAction[] {
    let index = 0;
    return this.row.flatMap((action, slot) => {
      if (action === null) return [];
      const at = index;
      index += 1 + (action.parts?.length ?? 0);
      const execute = this.executorOf(action, slot, executors);
      return execute === null ? [] : [this.plan({ action, slot, index: at, execute }, executors)];
    });
  }

  private plan(of: Cell, executors: Executors): PlannedAction {
    const { action, slot, index, execute } = of;
    const parts = (action.parts ?? []).map((part, i) =>
      this.plan(
        { action: part, slot, index: index + 1 + i, execute: this.executorOf(part, slot, executors)! },
        executors,
      ),
    );
    const links = parts[0]?.links ?? this.links.get(action.stage);
    if (links === undefined)
      throw new PipelineError(
        'BAD_SCHEDULE',
        `slot ${slot} of rank ${this.rank} is ${formatAction(action)}, but the rank does not hold stage ${action.stage}`,
        { rank: this.rank, slot },
      );
    return {
      kind: action.kind,
      execute,
      links,
      microbatch: action.microbatch ?? -1,
      action,
      slot,
      index,
      parts,
      place: { slot, action: formatAction(action) },
      waits: this.waitsOf(action, slot, links),
    };
  }

  /** What a rank says while an action waits for its messages: that it is where the receive stands. */
  private waitsOf({ kind, microbatch, stage }: Action, slot: number, { from, to }: StageLinks): Place[] {
    const [others, receive] = kind === 'F' ? [from, 'RECV_F'] : [to, 'RECV_B'];
    const action = `${stage}${receive}${microbatch}`;
    const place = { slot: this.receives.get(action) ?? slot, action };
    return others.map(({ rank }) => ({ ...place, waitingFor: rank }));
  }

  private executorOf(action: Action, slot: number, executors: Executors): Executor | null {
    const execute = executors[action.kind];
    if (execute !== undefined) return execute;
    if (optional.includes(action.kind)) return null;
    throw new PipelineError(
      'BAD_SCHEDULE',
      `slot ${slot} of rank ${this.rank} is ${formatAction(action)}, and nothing executes '${action.kind}'`,
      { rank: this.rank, slot },
    );
  }
}

/** Whether a stage that is unsharded for backwards, in a row without them, has a forward in between. */
function isUsed(row: readonly PlannedAction[], { kind, links }: PlannedAction, at: number): boolean {
  if (kind !== 'UNSHARD' && kind !== 'RESHARD') return true;
  const step = kind === 'UNSHARD' ? 1 : -1;
  for (let i = at + step; i >= 0 && i < row.length; i += step) {
    const next = row[i]!;
    if (next.links !== links) continue;
    if (next.kind === 'F') return true;
    if (next.kind === 'UNSHARD' || next.kind === 'RESHARD') return false;
  }
  return false;
}

/** A cell of the row and its executor. */
interface Cell {
  readonly action: Action;
  readonly slot: number;
  readonly index: number;
  readonly execute: Executor;
}
