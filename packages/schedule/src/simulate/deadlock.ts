/** @file Who waits for whom when an order cannot go on, as an error. */

import { ScheduleError } from '../model/errors.ts';
import { Code, samePair, wordCode } from '../model/packed.ts';
import type { Schedule } from '../model/schedule.ts';
import { followWaits } from '../model/waits.ts';

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

/** One of the numbers of `Why`. */
export type WhyCode = (typeof Why)[keyof typeof Why];

/** A rank that waits; `key` is the message's number (see `Messages` in replay.ts), -1 where it waits for its own row. */
export interface Blocked {
  readonly rank: number;
  readonly slot: number;
  readonly why: WhyCode;
  readonly key: number;
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
export function deadlockError(caller: string, schedule: Schedule, blocked: readonly Blocked[]): ScheduleError {
  const waiting = blocked
    .filter((b) => b.slot < (schedule.rows[b.rank]?.length ?? 0))
    .map((b) => describe(schedule, b));
  const cycle = cycleOf(waiting);
  const shown = cycle.length > 0 ? cycle : waiting;
  const lines = shown.slice(0, 8).map((w) => `rank ${w.rank} waits at slot ${w.slot} (${w.action}) for ${w.needs}`);
  if (shown.length > 8) lines.push(`and ${shown.length - 8} more`);
  const kind = cycle.length > 1 ? 'ranks wait for each other' : 'the order cannot go on';
  return new ScheduleError(
    'DEADLOCK',
    `${caller}: ${kind}: ${lines.join('; ')}. Move what is waited for ahead, or run validate(schedule) for the rule it breaks`,
    {
      waiting,
      cycle: cycle.map((w) => w.rank),
    },
  );
}

function describe(schedule: Schedule, { rank, slot, why, key }: Blocked): WaitingRank {
  const { layout, microbatches, stageEdges } = schedule;
  const word = schedule.rows[rank]![slot]!;
  const base = { rank, slot, action: schedule.format(word) };
  if (key >= 0) {
    const backward = key >= stageEdges.length * microbatches;
    const [a, b] = stageEdges[Math.floor(key / microbatches) % stageEdges.length]!;
    const microbatch = key % microbatches;
    const source = backward ? b : a;
    if (why === Why.NotReceived)
      return {
        ...base,
        needs: `${backward ? a : b}${backward ? 'RECV_B' : 'RECV_F'}${microbatch} earlier in its own row`,
        from: rank,
      };
    const from = schedule.stageToRank[source] ?? -1;
    return {
      ...base,
      needs: `the ${backward ? 'gradient' : 'output'} of stage ${source}, microbatch ${microbatch}, from rank ${from}`,
      from,
    };
  }
  const leaf = leafOf(schedule, word, why);
  const backward = why === Why.NotMade && wordCode(leaf) === Code.SendB;
  const kind = why === Why.OwnInput || backward ? 'I' : 'F';
  const name = `${layout.stage(leaf)}${kind}${layout.microbatch(leaf)}`;
  return {
    ...base,
    needs: isInCell(schedule, word, leaf, kind)
      ? `${name}, which comes after it in the same cell (the parts of a cell run in the order in which they are written)`
      : `${name} earlier in its own row`,
    from: rank,
  };
}

/** Whether the cell of a part that waits holds what it waits for. */
function isInCell(schedule: Schedule, word: number, leaf: number, kind: 'I' | 'F'): boolean {
  return schedule.composites.leavesOf(word).some((part) => {
    const code = wordCode(part);
    return samePair(part, leaf) && (kind === 'F' ? code === Code.F : code === Code.I || code === Code.B);
  });
}

/** The part of a word that waits. */
function leafOf(schedule: Schedule, word: number, why: WhyCode): number {
  const leaves = schedule.composites.leavesOf(word);
  const wanted: readonly number[] =
    why === Why.OwnInput ? [Code.W] : why === Why.OwnForward ? [Code.I, Code.B] : [Code.SendF, Code.SendB];
  return leaves.find((leaf) => wanted.includes(wordCode(leaf))) ?? leaves[0] ?? word;
}

/** The ranks of a cycle of waiting, if there is one. */
function cycleOf(waiting: readonly WaitingRank[]): WaitingRank[] {
  const byRank = new Map(waiting.map((w) => [w.rank, w]));
  for (const { rank } of waiting) {
    const { path, cycleAt } = followWaits(rank, (r) => byRank.get(r)?.from ?? -1);
    if (cycleAt >= 0) return path.slice(cycleAt).map((r) => byRank.get(r)!);
  }
  return [];
}
