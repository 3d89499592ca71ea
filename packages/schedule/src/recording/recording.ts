/** @file A recorded run: what the runtime measured, as plain data that every picture can draw. */

import { type Action, formatAction, isComputeOp } from '../model/action.ts';
import { ScheduleError } from '../model/errors.ts';
import { Schedule, type ScheduleJson } from '../model/schedule.ts';

/** A machine of a recorded run. */
export interface RecordedMachine {
  readonly name: string;
  readonly cores: number;
  /** Ranks of the whole run that were on it, those of other pipelines beside this one included. */
  readonly ranks: number;
}

/** One rank of a recorded run. */
export interface RecordedRank {
  readonly rank: number;
  /** Which process it was; ranks that are threads of one process share it. */
  readonly process: string;
  /** Where it computed: `cpu`, `cuda:0`. */
  readonly device: string;
  /** The most memory its process has had, in bytes. */
  readonly peakProcessBytes: number;
  /** The most bytes of tensors on its GPU; null on the CPU, where memory is counted by process only. */
  readonly peakDeviceBytes: number | null;
  /** Where it was; left out where unknown. */
  readonly machine?: RecordedMachine;
}

/**
 * One rank's part of one step. Times are milliseconds since the recording began, on one clock for all ranks. The columns
 * have one entry per action of the rank's row, bubbles left out; an overlapped action has an entry of its own and then one
 * for each of its parts. -1: did not happen.
 */
export interface RankRecord {
  readonly begin: number;
  readonly end: number;
  readonly start: readonly number[];
  /** When the inputs of a forward or backward had been received; -1 where it receives nothing. */
  readonly ready: readonly number[];
  readonly stop: readonly number[];
  /** Bytes of tensors received or sent. */
  readonly bytes: readonly number[];
  /** Tensors alive after the action. */
  readonly tensors: readonly number[];
  /** Milliseconds that a processor worked for the action on the rank's thread, taking its message included, waits left out; -1 or left out where unknown. */
  readonly busy?: readonly number[];
  /** Memory of the process after the step. */
  readonly processBytes: number;
  /** Bytes of tensors on the GPU after the step; null on the CPU. */
  readonly deviceBytes: number | null;
  /** The most bytes held for backwards at the end of an action, counted on the CPU; null or left out elsewhere. */
  readonly heldBytes?: number | null;
}

/** One step of all ranks. */
export interface RecordedStep {
  /** Its number in the run, from 0; evaluations count. */
  readonly step: number;
  /** Whether it had a backward. */
  readonly training: boolean;
  /** By rank. */
  readonly ranks: readonly RankRecord[];
}

/** A recorded run. Plain data: `JSON.stringify` writes it, `JSON.parse` reads it. */
export interface Recording {
  readonly format: 'pipewright-recording';
  readonly version: 1;
  /** What was run, messages included. */
  readonly schedule: ScheduleJson;
  readonly tokensPerStep: number | null;
  readonly ranks: readonly RecordedRank[];
  /** The steps that were kept, in order. */
  readonly steps: readonly RecordedStep[];
}

/** One action as it was recorded. A receive is the time that its forward or backward waited for the message. */
export interface RecordedAction {
  readonly rank: number;
  readonly slot: number;
  readonly action: Action;
  /** Milliseconds since the recording began. */
  readonly start: number;
  readonly end: number;
  readonly bytes: number;
  /** Tensors alive after it. */
  readonly tensors: number;
}

/** An entry of the columns of a rank. */
export interface RecordedPlace {
  readonly action: Action;
  readonly slot: number;
  readonly index: number;
  /** How many of the entries after it are its parts. */
  readonly parts: number;
  /** Whether it is a part. */
  readonly isPart: boolean;
}

/** What the entries of the columns of a row are, in order. */
export function recordedPlaces(row: readonly (Action | null)[]): RecordedPlace[] {
  const places: RecordedPlace[] = [];
  const add = (action: Action, slot: number, isPart: boolean): number => {
    const index = places.length;
    const place = { action, slot, index, parts: 0, isPart };
    places.push(place);
    place.parts = (action.parts ?? []).reduce((sum, part) => sum + add(part, slot, true), 0);
    return place.parts + 1;
  };
  row.forEach((action, slot) => {
    if (action !== null) add(action, slot, false);
  });
  return places;
}

/** Schedules of recordings; kept, because they are asked for once per step. */
const schedules = new WeakMap<Recording, Schedule>();

/** The schedule of a recording. */
export function recordedSchedule(recording: Recording): Schedule {
  const known = schedules.get(recording);
  if (known !== undefined) return known;
  if (recording?.format !== 'pipewright-recording' || recording.version !== 1 || !Array.isArray(recording.steps))
    throw new ScheduleError('BAD_JSON', 'this is not a recording of a run: give what Recorder.gather() returned');
  const schedule = Schedule.fromJSON(recording.schedule);
  schedules.set(recording, schedule);
  return schedule;
}

/** A step of a recording, from its position among those kept; negative positions count from the end. */
export function recordedStepAt(recording: Recording, at: number): RecordedStep {
  const step = recording.steps.at(at);
  if (step !== undefined) return step;
  throw new ScheduleError(
    'BAD_OPTION',
    `the recording has ${recording.steps.length} steps, and none at ${at}; record a step first`,
  );
}

/**
 * What a step's ranks did and when, in order of their starts, rank by rank. Waits are intervals of their own: they stand as
 * the receives of the messages that were waited for.
 * @example recordedActions(recording).filter((a) => a.action.kind === 'RECV_F').map((a) => a.end - a.start)
 */
export function recordedActions(recording: Recording, at: number = -1): RecordedAction[] {
  const schedule = recordedSchedule(recording);
  const step = recordedStepAt(recording, at);
  return step.ranks.flatMap((record, rank) => actionsOfRank(recordedPlaces(schedule.order[rank] ?? []), record, rank));
}

/** The actions of one rank's part of a step. */
export function actionsOfRank(places: readonly RecordedPlace[], record: RankRecord, rank: number): RecordedAction[] {
  const consumers = new Map<string, RecordedPlace>();
  for (const place of places) {
    const key = receiveFor(place.action);
    if (key !== null) consumers.set(key, place);
  }
  const found: RecordedAction[] = [];
  for (const { action, slot, index, parts } of places) {
    const isReceive = action.kind === 'RECV_F' || action.kind === 'RECV_B';
    const consumer = isReceive ? consumers.get(formatAction(action)) : undefined;
    const from = consumer?.index ?? index;
    const start = record.start[from]!;
    if (start < 0 || (parts > 0 && record.start[index + 1]! >= 0)) continue; // parts stand for the whole
    const ready = record.ready[from]!;
    if (isReceive) {
      if (ready < 0) continue;
      found.push({
        rank,
        slot,
        action,
        start,
        end: ready,
        bytes: record.bytes[from]!,
        tensors: record.tensors[index]!,
      });
      continue;
    }
    found.push({
      rank,
      slot,
      action,
      start: ready < 0 ? start : ready,
      end: record.stop[index]!,
      bytes: isComputeOp(action.kind) ? 0 : record.bytes[index]!,
      tensors: record.tensors[index]!,
    });
  }
  return found.sort((a, b) => a.start - b.start || a.end - b.end);
}

/**
 * When a step begins: on the rank that computes first, with what it does first, collectives included. Other ranks may have come
 * earlier, while this one was still busy with the step before, and wait; undefined where nothing was computed.
 */
export function workBegin(events: readonly RecordedAction[]): number | undefined {
  let first: RecordedAction | undefined;
  for (const event of events)
    if (isComputeOp(event.action.kind) && (first === undefined || event.start < first.start)) first = event;
  const own = events.filter(({ rank, action }) => rank === first?.rank && !action.kind.startsWith('RECV'));
  return own.reduce<number | undefined>((least, { start }) => Math.min(least ?? start, start), undefined);
}

/** The text of the receive that an action waits for, if it is one that can wait. */
function receiveFor({ kind, stage, microbatch }: Action): string | null {
  if (kind === 'F') return `${stage}RECV_F${microbatch}`;
  return kind === 'B' || kind === 'I' ? `${stage}RECV_B${microbatch}` : null;
}

/**
 * Steps that show how a run goes: those with a backward where there are any, without the first, which warms up.
 */
export function steadySteps(recording: Recording): readonly RecordedStep[] {
  const training = recording.steps.filter((step) => step.training);
  const steps = training.length > 0 ? training : recording.steps;
  return steps.length > 1 && steps[0]!.step === 0 ? steps.slice(1) : steps;
}
