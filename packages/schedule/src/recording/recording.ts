/** @file A recorded run: what the runtime measured, as plain data that every picture can draw. */

import type { Costs } from '../costs/costs.ts';
import { type Action, formatAction, isComputeOp } from '../model/action.ts';
import { ScheduleError } from '../model/errors.ts';
import { Schedule, type ScheduleJson } from '../model/schedule.ts';

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

/** Schedules and costs of recordings; kept, because they are asked for once per step. */
const schedules = new WeakMap<Recording, Schedule>();
const costs = new WeakMap<Recording, Costs>();

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

/**
 * What actions cost on average, by kind and stage, in milliseconds: the costs to simulate the same or another schedule with.
 * Messages cost nothing here.
 * @example simulate(buildSchedule('ZBVZeroBubble', shape), meanCosts(recording)).makespan
 */
export function meanCosts(recording: Recording): Costs {
  recordedSchedule(recording);
  let found = costs.get(recording);
  if (found === undefined) costs.set(recording, (found = findCosts(recording)));
  return found;
}

/** How much of a part's time counts as its own where parts ran side by side: together they took the time of the whole. */
function sharesOf(places: readonly RecordedPlace[], record: RankRecord): Map<number, number> {
  const shares = new Map<number, number>();
  for (const { index, parts } of places) {
    if (parts === 0 || record.start[index + 1]! < 0) continue;
    const all = Array.from({ length: parts }, (_, i) => index + 1 + i);
    const starts = all.map((part) => Math.max(record.start[part]!, record.ready[part]!));
    const stops = all.map((part) => record.stop[part]!);
    const sum = stops.reduce((total, stop, i) => total + stop - starts[i]!, 0);
    const whole = Math.max(...stops) - Math.min(...starts);
    if (whole < sum) for (const part of all) shares.set(part, whole / sum);
  }
  return shares;
}

function findCosts(recording: Recording): Costs {
  const schedule = recordedSchedule(recording);
  const places = schedule.order.map((row) => recordedPlaces(row));
  const kinds = ['F', 'B', 'I', 'W', 'UNSHARD', 'RESHARD', 'REDUCE_GRAD'] as const;
  type Measured = (typeof kinds)[number];
  const zeros = (): Record<Measured, number[]> =>
    Object.fromEntries(kinds.map((kind) => [kind, new Array<number>(schedule.stages).fill(0)])) as Record<
      Measured,
      number[]
    >;
  const sums = zeros();
  const counts = zeros();
  for (const step of steadySteps(recording)) {
    step.ranks.forEach((record, rank) => {
      const shares = sharesOf(places[rank]!, record);
      for (const { action, index } of places[rank]!) {
        const kind = kinds.find((name) => name === action.kind);
        const start = Math.max(record.start[index]!, record.ready[index]!);
        if (kind === undefined || start < 0) continue;
        sums[kind][action.stage]! += (record.stop[index]! - start) * (shares.get(index) ?? 1);
        counts[kind][action.stage]!++;
      }
    });
  }
  const mean = (kind: Measured): (number | null)[] =>
    counts[kind].map((count, stage) => (count === 0 ? null : sums[kind][stage]! / count));
  const [F, B, I, W] = [mean('F'), mean('B'), mean('I'), mean('W')];
  const collective = (name: 'unshard' | 'reshard' | 'reduceGrad', kind: Measured): Costs =>
    counts[kind].every((count) => count === 0) ? {} : { [name]: mean(kind).map((value) => value ?? 0) };
  const half = (stage: number): number => (B[stage] ?? 0) / 2;
  return {
    F: F.map((value) => value ?? 0),
    I: I.map((value, stage) => value ?? half(stage)),
    W: W.map((value, stage) => value ?? half(stage)),
    B: B.map((value, stage) => value ?? (I[stage] ?? 0) + (W[stage] ?? 0)),
    ...collective('unshard', 'UNSHARD'),
    ...collective('reshard', 'RESHARD'),
    ...collective('reduceGrad', 'REDUCE_GRAD'),
    overlap: 'parts',
  };
}
