/** @file What happened when ranks were lost and replaced: which, where, and how long detection, repair and repetition took. */
import { checkArgument } from '../../base/checks.ts';
import type { RankPlace } from '../../status/place.ts';
import type { RankFailure } from '../ranks/rank-failure.ts';

/** A rank that was lost and started again. */
export interface LostRank {
  readonly rank: number;
  /** What went wrong, in one line. */
  readonly message: string;
  /** Where it was, if it had reported it. */
  readonly slot: number | undefined;
  readonly action: string | undefined;
  /** Where its state came from. */
  readonly from: string | undefined;
}

/** Ranks were lost, started again alone, and the step was repeated. Times are in milliseconds. */
export interface Recovery {
  /** How often ranks were started again so far, and how often they may be. */
  readonly count: number;
  readonly of: number;
  readonly lost: readonly LostRank[];
  /** The step that was under way; undefined where there was none. */
  readonly step: number | undefined;
  /** The step from whose beginning all ranks continued. */
  readonly resumedAt: number | undefined;
  /** When the first of them was lost, on the machine's steady clock. */
  readonly atMs: number;
  /** From the loss until the launcher knew of it. */
  readonly noticedAfterMs: number;
  /** From the loss until the last of the other ranks had stopped its step. */
  readonly stoppedAfterMs: number;
  /** From the loss until all ranks, the new ones included, were ready to connect: a new process has started and imported everything. */
  readonly readyAfterMs: number;
  /** From the loss until all ranks were connected again and had their state. */
  readonly repairedAfterMs: number;
  /** How long the repeated steps took. */
  readonly repeatedMs: number;
  /** The generation of the ranks after it. */
  readonly generation: number;
}

/** A recovery in one line. @example formatRecovery(recovery) // 'rank 2 was lost (killed by SIGKILL) at slot 4 (1F2): ...' */
export function formatRecovery(recovery: Recovery): string {
  const isRecovery = Array.isArray((recovery as Recovery | null)?.lost);
  checkArgument('formatRecovery', isRecovery, ['the argument', recovery], 'a recovery, as onRecovery gets it');
  const { lost, step, resumedAt, count, of } = recovery;
  const ms = (value: number): string => `${Math.round(value).toLocaleString('en-US')} ms`;
  const who = lost.map(({ rank, message, slot, action, from }) => {
    const where =
      slot === undefined ? (action === undefined ? '' : ` at: ${action}`) : ` at slot ${slot} (${String(action)})`;
    return `rank ${rank} was lost${where}: ${message}${from === undefined || from === '' ? '' : `; its state came from ${from}`}`;
  });
  const what = who.length === 0 ? ['the ranks lost their connections'] : who;
  return [
    `recovery ${count} of ${of}: ${what.join('. ')}`,
    `noticed after ${ms(recovery.noticedAfterMs)}, the others stopped after ${ms(recovery.stoppedAfterMs)}, repaired after ${ms(recovery.repairedAfterMs)}`,
    step === undefined || resumedAt === undefined || step < resumedAt
      ? 'no step had to be repeated'
      : `${step === resumedAt ? `step ${step}` : `steps ${resumedAt} to ${step}`} repeated in ${ms(recovery.repeatedMs)}`,
  ].join('; ');
}

/** A rank that was lost, as its launcher saw it. */
export function lostRank({ rank, message }: RankFailure, place: RankPlace | undefined): LostRank {
  return {
    rank,
    message: message.replaceAll(/\s*\n\s*/g, ' '),
    slot: place?.slot,
    action: place === undefined || place.action === '' ? undefined : place.action,
    from: undefined,
  };
}
