/** @file Who waits for whom when an order cannot go on, as an error. */

import { ScheduleError } from './errors.ts';
import { Code } from './packed.ts';
import type { Schedule } from './schedule.ts';

/** Why a rank does not go on. */
export const Why = {
  Nothing: 0,
  /** A message or a neighbour stage's result is not there. */
  Arrival: 1,
  /** A backward before the forward of its own stage. */
  OwnForward: 2,
  /** A weight backward before its input backward. */
  OwnInput: 3,
  /** A send before what it sends is made. */
  NotMade: 4,
  /** Compute whose receive is not posted before it. */
  NotReceived: 5,
} as const;

/** What a rank waits for; `edge` is a number in `schedule.stageEdges`. */
export interface Blocked {
  why: (typeof Why)[keyof typeof Why];
  edge: number;
  backward: boolean;
}

/** One rank that does not go on, as an error's `details.waiting` lists it. */
export interface WaitingRank {
  readonly rank: number;
  readonly slot: number;
  /** The action it stands at. */
  readonly action: string;
  /** What it needs first. */
  readonly needs: string;
  /** The rank that has to provide it. */
  readonly from: number;
}

/** The error for an order in which some ranks wait for ever. */
export function deadlockError(caller: string, schedule: Schedule, blocked: readonly (Blocked & { readonly rank: number; readonly slot: number })[]): ScheduleError {
  const waiting = blocked.filter((b) => b.slot < (schedule.rows[b.rank]?.length ?? 0)).map((b) => describe(schedule, b));
  const cycle = cycleOf(waiting);
  const shown = cycle.length > 0 ? cycle : waiting;
  const lines = shown.slice(0, 8).map((w) => `rank ${w.rank} waits at slot ${w.slot} (${w.action}) for ${w.needs}`);
  if (shown.length > 8) lines.push(`and ${shown.length - 8} more`);
  const kind = cycle.length > 1 ? 'ranks wait for each other' : 'the order cannot go on';
  return new ScheduleError('DEADLOCK', `${caller}: ${kind}: ${lines.join('; ')}. Move what is waited for ahead, or run validate(schedule) for the rule it breaks`, {
    waiting,
    cycle: cycle.map((w) => w.rank),
  });
}

function describe(schedule: Schedule, wait: Blocked & { readonly rank: number; readonly slot: number }): WaitingRank {
  const { rank, slot, why, backward } = wait;
  const word = schedule.rows[rank]![slot]!;
  const base = { rank, slot, action: schedule.format(word) };
  const leaf = leafOf(schedule, word, backward);
  const { layout } = schedule;
  const stage = layout.stage(leaf);
  const microbatch = layout.microbatch(leaf);
  if (why === Why.OwnForward) return { ...base, needs: `${stage}F${microbatch} earlier in its own row`, from: rank };
  if (why === Why.OwnInput) return { ...base, needs: `${stage}I${microbatch} earlier in its own row`, from: rank };
  if (why === Why.NotMade) return { ...base, needs: `${stage}${backward ? 'I' : 'F'}${microbatch} earlier in its own row`, from: rank };
  if (why === Why.NotReceived) return { ...base, needs: `${stage}${backward ? 'RECV_B' : 'RECV_F'}${microbatch} earlier in its own row`, from: rank };
  const [a, b] = schedule.stageEdges[wait.edge] ?? [stage, stage];
  const source = backward ? b : a;
  const from = schedule.stageToRank[source] ?? -1;
  return { ...base, needs: `the ${backward ? 'gradient' : 'output'} of stage ${source}, microbatch ${microbatch}, from rank ${from}`, from };
}

/** The part of a word that waits. */
function leafOf(schedule: Schedule, word: number, backward: boolean): number {
  const leaves = schedule.composites.leavesOf(word);
  const backwards: readonly number[] = [Code.I, Code.B, Code.W, Code.SendB, Code.RecvB];
  return leaves.find((leaf) => backwards.includes(leaf & 15) === backward) ?? leaves[0] ?? word;
}

/** The ranks of a circle of waiting, if there is one. */
function cycleOf(waiting: readonly WaitingRank[]): WaitingRank[] {
  const byRank = new Map(waiting.map((w) => [w.rank, w]));
  for (const first of waiting) {
    const path: WaitingRank[] = [];
    const seen = new Set<number>();
    let at: WaitingRank | undefined = first;
    while (at !== undefined && !seen.has(at.rank)) {
      seen.add(at.rank);
      path.push(at);
      at = byRank.get(at.from);
    }
    if (at !== undefined) return path.slice(path.findIndex((w) => w.rank === at.rank));
  }
  return [];
}
