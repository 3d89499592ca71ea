/** @file What every picture draws: a simulated step as bars in columns, transfers between ranks and memory over time. */

import type { CostTable } from '../costs/cost-table.ts';
import { type ActionKind, formatAction } from '../model/action.ts';
import { checkFunction } from '../model/errors.ts';
import { Code, isComposite, kindOf, wordCode } from '../model/packed.ts';
import { Schedule, type ScheduleData } from '../model/schedule.ts';
import { simulate } from '../simulate/simulate.ts';
import { type SimulatedMessage, Simulation } from '../simulate/simulation.ts';
import { computationVisuals } from './palette.ts';

/** Actions with their times, one entry per action in every column, rank by rank. */
export interface Bars {
  readonly count: number;
  readonly rank: Int32Array;
  readonly slot: Int32Array;
  readonly start: Float64Array;
  readonly end: Float64Array;
  /** 1 where the action runs beside compute: sends, receives and collectives unless they block. */
  readonly beside: Uint8Array;
}

/** Memory of one rank: `amount[i]` from `time[i]` on. */
export interface MemoryCurve {
  readonly time: ArrayLike<number>;
  readonly amount: ArrayLike<number>;
  readonly peak: number;
}

/** A schedule laid out in time. */
export interface Picture {
  readonly schedule: Schedule;
  readonly makespan: number;
  readonly bars: Bars;
  /** How many messages cross ranks. */
  readonly transferCount: number;
  /** The messages that cross ranks; worked out when asked for. */
  transfers(): readonly SimulatedMessage[];
  /** One curve per rank; null where memory is not known. */
  readonly memory: readonly MemoryCurve[] | null;
  /** Name of the unit of memory; empty where costs were given. */
  readonly memoryUnit: string;
  /** Idle shares; null where times are only positions in the rows. */
  readonly bubble: { readonly span: number; readonly makespan: number } | null;
  /** Compute time per rank. */
  readonly busy: ArrayLike<number>;
}

/** What can be drawn: a simulated step, a schedule, which is then simulated with unit costs, or a picture. */
export type Drawable = Simulation | Schedule | ScheduleData | Picture;

/** The picture of a simulated step; of a schedule, with F = I = W = 1 and B = 2. */
export function pictureOf(source: Drawable): Picture {
  if (isPicture(source)) return source;
  const simulation = source instanceof Simulation ? source : simulate(Schedule.from(source));
  const { schedule, offsets, start, end, costs } = simulation;
  const columns = new BarColumns(schedule.size);
  for (let rank = 0; rank < schedule.rows.length; rank++) {
    const row = schedule.rows[rank]!;
    for (let slot = 0; slot < row.length; slot++) {
      const code = wordCode(row[slot]!);
      if (code === Code.Bubble) continue;
      const beside = !costs.blocking && code > Code.B && code !== Code.Reshard && code !== Code.Composite;
      const at = offsets[rank]! + slot;
      columns.push({ rank, slot, start: start[at]!, end: end[at]!, beside });
    }
  }
  let found: readonly SimulatedMessage[] | undefined;
  return {
    schedule,
    makespan: simulation.makespan,
    bars: columns.finish(),
    transferCount: countTransfers(schedule),
    transfers: () => (found ??= simulation.transfers()),
    memory: simulation.memory,
    memoryUnit: countsActivations(simulation.costs) ? 'in activations of one microbatch on one stage' : '',
    bubble: simulation.bubble,
    busy: simulation.busy,
  };
}

/** Whether something is a picture already. */
export function isPicture(source: Drawable): source is Picture {
  return typeof source === 'object' && source !== null && 'bars' in source && 'transfers' in source;
}

/** How many messages a step has if it runs all its microbatches. */
function countTransfers({ stageEdges, stageToRank, rows, microbatches }: Schedule): number {
  const crossing = stageEdges.filter(([from, to]) => stageToRank[from] !== stageToRank[to]).length;
  const isBackward = (word: number): boolean =>
    wordCode(word) === Code.I || wordCode(word) === Code.B || isComposite(word);
  return crossing * microbatches * (rows.some((row) => row.some(isBackward)) ? 2 : 1);
}

/** Whether memory is counted by the defaults: 1 per stage and microbatch, nothing else. */
function countsActivations(costs: CostTable): boolean {
  const all = (column: Float64Array, value: number): boolean => column.every((v) => v === value);
  return all(costs.activation, 1) && all(costs.parameters, 0) && all(costs.weightGradient, 0);
}

/**
 * A schedule laid out as it is written: each action takes its kind's width, each bubble one unit.
 * @example pictureOfRows(schedule).makespan
 */
export function pictureOfRows(
  source: Schedule | ScheduleData,
  width: (kind: ActionKind) => number = (kind) => computationVisuals[kind].width,
): Picture {
  checkFunction('pictureOfRows', 'width', width);
  const schedule = Schedule.from(source);
  const faces = new FaceReader(schedule);
  const columns = new BarColumns(schedule.size);
  const busy = new Float64Array(schedule.ranks);
  let makespan = 0;
  schedule.rows.forEach((row, rank) => {
    let at = 0;
    for (let slot = 0; slot < row.length; slot++) {
      if (row[slot] === 0) {
        at++;
        continue;
      }
      const wide = width(faces.kind(rank, slot));
      columns.push({ rank, slot, start: at, end: at + wide, beside: false });
      busy[rank]! += wide;
      at += wide;
    }
    makespan = Math.max(makespan, at);
  });
  return {
    schedule,
    makespan,
    bars: columns.finish(),
    transferCount: 0,
    transfers: () => [],
    memory: null,
    memoryUnit: '',
    bubble: null,
    busy,
  };
}

/** A bar unpacked: what to write on it and how to colour it. */
export interface BarFace {
  readonly kind: ActionKind;
  /** Text of the action, `2F0`. */
  readonly text: string;
  /** Microbatch as text; both of them for an overlapped pair; empty if none. */
  readonly short: string;
  /** Which of the rank's stages: 0 is the first. */
  readonly chunk: number;
  /** Faces of the parts of a composite. */
  readonly parts: readonly BarFace[];
}

/** Reads the faces of a schedule's cells. */
export class FaceReader {
  readonly chunksOfRank: readonly number[];
  private readonly schedule: Schedule;
  private readonly chunkOfStage: readonly number[];

  constructor(source: Schedule) {
    const schedule = Schedule.from(source);
    this.schedule = schedule;
    const chunks = new Array<number>(schedule.ranks).fill(0);
    this.chunkOfStage = schedule.stageToRank.map((rank) => (rank >= 0 && rank < chunks.length ? chunks[rank]!++ : 0));
    this.chunksOfRank = chunks;
  }

  /** The face of a cell that is no bubble. */
  face(rank: number, slot: number): BarFace {
    return this.faceOf(this.schedule.rows[rank]![slot]!);
  }

  /** The kind of a cell, cheaper than its face. */
  kind(rank: number, slot: number): ActionKind {
    const word = this.schedule.rows[rank]![slot]!;
    return kindOf(isComposite(word) ? this.schedule.composites.codeOf(word) : wordCode(word));
  }

  /** Which of the rank's stages a cell is of; the first part's for a composite. */
  chunk(rank: number, slot: number): number {
    const word = this.schedule.rows[rank]![slot]!;
    const leaf = isComposite(word) ? this.schedule.composites.leavesOf(word)[0] : word;
    return leaf === undefined ? 0 : (this.chunkOfStage[this.schedule.layout.stage(leaf)] ?? 0);
  }

  private faceOf(word: number): BarFace {
    const { layout, composites } = this.schedule;
    if (isComposite(word)) {
      const parts = composites.partsOf(word).map((part) => this.faceOf(part));
      const kind = kindOf(composites.codeOf(word));
      return {
        kind,
        text: this.schedule.format(word),
        short: parts.map((part) => part.short).join(' '),
        chunk: parts[0]?.chunk ?? 0,
        parts,
      };
    }
    const kind = kindOf(wordCode(word));
    const stage = layout.stage(word);
    const microbatch = layout.microbatch(word);
    const text = formatAction({ kind, stage, microbatch: microbatch < 0 ? null : microbatch, parts: null });
    return {
      kind,
      text,
      short: microbatch < 0 ? '' : String(microbatch),
      chunk: this.chunkOfStage[stage] ?? 0,
      parts: [],
    };
  }
}

interface Bar {
  readonly rank: number;
  readonly slot: number;
  readonly start: number;
  readonly end: number;
  readonly beside: boolean;
}

/** Collects bars. */
class BarColumns {
  private count = 0;
  private readonly rank: Int32Array;
  private readonly slot: Int32Array;
  private readonly start: Float64Array;
  private readonly end: Float64Array;
  private readonly beside: Uint8Array;

  constructor(capacity: number) {
    this.rank = new Int32Array(capacity);
    this.slot = new Int32Array(capacity);
    this.start = new Float64Array(capacity);
    this.end = new Float64Array(capacity);
    this.beside = new Uint8Array(capacity);
  }

  push(bar: Bar): void {
    this.rank[this.count] = bar.rank;
    this.slot[this.count] = bar.slot;
    this.start[this.count] = bar.start;
    this.end[this.count] = bar.end;
    this.beside[this.count++] = bar.beside ? 1 : 0;
  }

  finish(): Bars {
    const { count } = this;
    return {
      count,
      rank: this.rank.subarray(0, count),
      slot: this.slot.subarray(0, count),
      start: this.start.subarray(0, count),
      end: this.end.subarray(0, count),
      beside: this.beside.subarray(0, count),
    };
  }
}
