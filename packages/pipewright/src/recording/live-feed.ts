/**
 * @file What a rank reports while it runs: lines appended to a file of its own, which the studio follows. They are written
 * synchronously, because a rank in a training loop never returns to the event loop. Where steps are short, several of them share a
 * line and fewer come with the times of their actions, so that reporting takes a small share of the run's time.
 */
import { closeSync, ftruncateSync, openSync, writeSync } from 'node:fs';
import { join } from 'node:path';
import { type LiveRun, type LiveStep, type LiveSteps, liveFileOf } from '@pipewright/schedule';
import { makeFolder } from '@pipewright/torch/files';

/** The variable that names the folder of a live run. */
export const LIVE_FOLDER = 'PIPEWRIGHT_LIVE';

/** Whether this run is watched. */
export function isWatched(): boolean {
  return (process.env[LIVE_FOLDER] ?? '') !== '';
}

/** What is known of every step that has ended. */
export type EndedStep = Required<Pick<LiveStep, 'step' | 'training' | 'number' | 'begin' | 'end' | 'loss'>>;

/** What is measured only for a step with a line of its own. */
export type StepDetails = Pick<LiveStep, 'processBytes' | 'deviceBytes' | 'heldBytes' | 'actions'>;

/** Steps are written this often at most, in milliseconds, and with the times of their actions this often. */
const writeMs = 50;
const detailMs = 200;
/** Share of the time that writing may take, and as much again for the times of actions. */
const share = 0.004;
/** However long a line takes to write, there is one after so many milliseconds or steps. */
const mostApartMs = 1000;
const mostWaiting = 10_000;
/** An upper bound of the time that timing an action takes, in milliseconds. */
const timingMs = 0.004;
/** So many steps at the beginning always come with times: a short run is to be compared with its plan too. */
const firstSteps = 8;
/** Weight of the newest value in a mean. */
const newest = 0.2;
/** A file that has grown this large begins again. */
const mostBytes = 64 * 1024 * 1024;

/** Feeds that may still have steps to write. */
const open = new Set<LiveFeed>();
let listens = false;

/** The file of one rank. */
export class LiveFeed {
  private readonly handle: number;
  private readonly head: string;
  private readonly now: () => number;
  private written = 0;
  private failed = false;
  /** Steps that have ended since the last one that was written. */
  private waiting: EndedStep[] = [];
  /** End of the last step that was written by itself. */
  private last = Number.NEGATIVE_INFINITY;
  /** What a training step takes, an evaluation, a line, and a line with the times of actions, in milliseconds. */
  private readonly trainingMs: Mean = new Mean();
  private readonly evaluationMs: Mean = new Mean();
  private readonly lineMs: Mean = new Mean();
  private readonly detailedMs: Mean = new Mean();

  /** Begins a file in a folder; null where no folder is named or it cannot be written. `now` is the clock for its own work. */
  static open(
    folder: string | undefined,
    run: Omit<LiveRun, 'kind' | 'version'>,
    now: () => number = () => performance.now(),
  ): LiveFeed | null {
    if (folder === undefined || folder === '') return null;
    try {
      makeFolder(folder);
      return new LiveFeed(openSync(join(folder, liveFileOf(run.rank)), 'w', 0o600), run, now);
    } catch (error) {
      console.error(`pipewright: the run goes on unwatched: cannot write to ${folder} (${(error as Error).message})`);
      return null;
    }
  }

  private constructor(handle: number, run: Omit<LiveRun, 'kind' | 'version'>, now: () => number) {
    this.handle = handle;
    this.now = now;
    this.head = `${JSON.stringify({ kind: 'run', version: 1, ...run } satisfies LiveRun)}\n`;
    this.write(this.head);
    open.add(this);
    if (listens) return;
    listens = true;
    process.on('exit', () => {
      for (const feed of open) feed.flush();
    });
  }

  /**
   * Whether a step that begins should come with the times of its actions, so many. A picture needs the same step of all ranks,
   * so its number among those of its kind decides: the first ones, then every first, second, fourth, eighth one and so on, by the
   * time that training steps take, or evaluations.
   */
  wantsActions({ training, number }: Pick<EndedStep, 'training' | 'number'>, actions: number): boolean {
    if (number < firstSteps) return true;
    const apart = Math.max(detailMs, (this.detailedMs.value + actions * timingMs) / share);
    const every = Math.round(Math.log2(apart / Math.max(1e-3, this.meanOf(training).value)));
    return number % 2 ** Math.max(0, Math.min(16, every)) === 0;
  }

  /** A step that has ended; it is written by itself where it comes with the times of its actions or the last line is a while ago. */
  step(step: EndedStep, hasActions: boolean, details: () => StepDetails): void {
    this.meanOf(step.training).add(step.end - step.begin);
    const apart = Math.min(mostApartMs, Math.max(writeMs, this.lineMs.value / share));
    if (!hasActions && step.end - this.last < apart && this.waiting.length < mostWaiting) {
      this.waiting.push(step);
      return;
    }
    const begin = this.now();
    this.write(`${this.takeWaiting()}${JSON.stringify({ kind: 'step', ...step, ...details() } satisfies LiveStep)}\n`);
    this.last = step.end;
    (hasActions ? this.detailedMs : this.lineMs).add(this.now() - begin);
  }

  /** Writes the steps that wait to be written: there may be no further step. */
  flush(): void {
    if (this.waiting.length > 0) this.write(this.takeWaiting());
  }

  close(): void {
    this.flush();
    this.giveUp();
  }

  /** The line of the steps that wait. */
  private takeWaiting(): string {
    const steps = this.waiting;
    if (steps.length === 0) return '';
    this.waiting = [];
    const line: LiveSteps = {
      kind: 'steps',
      step: steps.map(({ step }) => step),
      training: steps.map(({ training }) => training),
      number: steps.map(({ number }) => number),
      begin: steps.map(({ begin }) => micro(begin)),
      end: steps.map(({ end }) => micro(end)),
      loss: steps.map(({ loss }) => loss),
    };
    return `${JSON.stringify(line)}\n`;
  }

  private meanOf(training: boolean): Mean {
    return training ? this.trainingMs : this.evaluationMs;
  }

  private giveUp(): void {
    open.delete(this);
    if (!this.failed) closeSync(this.handle);
    this.failed = true;
  }

  private write(text: string): void {
    if (this.failed) return;
    try {
      if (this.written > mostBytes) {
        ftruncateSync(this.handle, 0);
        this.written = writeSync(this.handle, this.head, 0);
      }
      this.written += writeSync(this.handle, text, this.written);
    } catch (error) {
      // A failure to report must not end the training.
      this.giveUp();
      console.error(`pipewright: the run goes on unwatched: ${(error as Error).message}`);
    }
  }
}

/** To whole microseconds, of milliseconds: short numbers are written faster. */
function micro(milliseconds: number): number {
  return Math.round(milliseconds * 1000) / 1000;
}

/** A moving mean: old values count less and less. */
class Mean {
  value = 0;
  private count = 0;

  add(value: number): void {
    this.count++;
    this.value += Math.max(newest, 1 / this.count) * (value - this.value);
  }
}
