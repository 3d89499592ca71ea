/** @file What a running job tells, put into words: who is slower than planned, who waits for whom and since when. */
import {
  formatAction,
  type LivePlace,
  type LiveStatus,
  type LiveStepSummary,
  percent,
  plural,
  quantity,
  type Recording,
  recordedActions,
  type Schedule,
} from '@pipewright/schedule';
import { type Differences, saySlowRanks } from './differences.ts';
import { sayUnfinished, type UnfinishedStep } from './unfinished.ts';

/** What the page knows of a running job. */
export interface LiveState {
  readonly schedule: Schedule | null;
  /** Training steps, and evaluations. */
  readonly steps: readonly LiveStepSummary[];
  readonly evaluations: readonly LiveStepSummary[];
  /** Whether the last of them all is an evaluation. */
  readonly evaluatedLast: boolean;
  /** The last training steps whose actions were timed, and the last evaluations. */
  readonly recording: Recording | null;
  readonly evaluation: Recording | null;
  readonly status: LiveStatus | null;
  /** The step under way, where the job failed in it or it takes long. */
  readonly unfinished: UnfinishedStep | null;
  readonly tokensPerStep: number | null;
  /** Milliseconds since 1970, on the clock of the job. */
  readonly now: number;
}

/** Whether the job evaluates now, not trains; of one that failed, whether it did then. */
export function isEvaluating({ status, unfinished, evaluatedLast }: LiveState): boolean {
  if (unfinished !== null) return unfinished.standings.every(({ evaluates }) => evaluates);
  return evaluatedLast && !status?.ended;
}

/** How far the job is, in words: the last training step, and how many evaluations there were. */
export function sayCount(state: LiveState): string {
  const [step, evaluation] = [state.steps.at(-1), state.evaluations.at(-1)];
  const said: string[] = [];
  if (step !== undefined) said.push(`step ${step.step}`);
  if (evaluation !== undefined) said.push(plural(evaluation.step + 1, 'evaluation'));
  if (said.length === 0) said.push('no step yet');
  if (isEvaluating(state) && !state.status?.ended) said.push('evaluates');
  return said.join(', ');
}

/** Compute time of every rank in a recorded step, in milliseconds. */
function computeTimes(recording: Recording): number[] {
  const times = new Array<number>(recording.ranks.length).fill(0);
  for (const { rank, action, start, end } of recordedActions(recording))
    if (['F', 'B', 'I', 'W'].includes(action.kind)) times[rank] = (times[rank] ?? 0) + end - start;
  return times;
}

/** Share by which a rank must be above the others to be named. */
const notable = 0.1;

/** Milliseconds from which on a wait is told. */
const longWaitMs = 2000;

function isLongWait(now: number): (place: LivePlace) => boolean {
  return ({ waitingFor, since }) => waitingFor !== null && now - since >= longWaitMs;
}

/** Sentences about a running job, the most important first; `differences` from the plan that the run follows, null without one. */
export function sayLive(state: LiveState, differences: Differences | null): string[] {
  const { status, recording } = state;
  const said: string[] = [];
  if (status?.ended?.failed === true) said.push(`The job failed: ${status.ended.message}`);
  else if (status?.ended) said.push('The job has ended.');
  if (status?.ended?.failed === true && state.unfinished !== null) said.push(...sayUnfinished(state.unfinished, true));
  const waits = status?.ended ? [] : (status?.places ?? []).filter(isLongWait(state.now));
  for (const place of waits) {
    const seconds = (state.now - place.since) / 1000;
    const whom = place.waitingFor === 'all' ? 'all others' : `rank ${place.waitingFor}`;
    said.push(`Rank ${place.rank} has waited ${quantity(Math.round(seconds))} s for ${whom} (${place.action}).`);
  }
  if (waits.length > 0 && state.unfinished !== null) said.push(...sayUnfinished(state.unfinished, false));
  if (recording !== null && !status?.ended)
    said.push(...(differences === null ? sayStragglers(recording) : saySlowRanks(differences)));
  return said;
}

/** How long after a status the launcher writes another one at the latest, in milliseconds, with a margin. */
const statusMs = 3000;
/** From when on a launcher that writes nothing is told. */
const silentMs = 10_000;

/** The moment that is shown, on the clock of the job; `heardAgo`: how long ago its last status came; null: in a page without a server. */
export function momentOf({ time, ended }: LiveStatus, heardAgo: number | null): number {
  // What has ended does not wait any longer, and of a job that is silent nothing later is known.
  return ended !== null || heardAgo === null ? time : time + Math.min(heardAgo, statusMs);
}

/** Whether the job is still heard of: how it ended, else what became of the connection; `connected` is null in a page without a server. */
export function sayConnection(status: LiveStatus | null, connected: boolean | null, heardAgo: number): string {
  const when = status === null ? '' : `${new Date(status.time).toISOString().replace('T', ' ').slice(0, 16)} UTC`;
  if (status !== null && status.ended !== null) return `${status.ended.failed ? 'failed' : 'ended'} on ${when}`;
  if (connected === null)
    return status === null ? 'as the job was when this page was written' : `as the job was on ${when}`;
  if (!connected) return 'not connected';
  if (status === null || heardAgo < silentMs) return 'connected';
  return `connected, but nothing was heard of the job since ${when}: it was stopped or killed`;
}

/** What is said where nothing is wrong. */
export function sayCalm({ steps, evaluations, recording }: LiveState, hasPlan: boolean): string {
  if (steps.length === 0 && evaluations.length === 0 && recording === null) return 'Waiting for the first step.';
  return hasPlan ? 'Every rank computes as planned.' : 'No rank is notably slower than the others.';
}

/** How long the last recorded step took, beside the plan or the average of the recent steps. */
export function sayLastStep({ steps }: Recording, plan: { readonly name: string; readonly ms: number } | null): string {
  const times = steps.map(({ ranks }) => {
    const begin = Math.min(...ranks.map((rank) => rank.begin));
    return Math.max(...ranks.map((rank) => rank.end)) - begin;
  });
  const last = times.at(-1) ?? 0;
  const usual = plan?.ms ?? times.reduce((a, b) => a + b, 0) / Math.max(1, times.length);
  const share = usual > 0 ? last / usual - 1 : 0;
  const change = share < 0 ? `${percent(-share)} shorter` : `${percent(share)} longer`;
  const beside =
    plan === null ? `recent average ${quantity(usual)} ms` : `planned in ${plan.name}: ${quantity(usual)} ms`;
  const what = steps.at(-1)?.training === false ? 'evaluation' : 'step';
  return `The last ${what} took ${quantity(last)} ms; ${beside} (${change}).`;
}

/** Which ranks compute longer than the others. */
function sayStragglers(recording: Recording): string[] {
  const times = computeTimes(recording);
  const sorted = times.toSorted((a, b) => a - b);
  const median = sorted[sorted.length >> 1] ?? 0;
  if (median <= 0) return [];
  return times.flatMap((time, rank) =>
    time > median * (1 + notable)
      ? [`Rank ${rank} computes ${percent(time / median - 1)} longer than the median rank.`]
      : [],
  );
}

/** Where every rank is; of a job that failed, where it was in the step that did not end: ranks that gave up say it no longer. */
export function placesOf({ status, unfinished }: Pick<LiveState, 'status' | 'unfinished'>): readonly LivePlace[] {
  const places = status?.places ?? [];
  if (status?.ended?.failed !== true || unfinished === null) return places;
  return places.map((place) => {
    const standing = unfinished.standings.find(({ rank }) => rank === place.rank);
    if (standing === undefined || standing.ended || standing.action === null || standing.cell === null) return place;
    const { step, evaluates, action, waitingFor, cell } = standing;
    const state = place.state === 'failed' || waitingFor === null ? place.state : 'waiting';
    return { ...place, state, step, evaluates, action, waitingFor, slot: cell.slot };
  });
}

/** Where a slot of the schedule is in a picture, which may have the forwards only; null where the picture does not have it. */
export function picturedSlot(picture: Schedule, schedule: Schedule | null, rank: number, slot: number): number | null {
  const action = actionAt(schedule, rank, slot);
  if (action === actionAt(picture, rank, slot)) return slot;
  const at = picture.order[rank]?.findIndex((one) => one !== null && formatAction(one) === action) ?? -1;
  return at < 0 ? null : at;
}

/** The action at a slot, as text. */
export function actionAt(schedule: Schedule | null, rank: number, slot: number | null): string {
  if (schedule === null || slot === null) return '';
  const action = schedule.at(rank, slot);
  return action === null ? '' : formatAction(action);
}
