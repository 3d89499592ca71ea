/** @file A run that is under way, put together from the lines of all its ranks. */

import { ScheduleError } from '../model/errors.ts';
import { Schedule } from '../model/schedule.ts';
import type { LiveLine, LiveRun, LiveStatus, LiveStep } from './live-line.ts';
import type { RankRecord, RecordedStep, Recording } from './recording.ts';

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
    const all = [...ranks];
    const begin = Math.min(...all.map(([rank, line]) => this.onOneClock(rank, line.begin)));
    const end = Math.max(...all.map(([rank, line]) => this.onOneClock(rank, line.end)));
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
    if (timed) this.record(step, lines, begin);
  }

  /** Keeps a step whose actions were timed. */
  private record(step: number, lines: readonly LiveStep[], begin: number): void {
    const zero = this.timed === 1 ? begin : (this.zero ??= begin);
    this.recorded.push({
      step,
      training: lines.every(({ training }) => training),
      ranks: lines.map((line, rank): RankRecord => {
        const { start, ready, stop, bytes, tensors } = line.actions!;
        const shift = (time: number): number => this.onOneClock(rank, time) - zero;
        const move = (times: readonly number[]): number[] => times.map((time) => (time < 0 ? -1 : shift(time)));
        return {
          begin: shift(line.begin),
          end: shift(line.end),
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

  /** A time of a rank as milliseconds since 1970. */
  private onOneClock(rank: number, time: number): number {
    return (this.runs.get(rank)?.origin ?? 0) + time;
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
