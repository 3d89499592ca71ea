/** @file The records of all ranks, brought to rank 0 and onto one clock. */
import { availableParallelism, hostname } from 'node:os';
import type { RankRecord, RecordedMachine, RecordedStep, Recording, Schedule } from '@pipewright/schedule';
import { type distributed, scope, tensor } from '@pipewright/torch';
import { RECORDING_TAG as TAG } from '../base/tags.ts';
import { clockOffset, clockOrigin, serveClock } from './clock.ts';

/** Entries of a record per action, in this order. */
export const Column = { Start: 0, Ready: 1, Stop: 2, Bytes: 3, Tensors: 4, Busy: 5 } as const;
export const COLUMNS = 6;

/** One step of one rank; times are those of its own clock. */
export interface StepPart {
  readonly step: number;
  readonly training: boolean;
  readonly begin: number;
  readonly end: number;
  readonly processBytes: number;
  readonly deviceBytes: number | null;
  readonly heldBytes: number | null;
  /** `COLUMNS` numbers per action. */
  readonly data: Float64Array;
}

/** What one rank has recorded. */
export interface RankPart {
  readonly rank: number;
  readonly process: string;
  readonly device: string;
  readonly peakProcessBytes: number;
  readonly peakDeviceBytes: number | null;
  readonly machine: RecordedMachine;
  readonly steps: readonly StepPart[];
}

/** A name for this process that no other process of the run has. */
export function processName(): string {
  return `${hostname()}:${process.pid}`;
}

/** This machine; it has all `ranks` of the run if the launcher does not say how many are here. */
export function thisMachine(ranks: number): RecordedMachine {
  const here = Number(process.env['LOCAL_WORLD_SIZE'] ?? ranks);
  return {
    name: hostname(),
    cores: availableParallelism(),
    ranks: Number.isSafeInteger(here) && here > 0 ? here : ranks,
  };
}

/** The parts of all ranks on rank 0, on its clock; null on the others. */
export function gatherParts(group: distributed.ProcessGroup | null, mine: RankPart): RankPart[] | null {
  if (group === null) return [mine];
  const own = clockOrigin();
  const clocks = group.allGatherObject([mine.process, own]) as [string, number][];
  const [host, origin] = clocks[0]!;
  const sharesClock = (rank: number): boolean => clocks[rank]?.[0] === host;
  if (group.rank !== 0) {
    const channel = group.channel(0);
    const offset = sharesClock(group.rank) ? own - origin : clockOffset(channel, TAG);
    sendPart(channel, shifted(mine, offset));
    return null;
  }
  const parts = [mine];
  for (let rank = 1; rank < group.size; rank++) {
    const channel = group.channel(rank);
    if (!sharesClock(rank)) serveClock(channel, TAG);
    parts.push(recvPart(channel));
  }
  return parts;
}

/** A part with all its times moved. */
function shifted(part: RankPart, by: number): RankPart {
  if (by === 0) return part;
  const steps = part.steps.map((step) => ({
    ...step,
    begin: step.begin + by,
    end: step.end + by,
    data: step.data.map((value, at) => (at % COLUMNS <= Column.Stop && value >= 0 ? value + by : value)),
  }));
  return { ...part, steps };
}

function sendPart(channel: distributed.Channel, part: RankPart): void {
  scope(() => {
    const header = { ...part, steps: part.steps.map((step) => ({ ...step, data: null })) };
    const tensors = part.steps.map(({ data }) => tensor(data, { dtype: 'float64' }));
    channel.sendMessage(TAG, { tensors, header: header as unknown as distributed.Json });
  });
}

function recvPart(channel: distributed.Channel): RankPart {
  return scope(() => {
    const { tensors, header } = channel.recvMessage(TAG);
    const part = header as unknown as RankPart;
    const steps = part.steps.map((step, i) => ({
      ...step,
      data: Float64Array.from(tensors[i]!.toTypedArray() as Float64Array),
    }));
    return { ...part, steps };
  });
}

/** Parts of all ranks as one recording. Steps that some rank has not kept are left out. */
export function recordingOf(schedule: Schedule, parts: readonly RankPart[], tokensPerStep: number | null): Recording {
  const byStep = parts.map((part) => new Map(part.steps.map((step) => [step.step, step])));
  const common = [...(byStep[0]?.keys() ?? [])].filter((step) => byStep.every((steps) => steps.has(step)));
  const all = common.map((step) => byStep.map((steps) => steps.get(step)!));
  const zero = Math.min(...(all[0] ?? []).map(({ begin }) => begin));
  const steps = all.map((ranks): RecordedStep => {
    const [{ step, training }] = ranks as [StepPart];
    return { step, training, ranks: ranks.map((part) => recordOf(part, zero)) };
  });
  const ranks = parts.map(({ rank, process: name, device, peakProcessBytes, peakDeviceBytes, machine }) => ({
    rank,
    process: name,
    device,
    peakProcessBytes,
    peakDeviceBytes,
    machine,
  }));
  return { format: 'pipewright-recording', version: 1, schedule: schedule.toJSON(), tokensPerStep, ranks, steps };
}

function recordOf(part: StepPart, zero: number): RankRecord {
  const column = (which: number): number[] =>
    Array.from({ length: part.data.length / COLUMNS }, (_, i) => part.data[i * COLUMNS + which]!);
  const times = (which: number): number[] => column(which).map((time) => (time < 0 ? -1 : round(time - zero)));
  return {
    begin: round(part.begin - zero),
    end: round(part.end - zero),
    start: times(Column.Start),
    ready: times(Column.Ready),
    stop: times(Column.Stop),
    bytes: column(Column.Bytes),
    tensors: column(Column.Tensors),
    busy: column(Column.Busy).map((time) => (time < 0 ? -1 : round(time))),
    processBytes: part.processBytes,
    deviceBytes: part.deviceBytes,
    heldBytes: part.heldBytes,
  };
}

/** Rounds to whole nanoseconds; times before 0 become 0. */
function round(milliseconds: number): number {
  return Math.max(0, Math.round(milliseconds * 1e6) / 1e6);
}
