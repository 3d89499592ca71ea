/**
 * @file The processor time of each action: the time of a rank's thread without waits for messages, for other ranks, and for a core
 * that another rank uses. Taking a message counts for the action that needs it. What the runtime does between two actions counts for
 * the second one, what it does after the last one for that one.
 */
import type { distributed } from '@pipewright/torch';
import { threadTime } from '@pipewright/torch/internal';
import { COLUMNS, Column, thisMachine } from './parts.ts';

/** The processor times of one step after the other. */
export class BusyTimes {
  /** Null where processor time and time are the same: every rank has a core and waits for messages only. */
  static of(runtime: {
    readonly group: distributed.ProcessGroup | null;
    readonly isParallel?: boolean;
  }): BusyTimes | null {
    const { cores, ranks } = thisMachine(runtime.group?.size ?? 1);
    return runtime.isParallel === true || cores < ranks ? new BusyTimes() : null;
  }

  private data: Float64Array = new Float64Array(0);
  private last = 0;
  /** The action that ended last; -1: none. */
  private ended = -1;
  /** Actions under way, the innermost last. */
  private readonly under: number[] = [];

  beginStep(data: Float64Array): void {
    this.data = data;
    this.under.length = 0;
    this.ended = -1;
    this.last = threadTime();
  }

  /** An action begins, perhaps in the middle of another one. */
  begin(index: number): void {
    this.data[index * COLUMNS + Column.Busy] = 0;
    this.charge(this.under.at(-1) ?? index);
    this.under.push(index);
  }

  /** An action ends; the one around it goes on. */
  end(index: number): void {
    this.charge(index);
    this.ended = index;
    while (this.under.length > 0 && this.under.pop() !== index);
  }

  /** Adds the processor time since it was last read to an action that ended earlier. */
  prolong(index: number, busy: number): void {
    this.data[index * COLUMNS + Column.Busy]! += busy;
    this.last += busy;
  }

  /** The step ends. */
  endStep(): void {
    if (this.ended >= 0) this.charge(this.ended);
  }

  private charge(index: number): void {
    const now = threadTime();
    this.data[index * COLUMNS + Column.Busy]! += now - this.last;
    this.last = now;
  }
}
