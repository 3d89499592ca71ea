/**
 * @file How far this rank is in its step, in a file that is mapped into memory: it can be read while the rank is blocked, and after
 * it was killed. The clock is read once for each action; where actions are so short that this would slow them down, once for
 * several of them, whose times are then a little old.
 */
import { renameSync, rmSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import {
  PROGRESS_ENTRY,
  PROGRESS_HEAD,
  PROGRESS_VERSION,
  ProgressHead,
  progressFileOf,
} from '@pipewright/schedule/internal';
import { callOp, type Tensor, unscoped } from '@pipewright/torch';

/** The rank whose progress it is. */
export interface ProgressOf {
  readonly rank: number;
  /** What has to be added to this rank's times, for the clock that all ranks of a machine share. */
  readonly origin: number;
  /** Number of entries: actions, and parts of overlapped ones. */
  readonly actions: number;
}

/** An upper bound of the time that reading the clock and storing it takes, in milliseconds, and the share of a step that it may take. */
const lookMs = 0.0003;
const share = 0.003;

/** The progress of one rank. */
export class StepProgress {
  /** Keeps the memory mapped. */
  readonly mapped: Tensor;
  private readonly numbers: Float64Array;
  /** The entry under way, those around it while it is performed inside of another, and the time when the clock was last read. */
  private current = -1;
  private readonly outer: number[] = [];
  private last = 0;
  /** Number of actions between two readings of the clock, how many are left until the next one, and how many have ended in this step. */
  private apart = 1;
  private left = 1;
  private ended = 0;

  /** Makes the file; null where that is impossible: the run goes on. */
  static open(folder: string, of: ProgressOf): StepProgress | null {
    const file = join(folder, progressFileOf(of.rank));
    const count = PROGRESS_HEAD + of.actions * PROGRESS_ENTRY;
    try {
      // A new file each time, written as a whole: a mapped file that is shortened or whose disk is full would end the process.
      writeFileSync(`${file}.new`, new Uint8Array(count * 8), { mode: 0o600 });
      renameSync(`${file}.new`, file);
      const mapped = unscoped(() => callOp('aten::from_file', [file, true, count], { dtype: 'float64' }) as Tensor);
      return new StepProgress(mapped, of.origin);
    } catch {
      rmSync(`${file}.new`, { force: true });
      return null;
    }
  }

  private constructor(mapped: Tensor, origin: number) {
    this.mapped = mapped;
    this.numbers = mapped.sharedArray() as Float64Array;
    this.numbers[ProgressHead.Begin] = Number.POSITIVE_INFINITY;
    this.numbers[ProgressHead.Origin] = origin;
  }

  beginStep(step: number, training: boolean, now: number): void {
    const { numbers } = this;
    numbers[ProgressHead.Begin] = now;
    numbers[ProgressHead.Step] = step;
    numbers[ProgressHead.Training] = training ? 1 : 0;
    numbers[ProgressHead.Version] = PROGRESS_VERSION;
    this.last = now;
    this.left = this.apart;
    this.ended = 0;
    this.current = -1;
    this.outer.length = 0;
  }

  /** An action begins: where the last one ended, unless it is performed inside of another. */
  begin(index: number): void {
    if (this.current >= 0) {
      this.outer.push(this.current);
      this.last = performance.now();
    }
    this.current = index;
    this.numbers[PROGRESS_HEAD + index * PROGRESS_ENTRY] = this.last;
  }

  /** The message that the action under way has waited for has arrived. */
  received(): void {
    if (this.current >= 0)
      this.numbers[PROGRESS_HEAD + this.current * PROGRESS_ENTRY + 1] = this.last = performance.now();
  }

  end(index: number): void {
    this.ended++;
    if (--this.left <= 0) {
      this.left = this.apart;
      this.last = performance.now();
    }
    this.numbers[PROGRESS_HEAD + index * PROGRESS_ENTRY + 2] = this.last;
    this.current = this.outer.length === 0 ? -1 : this.outer.pop()!;
  }

  endStep(now: number): void {
    const took = now - this.numbers[ProgressHead.Begin]!;
    this.numbers[ProgressHead.Before] = took;
    this.numbers[ProgressHead.End] = now;
    this.apart = took > 0 ? Math.max(1, Math.ceil((lookMs * this.ended) / (share * took))) : 1;
  }

  failStep(): void {
    this.numbers[ProgressHead.Failed] = performance.now();
  }
}
