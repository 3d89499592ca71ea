/**
 * @file A run while it goes on: the lines that every rank of it appends to a file, the places that the launcher sees, and what
 * follows from them. Whoever reads checks every line: a file may be cut off in the middle, or come from anywhere.
 */

import { ScheduleError, show } from '../model/errors.ts';
import { Schedule, type ScheduleJson } from '../model/schedule.ts';
import { checkProgress, type LiveProgress } from './live-progress.ts';
import type { RankRecord, RecordedStep, Recording } from './recording.ts';

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
  readonly step: number;
  readonly training: boolean;
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
  readonly begin: readonly number[];
  readonly end: readonly number[];
  readonly loss: readonly (number | null)[];
}

/** Where a rank is, as its launcher sees it. */
export interface LivePlace {
  readonly rank: number;
  readonly state: string;
  readonly step: number | null;
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
  const { step, training, begin, end, loss, processBytes, deviceBytes, heldBytes, actions } = line;
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
    begin,
    end,
    loss: isNumber(loss) ? loss : null,
    processBytes: isNumber(processBytes) ? processBytes : 0,
    deviceBytes: isNumber(deviceBytes) ? deviceBytes : null,
    heldBytes: isNumber(heldBytes) ? heldBytes : null,
    actions: even ? { start, ready, stop, bytes, tensors } : null,
  };
}

function readSteps({ step, begin, end, loss }: Record<string, unknown>): LiveSteps | null {
  const isColumn = (values: unknown): values is number[] =>
    Array.isArray(values) && values.length <= mostActions && values.every(isNumber);
  if (!isColumn(step) || !isColumn(begin) || !isColumn(end)) return null;
  if (begin.length !== step.length || end.length !== step.length) return null;
  const losses: readonly unknown[] = Array.isArray(loss) ? loss : [];
  return { kind: 'steps', step, begin, end, loss: step.map((_, i) => (isNumber(losses[i]) ? losses[i] : null)) };
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
      const { rank, state, step, slot, action, waitingFor, since } = place;
      if (!isRank(rank)) return [];
      return [
        {
          rank,
          state: textOf(state),
          step: isNumber(step) ? step : null,
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

/** One step of all ranks, put together from their lines. */
export interface LiveStepSummary {
  readonly step: number;
  /** Milliseconds since 1970. */
  readonly begin: number;
  readonly end: number;
  readonly loss: number | null;
  /** Share of the ranks' time in which they waited for messages; null where no action was timed. */
  readonly waiting: number | null;
  /** Highest memory of any rank, as each has told it last. */
  readonly memoryBytes: number;
}

/** What one rank tells of a step; `whole` is null where it tells no more. */
interface RankStep extends Pick<LiveStep, 'step' | 'begin' | 'end' | 'loss'> {
  readonly whole: LiveStep | null;
}

/**
 * Puts the lines of all ranks together.
 * @example const run = new LiveRunReader(); run.add(0, line); run.steps.at(-1)?.loss
 */
export class LiveRunReader {
  /** The schedule, once rank 0 has said it. */
  schedule: Schedule | null = null;
  status: LiveStatus | null = null;
  tokensPerStep: number | null = null;
  /** Steps that all ranks have ended, oldest first; the last `kept` of them. */
  readonly steps: LiveStepSummary[] = [];
  private readonly kept: number;
  private readonly timed: number;
  private readonly runs: Map<number, LiveRun> = new Map();
  /** How many runs each rank has begun after its first. */
  private readonly restarts: Map<number, number> = new Map();
  /** Steps that not all ranks have ended, by number and rank. */
  private readonly pending: Map<number, Map<number, RankStep>> = new Map();
  /** Memory of each rank after the last step that told it. */
  private readonly memory: Map<number, number> = new Map();
  /** Steps whose actions were timed, and when the first of them began. */
  private recorded: RecordedStep[] = [];
  private zero: number | null = null;

  /** Keeps so many steps, and the times of the actions of so many. */
  constructor(kept: number = 2000, timed: number = 1) {
    this.kept = kept;
    this.timed = timed;
  }

  /** Number of ranks; 0 until rank 0 has said it. */
  get ranks(): number {
    return this.schedule?.ranks ?? 0;
  }

  /** Takes a line of a rank's file, or of the launcher's. */
  add(rank: number, line: LiveLine): void {
    if (line.kind === 'status') this.status = line;
    else if (line.kind === 'run') this.begin(line);
    else if (line.kind === 'step') this.addStep(rank, { ...line, whole: line });
    else
      line.step.forEach((step, i) => {
        const [begin, end] = [line.begin[i]!, line.end[i]!];
        this.addStep(rank, { step, begin, end, loss: line.loss[i] ?? null, whole: null });
      });
  }

  private begin(line: LiveRun): void {
    this.dropPending(line);
    this.runs.set(line.rank, line);
    if (line.schedule === null) return;
    try {
      this.schedule = Schedule.fromJSON(line.schedule);
    } catch (error) {
      if (!(error instanceof ScheduleError)) throw error;
    }
    this.tokensPerStep = line.tokensPerStep;
  }

  /** Drops what the rank has told before. The other ranks' steps stay, unless a new run begins and they are from an older one. */
  private dropPending({ rank, process, origin }: LiveRun): void {
    const before = this.runs.get(rank);
    const isNew = before !== undefined && (before.process !== process || before.origin !== origin);
    const restarts = (this.restarts.get(rank) ?? 0) + (isNew ? 1 : 0);
    this.restarts.set(rank, restarts);
    for (const [step, ranks] of this.pending) {
      for (const other of ranks.keys())
        if (other === rank || (isNew && (this.restarts.get(other) ?? 0) < restarts)) ranks.delete(other);
      if (ranks.size === 0) this.pending.delete(step);
    }
  }

  /** Forgets the oldest pending steps: where whole files come one after the other, they would not be kept anyway. */
  private prunePending(): void {
    if (this.pending.size <= 2 * this.kept) return;
    const steps = [...this.pending.keys()].sort((a, b) => a - b);
    for (const step of steps.slice(0, -this.kept)) this.pending.delete(step);
  }

  private addStep(rank: number, line: RankStep): void {
    if (this.schedule === null || rank >= this.ranks) return;
    let ranks = this.pending.get(line.step);
    if (ranks === undefined) this.pending.set(line.step, (ranks = new Map()));
    ranks.set(rank, line);
    if (ranks.size < this.ranks) {
      this.prunePending();
      return;
    }
    this.pending.delete(line.step);
    for (const step of this.pending.keys()) if (step < line.step) this.pending.delete(step);
    this.finish(line.step, ranks);
  }

  private finish(step: number, ranks: ReadonlyMap<number, RankStep>): void {
    const at = (rank: number, time: number): number => (this.runs.get(rank)?.origin ?? 0) + time;
    const all = [...ranks];
    const begin = Math.min(...all.map(([rank, line]) => at(rank, line.begin)));
    const end = Math.max(...all.map(([rank, line]) => at(rank, line.end)));
    const lines = all.toSorted(([a], [b]) => a - b).flatMap(([, { whole }]) => whole ?? []);
    const timed = lines.length === all.length && lines.every(({ actions }) => actions !== null);
    for (const [rank, { whole }] of all)
      if (whole !== null) this.memory.set(rank, whole.deviceBytes ?? whole.processBytes);
    this.steps.push({
      step,
      begin,
      end,
      loss: all.find(([, line]) => line.loss !== null)?.[1].loss ?? null,
      waiting: timed ? waitingShare(lines) : null,
      memoryBytes: Math.max(0, ...all.map(([rank]) => this.memory.get(rank) ?? 0)),
    });
    if (this.steps.length > this.kept) this.steps.shift();
    if (!timed) return;
    const zero = this.timed === 1 ? begin : (this.zero ??= begin);
    const shift = (rank: number, value: number): number => (value < 0 ? -1 : at(rank, value) - zero);
    this.recorded.push({
      step,
      training: lines.every(({ training }) => training),
      ranks: lines.map((line, rank): RankRecord => {
        const { start, ready, stop, bytes, tensors } = line.actions!;
        const move = (values: readonly number[]): number[] => values.map((value) => shift(rank, value));
        return {
          begin: at(rank, line.begin) - zero,
          end: at(rank, line.end) - zero,
          start: move(start),
          ready: move(ready),
          stop: move(stop),
          bytes,
          tensors,
          processBytes: line.processBytes,
          deviceBytes: line.deviceBytes,
          heldBytes: line.heldBytes,
        };
      }),
    });
    if (this.recorded.length > this.timed) this.recorded.shift();
  }

  /** The last steps whose actions were timed, as a recording; null before there is one. */
  recording(): Recording | null {
    const latest = this.recorded.at(-1);
    if (latest === undefined || this.schedule === null) return null;
    return {
      format: 'pipewright-recording',
      version: 1,
      schedule: this.schedule.toJSON(),
      tokensPerStep: this.tokensPerStep,
      ranks: Array.from({ length: this.ranks }, (_, rank) => ({
        rank,
        process: this.runs.get(rank)?.process ?? '',
        device: this.runs.get(rank)?.device ?? 'cpu',
        peakProcessBytes: latest.ranks[rank]?.processBytes ?? 0,
        peakDeviceBytes: latest.ranks[rank]?.deviceBytes ?? null,
      })),
      steps: [...this.recorded],
    };
  }
}

/** Share of the ranks' time in which they waited; null where there is no time. */
function waitingShare(lines: readonly LiveStep[]): number | null {
  let waited = 0;
  let time = 0;
  for (const { begin, end, actions } of lines) {
    time += end - begin;
    actions?.ready.forEach((ready, i) => {
      if (ready >= 0) waited += ready - (actions.start[i] ?? ready);
    });
  }
  return time > 0 ? waited / time : null;
}

/** Refuses a name of a file that is not one of a live run. */
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
