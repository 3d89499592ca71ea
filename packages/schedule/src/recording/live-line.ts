/**
 * @file The files of a run that is under way: the lines that every rank and the launcher append. Every line is checked when it
 * is read: a file may be cut off in the middle, or come from anywhere.
 */

import { ScheduleError, show } from '../model/errors.ts';
import type { ScheduleJson } from '../model/schedule.ts';
import { checkProgress, type LiveProgress } from './live-progress.ts';
import type { RankRecord } from './recording.ts';

/** The first line of a rank's file. */
export interface LiveRun {
  readonly kind: 'run';
  readonly version: 1;
  readonly rank: number;
  readonly device: string;
  readonly process: string;
  /** What has to be added to the rank's times, for milliseconds since 1970. */
  readonly origin: number;
  readonly tokensPerStep: number | null;
  /** On rank 0 only: all ranks run the same. */
  readonly schedule: ScheduleJson | null;
}

/** A step that a rank has ended. */
export interface LiveStep {
  readonly kind: 'step';
  /** Its number among all steps and evaluations. */
  readonly step: number;
  readonly training: boolean;
  /** Its number among the training steps, or among the evaluations; left out in older feeds. */
  readonly number?: number;
  /** Milliseconds on the rank's clock. */
  readonly begin: number;
  readonly end: number;
  /** Mean loss, where the rank has it. */
  readonly loss: number | null;
  readonly processBytes: number;
  readonly deviceBytes: number | null;
  /** The most bytes held for backwards, where they are counted. */
  readonly heldBytes: number | null;
  /** Times of the actions; left out where steps follow each other faster than anybody looks. */
  readonly actions: Pick<RankRecord, 'start' | 'ready' | 'stop' | 'bytes' | 'tensors'> | null;
}

/** Steps that a rank has ended between two that are written by themselves: they follow each other faster than anybody looks. */
export interface LiveSteps {
  readonly kind: 'steps';
  readonly step: readonly number[];
  /** As in `LiveStep`; both are left out in older feeds. */
  readonly training?: readonly boolean[];
  readonly number?: readonly number[];
  readonly begin: readonly number[];
  readonly end: readonly number[];
  readonly loss: readonly (number | null)[];
}

/** Where a rank is, as its launcher sees it. */
export interface LivePlace {
  readonly rank: number;
  readonly state: string;
  /** The number of the training step or, where `evaluates` is true, of the evaluation. */
  readonly step: number | null;
  readonly evaluates?: boolean;
  readonly slot: number | null;
  readonly action: string;
  /** The rank that is waited for, or `all`. */
  readonly waitingFor: number | 'all' | null;
  /** Milliseconds since 1970 from which on it is there. */
  readonly since: number;
}

/** What the launcher writes, a few times a second and at the end. */
export interface LiveStatus {
  readonly kind: 'status';
  readonly places: readonly LivePlace[];
  /** Null while the run goes on. */
  readonly ended: { readonly failed: boolean; readonly message: string } | null;
  /** Milliseconds since 1970. */
  readonly time: number;
  /** The same moment on the clock that the ranks of this machine share, in milliseconds. */
  readonly clock?: number;
  /** How far each rank is in its step: where the job failed, or the step takes long; left out elsewhere. */
  readonly progress?: readonly LiveProgress[];
}

/** Any line. */
export type LiveLine = LiveRun | LiveStep | LiveSteps | LiveStatus;

const mostRanks = 4096;
const mostActions = 1_000_000;

/**
 * Reads a line; null where it is not one.
 * @example parseLiveLine('{"kind":"step","step":3')  // null: cut off
 */
export function parseLiveLine(text: string): LiveLine | null {
  let data: unknown;
  try {
    data = JSON.parse(text);
  } catch {
    return null;
  }
  if (typeof data !== 'object' || data === null) return null;
  const line = data as Record<string, unknown>;
  if (line['kind'] === 'run') return readRun(line);
  if (line['kind'] === 'step') return readStep(line);
  if (line['kind'] === 'steps') return readSteps(line);
  return line['kind'] === 'status' ? readStatus(line) : null;
}

function readRun(line: Record<string, unknown>): LiveRun | null {
  const { rank, device, process, origin, tokensPerStep, schedule, version } = line;
  if (version !== 1 || !isRank(rank) || !isNumber(origin)) return null;
  return {
    kind: 'run',
    version: 1,
    rank,
    device: textOf(device),
    process: textOf(process),
    origin,
    tokensPerStep: isNumber(tokensPerStep) ? tokensPerStep : null,
    schedule: typeof schedule === 'object' ? (schedule as ScheduleJson | null) : null,
  };
}

function readStep(line: Record<string, unknown>): LiveStep | null {
  const { step, training, number, begin, end, loss, processBytes, deviceBytes, heldBytes, actions } = line;
  if (!isNumber(step) || !isNumber(begin) || !isNumber(end)) return null;
  const columns = actions as Record<string, unknown> | null | undefined;
  const column = (name: string): readonly number[] | null => {
    const values = columns?.[name];
    return Array.isArray(values) && values.length <= mostActions && values.every(isNumber) ? values : null;
  };
  const [start, ready, stop, bytes, tensors] = ['start', 'ready', 'stop', 'bytes', 'tensors'].map(column);
  const whole = start && ready && stop && bytes && tensors;
  const even = whole && [ready, stop, bytes, tensors].every(({ length }) => length === start.length);
  return {
    kind: 'step',
    step,
    training: training === true,
    ...(isNumber(number) ? { number } : {}),
    begin,
    end,
    loss: isNumber(loss) ? loss : null,
    processBytes: isNumber(processBytes) ? processBytes : 0,
    deviceBytes: isNumber(deviceBytes) ? deviceBytes : null,
    heldBytes: isNumber(heldBytes) ? heldBytes : null,
    actions: even ? { start, ready, stop, bytes, tensors } : null,
  };
}

function readSteps({ step, training, number, begin, end, loss }: Record<string, unknown>): LiveSteps | null {
  const isColumn = (values: unknown): values is number[] =>
    Array.isArray(values) && values.length <= mostActions && values.every(isNumber);
  if (!isColumn(step) || !isColumn(begin) || !isColumn(end)) return null;
  if (begin.length !== step.length || end.length !== step.length) return null;
  const losses: readonly unknown[] = Array.isArray(loss) ? loss : [];
  const isNumbered = isColumn(number) && number.length === step.length;
  const isTold = isNumbered && Array.isArray(training) && training.length === step.length;
  return {
    kind: 'steps',
    step,
    ...(isTold ? { training: training.map((one: unknown) => one === true), number } : {}),
    begin,
    end,
    loss: step.map((_, i) => (isNumber(losses[i]) ? losses[i] : null)),
  };
}

function readStatus(line: Record<string, unknown>): LiveStatus | null {
  const { places, ended, time, clock, progress } = line;
  if (!Array.isArray(places) || places.length > mostRanks || !isNumber(time)) return null;
  const end = ended as Record<string, unknown> | null | undefined;
  return {
    kind: 'status',
    time,
    places: places.flatMap((entry: unknown) => {
      const place = (typeof entry === 'object' && entry !== null ? entry : {}) as Record<string, unknown>;
      const { rank, state, step, evaluates, slot, action, waitingFor, since } = place;
      if (!isRank(rank)) return [];
      return [
        {
          rank,
          state: textOf(state),
          step: isNumber(step) ? step : null,
          ...(evaluates === true ? { evaluates } : {}),
          slot: isNumber(slot) ? slot : null,
          action: textOf(action),
          waitingFor: waitingFor === 'all' ? ('all' as const) : isRank(waitingFor) ? waitingFor : null,
          since: isNumber(since) ? since : time,
        },
      ];
    }),
    ended:
      typeof end === 'object' && end !== null
        ? { failed: end['failed'] === true, message: textOf(end['message']) }
        : null,
    ...(isNumber(clock) ? { clock } : {}),
    ...(Array.isArray(progress) && progress.length <= mostRanks
      ? { progress: progress.flatMap((one: unknown) => checkProgress(one) ?? []) }
      : {}),
  };
}

function isNumber(value: unknown): value is number {
  return typeof value === 'number' && Number.isFinite(value);
}

function isRank(value: unknown): value is number {
  return isNumber(value) && Number.isInteger(value) && value >= 0 && value < mostRanks;
}

function textOf(value: unknown): string {
  return typeof value === 'string' ? value.slice(0, 2000) : '';
}

/** The rank that a file of a live run belongs to; null for a file of another name. */
export function liveRankOf(file: string): number | 'launcher' | null {
  if (typeof (file as unknown) !== 'string') return null;
  if (file === 'launcher.jsonl') return 'launcher';
  const rank = Number(/^rank-(\d{1,4})\.jsonl$/.exec(file)?.[1] ?? Number.NaN);
  return isRank(rank) ? rank : null;
}

/** The name of a rank's file in the folder of a live run. */
export function liveFileOf(rank: number): string {
  if (!isRank(rank))
    throw new ScheduleError('BAD_OPTION', `liveFileOf: rank is ${show(rank)}; give 0 to ${mostRanks - 1}`);
  return `rank-${rank}.jsonl`;
}
