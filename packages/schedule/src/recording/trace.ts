/** @file A recorded run in the trace-event format of Chrome, as Perfetto opens it: one track per rank. */

import type { ChromeTrace, TraceEvent } from '../draw/chrome-trace.ts';
import { computationVisuals } from '../draw/palette.ts';
import { formatAction, isComputeOp } from '../model/action.ts';
import type { Schedule } from '../model/schedule.ts';
import {
  actionsOfRank,
  type RecordedAction,
  type RecordedPlace,
  type RecordedStep,
  type Recording,
  recordedPlaces,
  recordedSchedule,
} from './recording.ts';

const PROCESS = 1;

/**
 * A recorded run as a trace: one process, one track per rank with its actions and waits, arrows from sends to receives,
 * memory as counters.
 * @example writeFileSync('trace.json', JSON.stringify(recordingTrace(recording)))
 */
export function recordingTrace(recording: Recording): ChromeTrace {
  const schedule = recordedSchedule(recording);
  const writer = new RecordingWriter(recording, schedule);
  for (const step of recording.steps) writer.step(step);
  return {
    displayTimeUnit: 'ms',
    traceEvents: [...writer.names(), ...writer.events],
    otherData: {
      schedule: schedule.name,
      ranks: schedule.ranks,
      stages: schedule.stages,
      microbatches: schedule.microbatches,
      steps: recording.steps.length,
    },
  };
}

/** A slice in whole nanoseconds. */
interface Slice {
  readonly tid: number;
  readonly start: number;
  readonly end: number;
}

class RecordingWriter {
  readonly events: TraceEvent[] = [];
  private readonly recording: Recording;
  private readonly schedule: Schedule;
  private readonly places: readonly RecordedPlace[][];
  private readonly tracks: Set<number> = new Set();
  private flows = 0;

  constructor(recording: Recording, schedule: Schedule) {
    this.recording = recording;
    this.schedule = schedule;
    this.places = schedule.order.map((row) => recordedPlaces(row));
  }

  step(step: RecordedStep): void {
    const slices = new Map<string, Slice>();
    step.ranks.forEach((record, rank) => {
      const actions = actionsOfRank(this.places[rank]!, record, rank);
      const name = `${step.training ? 'step' : 'evaluation'} ${step.step}`;
      this.events.push({ name, ph: 'i', s: 't', pid: PROCESS, tid: rank, ts: micros(nanos(record.begin)) });
      const free: number[] = [0];
      let backward: Slice | null = null;
      for (const event of actions) {
        const slice: Slice = insideOf(backward, event) ?? this.place(rank, event, free);
        if (event.action.kind === 'B') backward = slice;
        const { end } = slice;
        slices.set(formatAction(event.action), slice);
        this.slice(event, slice, step.step);
        this.counter(rank, `rank ${rank}: live tensors`, end, { tensors: event.tensors });
      }
      const end = nanos(record.end);
      const { process } = this.recording.ranks[rank]!;
      this.counter(rank, `process ${process}: memory`, end, { bytes: record.processBytes });
      if (record.deviceBytes !== null)
        this.counter(rank, `rank ${rank}: memory on the GPU`, end, { bytes: record.deviceBytes });
    });
    this.arrows(slices);
  }

  /** Names of the process and its tracks. */
  names(): TraceEvent[] {
    const { schedule } = this;
    const name = `${schedule.name} on ${schedule.ranks} ranks`;
    const events: TraceEvent[] = [{ name: 'process_name', ph: 'M', pid: PROCESS, tid: 0, args: { name } }];
    for (const tid of [...this.tracks].sort((a, b) => a - b)) {
      const rank = tid % schedule.ranks;
      const beside = tid < schedule.ranks ? '' : ', beside';
      const stages = schedule.stageToRank.flatMap((of, stage) => (of === rank ? [stage] : []));
      const text = `rank ${rank} (stage${stages.length === 1 ? '' : 's'} ${stages.join(', ')})${beside}`;
      const sort_index = 2 * rank + (beside === '' ? 0 : 1);
      events.push({ name: 'thread_name', ph: 'M', pid: PROCESS, tid, args: { name: text } });
      events.push({ name: 'thread_sort_index', ph: 'M', pid: PROCESS, tid, args: { sort_index } });
    }
    return events;
  }

  /** The first place that is free, on the track of the rank or beside it. */
  private place(rank: number, event: RecordedAction, free: number[]): Slice {
    const lane = laneFor(nanos(event.start), free);
    const start = Math.max(free[lane]!, nanos(event.start));
    const end = Math.max(start + 1, nanos(event.end));
    free[lane] = end;
    return { tid: this.track(rank, lane), start, end };
  }

  /** The track of a rank; a second one where parts of an overlapped action ran side by side on a GPU. */
  private track(rank: number, lane: number): number {
    const tid = lane * this.schedule.ranks + rank;
    this.tracks.add(tid);
    return tid;
  }

  private slice({ slot, action, bytes }: RecordedAction, { tid, start, end }: Slice, step: number): void {
    const { label } = computationVisuals[action.kind];
    const { stage, microbatch } = action;
    this.events.push({
      name: formatAction(action),
      cat: isComputeOp(action.kind) ? 'computation' : 'communication',
      ph: 'X',
      pid: PROCESS,
      tid,
      ts: micros(start),
      dur: micros(end - start),
      args: {
        kind: label,
        stage,
        ...(microbatch === null ? {} : { microbatch }),
        slot,
        step,
        ...(bytes > 0 ? { bytes } : {}),
      },
    });
  }

  private counter(rank: number, name: string, at: number, args: Record<string, number>): void {
    this.events.push({ name, ph: 'C', pid: PROCESS, tid: rank, ts: micros(at), args });
  }

  /** From every send to the receives of what it sent. */
  private arrows(slices: ReadonlyMap<string, Slice>): void {
    const { stageEdges, stageToRank, microbatches } = this.schedule;
    for (const [from, to] of stageEdges) {
      if (stageToRank[from] === stageToRank[to]) continue;
      for (let m = 0; m < microbatches; m++) {
        this.arrow('activation', slices.get(`${from}SEND_F${m}`), slices.get(`${to}RECV_F${m}`));
        this.arrow('gradient', slices.get(`${to}SEND_B${m}`), slices.get(`${from}RECV_B${m}`));
      }
    }
  }

  private arrow(name: string, from: Slice | undefined, to: Slice | undefined): void {
    if (from === undefined || to === undefined) return;
    const common = { name, cat: 'communication', id: ++this.flows, pid: PROCESS };
    this.events.push({ ...common, ph: 's', tid: from.tid, ts: micros(from.start) });
    this.events.push({ ...common, ph: 'f', bp: 'e', tid: to.tid, ts: micros(to.end - 1) });
  }
}

/** The place of a send that was done in the middle of a backward; null for anything else. */
function insideOf(backward: Slice | null, { action, start, end }: RecordedAction): Slice | null {
  if (backward === null || action.kind !== 'SEND_B') return null;
  const inside = { tid: backward.tid, start: nanos(start), end: Math.max(nanos(start) + 1, nanos(end)) };
  return inside.start >= backward.start && inside.end <= backward.end ? inside : null;
}

/** The first lane that is free; what overlaps by less than a microsecond is rounding. */
function laneFor(start: number, free: readonly number[]): number {
  const lane = free.findIndex((end) => start > end - 1000);
  return lane < 0 ? Math.min(free.length, 1) : lane;
}

function nanos(milliseconds: number): number {
  return Math.round(milliseconds * 1e6);
}

function micros(nanoseconds: number): number {
  return nanoseconds / 1000;
}
