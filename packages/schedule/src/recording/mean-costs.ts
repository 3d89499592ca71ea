/**
 * @file What the actions of a recorded run cost: the time they took, and the costs to simulate with, which leave out what the
 * simulator finds out by itself: waiting for other ranks, and for a core where ranks share too few.
 */

import type { CoreCosts, Costs } from '../costs/costs.ts';
import type { Action } from '../model/action.ts';
import type { Schedule } from '../model/schedule.ts';
import {
  type RankRecord,
  type RecordedPlace,
  type Recording,
  recordedPlaces,
  recordedSchedule,
  steadySteps,
} from './recording.ts';

/** Kept, because they are asked for once per step, stage and kind. */
const costs = new WeakMap<Recording, Costs>();
const durations = new WeakMap<Recording, Map<Action['kind'], readonly (number | null)[]>>();

/**
 * What actions cost on average, by kind and stage, in milliseconds: the costs to simulate the same or another schedule with.
 * Messages are there at once. Where ranks shared too few cores, computing counts by the processor's time, and `cores` says how
 * many there were. What collectives waited is the least of all steps: the rest was waiting for ranks that came later. On shared
 * cores, waiting counts only as far as it is longer than equal parts of the cores explain.
 * @example simulate(buildSchedule('ZBVZeroBubble', shape), meanCosts(recording)).makespan
 */
export function meanCosts(recording: Recording): Costs {
  recordedSchedule(recording);
  let found = costs.get(recording);
  if (found === undefined) costs.set(recording, (found = findCosts(recording)));
  return found;
}

/** How long actions took on average, by kind and stage, in milliseconds; null where there were none. */
export function meanDurations(recording: Recording, kind: Action['kind']): readonly (number | null)[] {
  const found = durations.get(recording) ?? new Map<Action['kind'], readonly (number | null)[]>();
  durations.set(recording, found);
  const known = found.get(kind) ?? new Measured(recording).durations(kind);
  found.set(kind, known);
  return known;
}

function findCosts(recording: Recording): Costs {
  const shared = sharedCores(recording);
  const measured = new Measured(recording, shared?.ranksPerCore);
  const cores = measured.hasBusy ? (shared?.costs ?? null) : null;
  const own = (kind: Action['kind']): Means => (cores === null ? measured.durations(kind) : measured.work(kind));
  const costOf = (kind: 'F' | 'B' | 'I' | 'W'): Means => {
    const means = own(kind);
    if (cores === null || kind === 'W') return means;
    // Posting the receive is work, too.
    const posting = measured.mean([kind === 'F' ? 'RECV_F' : 'RECV_B'], (record, place) => place.busy(record));
    return means.map((value, stage) => (value === null ? null : value + (posting[stage] ?? 0)));
  };
  const [F, B, I, W] = [costOf('F'), costOf('B'), costOf('I'), costOf('W')];
  const half = (stage: number): number => (B[stage] ?? 0) / 2;
  return {
    F: F.map((value) => value ?? 0),
    I: I.map((value, stage) => value ?? half(stage)),
    W: W.map((value, stage) => value ?? half(stage)),
    B: B.map((value, stage) => value ?? (I[stage] ?? 0) + (W[stage] ?? 0)),
    ...(measured.hasBusy ? communication(measured, cores === null) : durationsOf(measured)),
    ...numbers('reshard', own('RESHARD')),
    ...(cores === null ? {} : { cores }),
    overlap: 'parts',
  };
}

type Means = readonly (number | null)[];

/** Collectives as long as they took, where it is not known what of that was work. */
function durationsOf(measured: Measured): Costs {
  return {
    ...numbers('unshard', measured.durations('UNSHARD')),
    ...numbers('reduceGrad', measured.durations('REDUCE_GRAD')),
  };
}

/** Sends and collectives: the work of their rank, and the least that it waited for the rest. */
function communication(measured: Measured, inBackwards: boolean): Costs {
  const busy = (kind: Action['kind']): Means => measured.mean([kind], (record, place) => place.busy(record));
  // A backward that sends in its middle takes the time of that, too; its own work does not.
  const sends = measured.mean(['SEND_F', 'SEND_B'], (record, place) =>
    inBackwards ? (place.isWithin(record) ? 0 : place.duration(record)) : place.busy(record),
  );
  const overhead = {
    ...numbers('send', sends),
    ...numbers('unshard', busy('UNSHARD')),
    ...numbers('reduceGrad', busy('REDUCE_GRAD')),
  };
  return {
    ...numbers('unshard', measured.waits('UNSHARD')),
    ...numbers('reduceGrad', measured.waits('REDUCE_GRAD')),
    ...(Object.keys(overhead).length === 0 ? {} : { overhead }),
  };
}

/** A cost by stage; nothing where no stage has it. */
function numbers(name: string, values: Means): Record<string, readonly number[]> {
  return values.every((value) => value === null) ? {} : { [name]: values.map((value) => value ?? 0) };
}

/** Too few cores. */
interface Shared {
  /** Those that the ranks of the pipeline had to themselves: pipelines beside it had their part. */
  readonly costs: CoreCosts;
  /** How many times as long as with a core of its own a rank takes while all of them work. */
  readonly ranksPerCore: number;
}

/** The cores that ranks shared; null where every rank had one, where it is not known, and where machines were not alike. */
function sharedCores({ ranks }: Recording): Shared | null {
  const machines = ranks.map(({ machine }) => machine);
  const [first] = machines;
  if (first === undefined || first.cores >= first.ranks) return null;
  const here = machines.filter((machine) => machine?.name === first.name).length;
  const isAlike = machines.every(
    (machine, rank) =>
      machine?.cores === first.cores &&
      machine.ranks === first.ranks &&
      machine.name === machines[rank - (rank % here)]?.name,
  );
  if (!isAlike) return null;
  return {
    costs: { count: (first.cores * here) / first.ranks, ...(here === ranks.length ? {} : { ranks: here }) },
    ranksPerCore: first.ranks / first.cores,
  };
}

/** An entry of a row, with what it took in a record. */
class MeasuredPlace {
  readonly action: Action;
  private readonly index: number;
  /** The entry of the backward whose gradients this one sends; -1: there is none. */
  private readonly backward: number;

  constructor({ action, index }: RecordedPlace, backward: number) {
    this.action = action;
    this.index = index;
    this.backward = backward;
  }

  happened({ start }: RankRecord): boolean {
    return start[this.index]! >= 0;
  }

  /** From its start, or from when what it needs had been received, to its end. */
  duration({ start, ready, stop }: RankRecord): number {
    return stop[this.index]! - Math.max(start[this.index]!, ready[this.index]!);
  }

  busy({ busy }: RankRecord): number {
    return Math.max(0, busy?.[this.index] ?? 0);
  }

  /** Whether a send was done in the middle of its backward. */
  isWithin({ start, stop }: RankRecord): boolean {
    return (
      this.backward >= 0 && start[this.index]! >= start[this.backward]! && stop[this.index]! <= stop[this.backward]!
    );
  }
}

type Quantity = (record: RankRecord, place: MeasuredPlace) => number;

/** All entries of all steps that count. */
class Measured {
  private readonly schedule: Schedule;
  private readonly entries: {
    readonly record: RankRecord;
    readonly place: MeasuredPlace;
    readonly share: number;
  }[] = [];
  /** Whether it is known how much of the time was work. */
  readonly hasBusy: boolean;
  private readonly ranksPerCore: number;

  constructor(recording: Recording, ranksPerCore = 1) {
    this.ranksPerCore = ranksPerCore;
    this.schedule = recordedSchedule(recording);
    const rows = this.schedule.order.map((row) => recordedPlaces(row));
    const measured = rows.map(measuredPlaces);
    const steps = steadySteps(recording);
    for (const step of steps)
      step.ranks.forEach((record, rank) => {
        const shares = sharesOf(rows[rank]!, record);
        measured[rank]!.forEach((place, index) => {
          if (place.happened(record)) this.entries.push({ record, place, share: shares.get(index) ?? 1 });
        });
      });
    this.hasBusy = this.entries.every(({ record }) => record.busy?.some((time) => time >= 0) === true);
  }

  mean(kinds: readonly Action['kind'][], quantity: Quantity): (number | null)[] {
    const add = (sum: number, value: number): number => sum + value;
    const counts = this.byStage(kinds, (sum) => sum + 1, 0, quantity);
    return this.byStage(kinds, add, 0, quantity).map((sum, stage) =>
      counts[stage] === 0 ? null : sum / counts[stage]!,
    );
  }

  /** The mean time from when actions could begin to their end. */
  durations(kind: Action['kind']): (number | null)[] {
    return this.mean([kind], (record, place) => place.duration(record));
  }

  /** The least that actions of a kind waited for anything but a core: long work never has one to itself while all ranks work. */
  waits(kind: Action['kind']): (number | null)[] {
    const waited: Quantity = (record, place) =>
      Math.max(0, place.duration(record) - this.ranksPerCore * place.busy(record));
    const found = this.byStage([kind], Math.min, Number.POSITIVE_INFINITY, waited);
    return found.map((value) => (value === Number.POSITIVE_INFINITY ? null : value));
  }

  /** What actions take with a core at hand: a processor's work, and the least that they waited for anything else. */
  work(kind: Action['kind']): (number | null)[] {
    const busy = this.mean([kind], (record, place) => place.busy(record));
    const waits = this.waits(kind);
    return busy.map((value, stage) => (value === null ? null : value + (waits[stage] ?? 0)));
  }

  private byStage(
    kinds: readonly Action['kind'][],
    combine: (one: number, other: number) => number,
    first: number,
    quantity: Quantity,
  ): number[] {
    const found = new Array<number>(this.schedule.stages).fill(first);
    for (const { record, place, share } of this.entries) {
      const { kind, stage } = place.action;
      if (!kinds.includes(kind)) continue;
      found[stage] = combine(found[stage]!, share * quantity(record, place));
    }
    return found;
  }
}

/** The entries of a row; sends of gradients know their backwards. */
function measuredPlaces(row: readonly RecordedPlace[]): MeasuredPlace[] {
  const backwards = new Map<string, number>();
  for (const { action, index } of row)
    if (action.kind === 'B') backwards.set(`${action.stage} ${action.microbatch}`, index);
  return row.map((place) => {
    const { kind, stage, microbatch } = place.action;
    return new MeasuredPlace(place, kind === 'SEND_B' ? (backwards.get(`${stage} ${microbatch}`) ?? -1) : -1);
  });
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
