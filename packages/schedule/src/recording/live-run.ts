/** @file A run that is under way, put together from the lines of all its ranks. */

import { ScheduleError } from '../model/errors.ts';
import { Schedule } from '../model/schedule.ts';
import type { LiveLine, LiveRun, LiveStatus } from './live-line.ts';
import { LiveSeries, type LiveStepSummary, type RankStep } from './live-series.ts';
import type { Recording } from './recording.ts';

/**
 * Puts the lines of all ranks together.
 * @example const run = new LiveRunReader(); run.add(0, line); run.steps.at(-1)?.loss
 */
export class LiveRunReader {
  /** The schedule, once rank 0 has said it. */
  schedule: Schedule | null = null;
  status: LiveStatus | null = null;
  tokensPerStep: number | null = null;
  /** Whether what all ranks have ended last is an evaluation. */
  evaluates = false;
  private readonly training: LiveSeries;
  private readonly evaluating: LiveSeries;
  private readonly kept: number;
  private readonly runs: Map<number, LiveRun> = new Map();
  /** How many runs each rank has begun after its first. */
  private readonly restarts: Map<number, number> = new Map();
  /** Steps that not all ranks have ended, by number and rank. */
  private readonly pending: Map<number, Map<number, RankStep>> = new Map();

  /** Keeps so many training steps and so many evaluations, and the times of the actions of so many of each. */
  constructor(kept: number = 2000, timed: number = 1) {
    this.kept = kept;
    const onOneClock = (rank: number, time: number): number => (this.runs.get(rank)?.origin ?? 0) + time;
    this.training = new LiveSeries(kept, timed, onOneClock);
    this.evaluating = new LiveSeries(kept, timed, onOneClock);
  }

  /** Training steps that all ranks have ended, oldest first; the last `kept` of them. */
  get steps(): readonly LiveStepSummary[] {
    return this.training.steps;
  }

  /** The same of evaluations; a feed that is older than their numbers has none: its evaluations are among the steps. */
  get evaluations(): readonly LiveStepSummary[] {
    return this.evaluating.steps;
  }

  /** Number of ranks; 0 until rank 0 has said it. */
  get ranks(): number {
    return this.schedule?.ranks ?? 0;
  }

  /** Takes a line of a rank's file, or of the launcher's. */
  add(rank: number, line: LiveLine): void {
    if (line.kind === 'status') this.status = line;
    else if (line.kind === 'run') this.begin(line);
    else if (line.kind === 'step') this.addStep(rank, { ...line, number: line.number ?? null, whole: line });
    else
      line.step.forEach((step, i) => {
        const [begin, end, number] = [line.begin[i]!, line.end[i]!, line.number?.[i] ?? null];
        const training = line.training?.[i] ?? true;
        this.addStep(rank, { step, training, number, begin, end, loss: line.loss[i] ?? null, whole: null });
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
    if (this.pending.size <= 4 * this.kept) return;
    const steps = [...this.pending].sort(([a], [b]) => a - b);
    for (const kind of [this.training, this.evaluating]) {
      const own = steps.filter(([, ranks]) => this.seriesOf([...ranks.values()][0]!) === kind);
      for (const [step] of own.slice(0, -this.kept)) this.pending.delete(step);
    }
  }

  /** Where a step belongs; feeds without numbers do not tell the kind of every step. */
  private seriesOf({ training, number }: RankStep): LiveSeries {
    return training || number === null ? this.training : this.evaluating;
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
    const series = this.seriesOf(line);
    this.evaluates = series === this.evaluating;
    series.add(line.number ?? line.step, ranks);
  }

  /**
   * The last training steps whose actions were timed, as a recording, or the last evaluations; null before there is one. Where
   * neither is asked for: evaluations only in a run that does not train.
   */
  recording(kind?: 'training' | 'evaluation'): Recording | null {
    if (kind === undefined) return this.recording('training') ?? this.recording('evaluation');
    const { recorded } = kind === 'training' ? this.training : this.evaluating;
    const latest = recorded.at(-1);
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
      steps: [...recorded],
    };
  }
}
