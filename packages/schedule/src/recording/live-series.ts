/** @file The training steps of a live run, or its evaluations: each put together from the lines of all ranks, the last ones kept. */

import type { LiveStep } from './live-line.ts';
import type { RankRecord, RecordedStep } from './recording.ts';

/** One step of all ranks, put together from their lines. */
export interface LiveStepSummary {
  /** Its number among the training steps, or among the evaluations. */
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
export interface RankStep extends Pick<LiveStep, 'step' | 'begin' | 'end' | 'loss'> {
  /** Its number among those of its kind; null in feeds that number all alike. */
  readonly number: number | null;
  readonly training: boolean;
  readonly whole: LiveStep | null;
}

/** Steps of one kind, oldest first. */
export class LiveSeries {
  /** The last `kept` steps. */
  readonly steps: LiveStepSummary[] = [];
  /** The last `timed` steps whose actions were timed. */
  readonly recorded: RecordedStep[] = [];
  private readonly kept: number;
  private readonly timed: number;
  /** A time of a rank as milliseconds since 1970. */
  private readonly onOneClock: (rank: number, time: number) => number;
  /** Memory of each rank after the last step that told it. */
  private readonly memory: Map<number, number> = new Map();
  /** When the first step whose actions were timed began. */
  private zero: number | null = null;

  constructor(kept: number, timed: number, onOneClock: (rank: number, time: number) => number) {
    this.kept = kept;
    this.timed = timed;
    this.onOneClock = onOneClock;
  }

  /** Adds a step that all ranks have ended. */
  add(step: number, ranks: ReadonlyMap<number, RankStep>): void {
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
