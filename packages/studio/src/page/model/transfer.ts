/** @file A simulated schedule as plain columns, to pass it from the worker to the page without computing it again. */
import {
  type Bars,
  type MemoryCurve,
  pictureOfRows,
  Schedule,
  type ScheduleColumns,
  Simulation,
  StageGraph,
  type Violation,
} from '@pipewright/schedule';
import { CompositeTable, Layout } from '@pipewright/schedule/internal';
import type { Judged } from './edit.ts';
import type { Explored } from './explore.ts';
import { idleByCause, keepIdle, type RankIdle } from './idle.ts';
import { type Lanes, lanesOf, Track } from './lanes.ts';

/** What is known of a schedule without its actions. */
type Summary = Omit<Explored, 'schedule' | 'simulation' | 'lanes'>;

/** Columns of a track. */
type TrackColumns = Pick<Track, 'start' | 'end' | 'kind' | 'chunk' | 'slot' | 'kinds'>;

/** A schedule without its methods. */
interface PackedSchedule extends Omit<ScheduleColumns, 'layout' | 'composites'> {
  /** What a word holds. */
  readonly layout: readonly [maxStage: number, maxMicrobatch: number];
  /** Kind and parts of every composite. */
  readonly composites: readonly (readonly [code: number, parts: readonly number[]])[];
}

/** The actions with their times, and what is drawn of them. */
interface PackedStep {
  readonly schedule: PackedSchedule;
  readonly costs: Simulation['costs'];
  readonly timing: Pick<Simulation, 'offsets' | 'start' | 'end' | 'cause' | 'partTimes' | 'issued'>;
  readonly messages: Omit<Simulation['messages'], 'graph'>;
  readonly idle: readonly RankIdle[];
  readonly bars: Bars;
  readonly memory: readonly MemoryCurve[] | null;
  readonly memoryUnit: string;
  readonly transferCount: number;
  readonly kinds: Uint8Array;
  readonly lanes: readonly {
    readonly chunks: number;
    readonly main: TrackColumns;
    readonly beside: TrackColumns | null;
  }[];
}

/** An explored schedule as it is passed on. */
export interface PackedExplored {
  readonly summary: Summary;
  /** Null where it is not drawn. */
  readonly step: PackedStep | null;
}

/** A schedule that was read and judged, as it is passed on. */
export interface PackedJudged {
  readonly violations: readonly Violation[];
  readonly problem: string | null;
  /** With its times, where it has some. */
  readonly step: PackedStep | PackedSchedule;
}

/** Takes an explored schedule apart into what can be passed to another thread. */
export function packExplored({ schedule, simulation, lanes, ...summary }: Explored): PackedExplored {
  if (schedule === null || simulation === null || lanes === null) return { summary, step: null };
  return { summary, step: packStep(simulation, lanes) };
}

/** Takes a judged schedule apart. */
export function packJudged({ schedule, violations, simulation, problem, lanes }: Judged): PackedJudged {
  return { violations, problem, step: simulation === null ? packSchedule(schedule) : packStep(simulation, lanes) };
}

function packSchedule(from: Schedule): PackedSchedule {
  const { name, ranks, stages, microbatches, stageToRank, edges, rows, layout, composites } = from;
  return {
    ...{ name, ranks, stages, microbatches, stageToRank, edges, rows },
    layout: [layout.maxStage, layout.maxMicrobatch],
    composites: composites.entries(),
  };
}

function packStep(simulation: Simulation, lanes: Lanes): PackedStep {
  const { offsets, start, end, cause, partTimes, issued, costs } = simulation;
  const { departures, arrivals, senders } = simulation.messages;
  const { bars, memory, memoryUnit, transferCount } = lanes.picture;
  return {
    schedule: packSchedule(simulation.schedule),
    costs,
    timing: { offsets, start, end, cause, partTimes, issued },
    messages: { departures, arrivals, senders },
    idle: idleByCause(simulation),
    bars,
    memory,
    memoryUnit,
    transferCount,
    kinds: lanes.kinds,
    lanes: lanes.lanes.map(({ chunks, main, beside }) => ({
      chunks,
      main: columnsOf(main),
      beside: beside === null ? null : columnsOf(beside),
    })),
  };
}

/** The memory that is handed over instead of copied. */
export function buffersOf({ step }: PackedExplored | PackedJudged): ArrayBuffer[] {
  if (step === null || !('timing' in step)) return [];
  const { timing, messages, bars, lanes, memory } = step;
  const columns: unknown[] = [
    ...[timing.start, timing.end, timing.cause, messages.departures, messages.arrivals, messages.senders],
    ...[bars.rank, bars.slot, bars.start, bars.end, bars.beside],
    ...lanes.flatMap(({ main, beside }) => [...Object.values(main), ...Object.values(beside ?? {})] as unknown[]),
    ...(memory ?? []).flatMap(({ time, amount }) => [time, amount]),
  ];
  const buffers = columns.flatMap((column) => (ArrayBuffer.isView(column) ? [column.buffer as ArrayBuffer] : []));
  return [...new Set(buffers)];
}

/** Puts together what `packExplored` took apart. */
export function unpackExplored({ summary, step }: PackedExplored): Explored {
  if (step === null) return { ...summary, schedule: null, simulation: null, lanes: null };
  const { simulation, lanes } = unpackStep(step);
  return { ...summary, schedule: simulation.schedule, simulation, lanes };
}

/** Puts together what `packJudged` took apart. */
export function unpackJudged({ step, ...rest }: PackedJudged): Judged {
  if ('timing' in step) {
    const { simulation, lanes } = unpackStep(step);
    return { ...rest, schedule: simulation.schedule, simulation, lanes };
  }
  const schedule = unpackSchedule(step);
  return { ...rest, schedule, simulation: null, lanes: lanesOf(pictureOfRows(schedule)) };
}

function unpackSchedule({ layout, composites: entries, ...columns }: PackedSchedule): Schedule {
  const composites = new CompositeTable();
  for (const [code, parts] of entries) composites.add(parts, code);
  return new Schedule({ ...columns, layout: Layout.holding(...layout), composites });
}

function unpackStep(step: PackedStep): { readonly simulation: Simulation; readonly lanes: Lanes } {
  const schedule = unpackSchedule(step.schedule);
  const graph = new StageGraph(schedule);
  const simulation = new Simulation(schedule, step.costs, { ...step.timing, messages: { graph, ...step.messages } });
  keepIdle(simulation, step.idle);
  const { bars, memory, memoryUnit, transferCount, kinds } = step;
  const { makespan, bubble, busy } = simulation;
  const lanes: Lanes = {
    picture: {
      ...{ schedule, makespan, bubble, busy, bars, memory, memoryUnit, transferCount },
      transfers: () => simulation.transfers(),
    },
    lanes: step.lanes.map(({ chunks, main, beside }, rank) => ({
      rank,
      chunks,
      main: new Track(main),
      beside: beside === null ? null : new Track(beside),
    })),
    makespan,
    kinds,
  };
  return { simulation, lanes };
}

function columnsOf({ start, end, kind, chunk, slot, kinds }: Track): TrackColumns {
  return { start, end, kind, chunk, slot, kinds };
}
