/** @file A schedule or a simulated step in the trace-event format of Chrome, as Perfetto and chrome://tracing open it. */

import { type ActionKind, formatAction, isComputeOp } from '../model/action.ts';
import { checkChoice, checkOptions, ScheduleError, show } from '../model/errors.ts';
import { Schedule, type ScheduleData, type ScheduleOrder } from '../model/schedule.ts';
import { Simulation } from '../simulate/simulation.ts';
import { computationVisuals } from './palette.ts';
import { type Drawable, FaceReader, isPicture, type Picture, pictureOf } from './picture.ts';

/** One event; which fields it has depends on `ph`. */
export interface TraceEvent {
  readonly name: string;
  readonly cat?: string;
  /** `X` duration, `i` instant, `s` and `f` ends of an arrow, `C` counter, `M` name of a process or thread. */
  readonly ph: 'X' | 'i' | 's' | 'f' | 'C' | 'M';
  /** The rank. */
  readonly pid: number;
  readonly tid: number;
  /** Microseconds. */
  readonly ts?: number;
  /** Microseconds. */
  readonly dur?: number;
  readonly id?: number;
  /** Where an arrow ends: `e` is the slice around it. */
  readonly bp?: 'e';
  /** Scope of an instant: `t` is its thread. */
  readonly s?: 't';
  readonly args?: Readonly<Record<string, unknown>>;
}

/** What `JSON.stringify` turns into a trace file. */
export interface ChromeTrace {
  readonly traceEvents: readonly TraceEvent[];
  readonly displayTimeUnit?: 'ms' | 'ns';
  readonly otherData?: Readonly<Record<string, unknown>>;
}

/** How `toChromeTrace` writes. */
export interface ChromeTraceOptions {
  /** Microseconds per unit of time; default 1000, so that a unit reads as a millisecond. */
  readonly unitUs?: number;
  /** Arrows from sends to receives; default true. */
  readonly flows?: boolean;
  /** Memory counters; default true. */
  readonly counters?: boolean;
  /** `'torch'`: PyTorch's events, one time unit per slot, its wrong categories included; the other options do not count. */
  readonly compat?: 'torch';
}

/**
 * A schedule or a simulated step as a Chrome trace: one process per rank, its compute, sends, receives and collectives as
 * threads, arrows from send to receive (from compute to compute in an order without sends), memory as a counter.
 * @example writeFileSync('trace.json', JSON.stringify(toChromeTrace(simulate(lower(schedule), { F: 1, B: 2, comm: 0.1 }))))
 */
export function toChromeTrace(source: Drawable, options: ChromeTraceOptions = {}): ChromeTrace {
  checkOptions('toChromeTrace', options, ['unitUs', 'flows', 'counters', 'compat']);
  checkChoice('toChromeTrace', 'compat', options.compat, ['torch']);
  const unitUs = options.unitUs ?? 1000;
  if (!(typeof unitUs === 'number' && unitUs > 0 && Number.isFinite(unitUs))) {
    throw new ScheduleError(
      'BAD_OPTION',
      `toChromeTrace: unitUs must be a number of microseconds above 0, got ${show(unitUs)}`,
    );
  }
  if (options.compat === 'torch')
    return {
      traceEvents: torchEvents(
        source instanceof Simulation || isPicture(source) ? source.schedule : Schedule.from(source),
      ),
    };
  const picture = pictureOf(source);
  const writer = new TraceWriter(picture, unitUs * 1000);
  writer.slices();
  if (options.flows !== false) writer.flows();
  if (options.counters !== false) writer.counters();
  const { schedule } = picture;
  return {
    displayTimeUnit: 'ms',
    traceEvents: [...writer.names(), ...writer.events],
    otherData: {
      schedule: schedule.name,
      ranks: schedule.ranks,
      stages: schedule.stages,
      microbatches: schedule.microbatches,
      unitUs,
      makespan: picture.makespan,
    },
  };
}

/**
 * An order as the text of PyTorch's trace file: one time unit per slot, bubbles left out, categories as PyTorch files them.
 * @example writeFileSync('torch.json', dumpChromeTrace(schedule))
 */
export function dumpChromeTrace(source: Schedule | ScheduleData | ScheduleOrder): string {
  const schedule = Array.isArray(source)
    ? Schedule.from({ order: source })
    : Schedule.from(source as Schedule | ScheduleData);
  const events = torchEvents(schedule).map(
    (event) =>
      `{${Object.entries(event)
        .map(([key, value]) => `"${key}": ${JSON.stringify(value)}`)
        .join(', ')}}`,
  );
  return `{"traceEvents": [${events.join(', ')}]}`;
}

const torchComputation: ReadonlySet<string> = new Set(['F', 'B', 'W']);

function torchEvents(schedule: Schedule): TraceEvent[] {
  const events: TraceEvent[] = [];
  schedule.order.forEach((row, rank) => {
    row.forEach((item, slot) => {
      if (item === null) return;
      const cat = torchComputation.has(item.kind) ? 'computation' : 'communication';
      events.push({ name: formatAction(item), cat, ph: 'X', pid: rank, tid: rank, ts: slot, dur: 1 });
    });
  });
  return events;
}

const tracks = ['compute', 'send', 'receive', 'collectives'] as const;
/** Threads kept for each track: actions of one track that run at the same time get threads of their own. */
const threadsPerTrack = 100;

/** Where an action was written: flows attach to it. Times in whole nanoseconds. */
interface Slice {
  readonly tid: number;
  readonly cat: string;
  readonly start: number;
  readonly end: number;
}

class TraceWriter {
  readonly events: TraceEvent[] = [];
  private readonly picture: Picture;
  private readonly nsPerUnit: number;
  private readonly written: Map<number, Slice> = new Map();
  private readonly offsets: number[];
  private readonly threads: Map<number, Set<number>> = new Map();

  constructor(picture: Picture, nsPerUnit: number) {
    this.picture = picture;
    this.nsPerUnit = nsPerUnit;
    let cells = 0;
    this.offsets = picture.schedule.rows.map((row) => (cells += row.length) - row.length);
  }

  /**
   * Every action. A message without duration gets one nanosecond, so that arrows can hold on to it; other actions without
   * duration are instants.
   */
  slices(): void {
    const { bars, schedule } = this.picture;
    const faces = new FaceReader(schedule);
    const free = new Map<number, number[]>();
    for (let i = 0; i < bars.count; i++) {
      const rank = bars.rank[i]!;
      const slot = bars.slot[i]!;
      const face = faces.face(rank, slot);
      const start = this.ns(bars.start[i]!);
      const track = trackOf(face.kind);
      const instant = bars.end[i] === bars.start[i] && computationVisuals[face.kind].role !== 'communication';
      const end = Math.max(start + (instant ? 0 : 1), this.ns(bars.end[i]!));
      const tid = this.thread({ rank, track, start, end, free });
      const cat = isComputeOp(face.kind) ? 'computation' : 'communication';
      const action = schedule.at(rank, slot)!;
      const args = {
        kind: computationVisuals[face.kind].label,
        ...(action.parts === null ? { stage: action.stage } : { parts: action.parts.map(formatAction) }),
        ...(action.microbatch === null ? {} : { microbatch: action.microbatch }),
        slot,
      };
      if (instant) {
        this.events.push({ name: face.text, cat, ph: 'i', s: 't', pid: rank, tid, ts: start / 1000, args });
        continue;
      }
      this.events.push({
        name: face.text,
        cat,
        ph: 'X',
        pid: rank,
        tid,
        ts: start / 1000,
        dur: (end - start) / 1000,
        args,
      });
      this.written.set(this.offsets[rank]! + slot, { tid, cat, start, end });
    }
  }

  /** Arrows; both ends lie inside the slice they belong to, and no arrow goes back in time. */
  flows(): void {
    let id = 0;
    for (const transfer of this.picture.transfers()) {
      const from = this.written.get(this.offsets[transfer.fromRank]! + transfer.fromSlot);
      const to = this.written.get(this.offsets[transfer.toRank]! + transfer.toSlot);
      if (from === undefined || to === undefined) continue;
      id++;
      const name = transfer.backward ? 'gradient' : 'activation';
      const leave = from.start;
      const land = Math.min(to.end - 1, Math.max(to.start, leave));
      if (land < leave) continue;
      this.events.push({ name, cat: from.cat, ph: 's', id, pid: transfer.fromRank, tid: from.tid, ts: leave / 1000 });
      this.events.push({
        name,
        cat: from.cat,
        ph: 'f',
        bp: 'e',
        id,
        pid: transfer.toRank,
        tid: to.tid,
        ts: land / 1000,
      });
    }
  }

  /** Memory of each rank. */
  counters(): void {
    const { memory } = this.picture;
    memory?.forEach((curve, rank) => {
      for (let i = 0; i < curve.time.length; i++) {
        this.events.push({
          name: 'memory',
          ph: 'C',
          pid: rank,
          tid: 0,
          ts: this.ns(curve.time[i]!) / 1000,
          args: { held: curve.amount[i]! },
        });
      }
    });
  }

  /** Names and order of processes and threads. */
  names(): TraceEvent[] {
    const events: TraceEvent[] = [];
    for (let rank = 0; rank < this.picture.schedule.ranks; rank++) {
      events.push({ name: 'process_name', ph: 'M', pid: rank, tid: 0, args: { name: `rank ${rank}` } });
      events.push({ name: 'process_sort_index', ph: 'M', pid: rank, tid: 0, args: { sort_index: rank } });
      for (const tid of [...(this.threads.get(rank) ?? [])].sort((a, b) => a - b)) {
        const nth = tid % threadsPerTrack;
        events.push({
          name: 'thread_name',
          ph: 'M',
          pid: rank,
          tid,
          args: { name: `${tracks[Math.floor(tid / threadsPerTrack)]!}${nth === 0 ? '' : ` ${nth + 1}`}` },
        });
        events.push({ name: 'thread_sort_index', ph: 'M', pid: rank, tid, args: { sort_index: tid } });
      }
    }
    return events;
  }

  private ns(time: number): number {
    return Math.round(time * this.nsPerUnit);
  }

  /** The first thread of a track that is free from `start` on; slices of one thread must not overlap. */
  private thread(want: {
    readonly rank: number;
    readonly track: number;
    readonly start: number;
    readonly end: number;
    readonly free: Map<number, number[]>;
  }): number {
    const key = want.rank * tracks.length + want.track;
    let ends = want.free.get(key);
    if (ends === undefined) want.free.set(key, (ends = []));
    let nth = ends.findIndex((end) => end <= want.start);
    if (nth < 0) nth = Math.min(ends.length, threadsPerTrack - 1);
    ends[nth] = want.end;
    const tid = want.track * threadsPerTrack + nth;
    const known = this.threads.get(want.rank);
    if (known === undefined) this.threads.set(want.rank, new Set([tid]));
    else known.add(tid);
    return tid;
  }
}

function trackOf(kind: ActionKind): number {
  if (isComputeOp(kind)) return 0;
  if (kind.startsWith('SEND')) return 1;
  return kind.startsWith('RECV') ? 2 : 3;
}
