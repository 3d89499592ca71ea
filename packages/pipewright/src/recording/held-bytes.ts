/**
 * @file What a rank holds for the backwards of microbatches under way, counted: the memory that its forwards take and its
 * backwards give back, with what arrives in messages and without what leaves in them for good.
 */
import type { Action } from '@pipewright/schedule';
import { type distributed, liveBytes, Tensor } from '@pipewright/torch';
import { holdsAlone } from '@pipewright/torch/internal';
import { tensorsIn } from '../base/tree.ts';

/** Counts one step after the other. */
export class HeldBytes {
  /** The most that was held at the end of an action of the step. */
  peak = 0;
  private held = 0;
  private entered = 0;
  /** Actions under way, the innermost last. */
  private readonly under: number[] = [];
  /** Whether an entry of the row computes. */
  private readonly computes: Uint8Array;
  /** Threads hand tensors over: their memory is the sender's. */
  private readonly arrives: boolean;

  /** The count of a rank's row; null where its stages are not on the CPU. */
  static of(
    row: readonly (Action | null)[],
    runtime: { readonly device: string; readonly group: distributed.ProcessGroup | null },
  ): HeldBytes | null {
    return runtime.device === 'cpu' ? new HeldBytes(row, runtime.group?.backend !== 'thread') : null;
  }

  private constructor(row: readonly (Action | null)[], arrives: boolean) {
    this.arrives = arrives;
    this.computes = Uint8Array.from(row.flatMap(entriesOf), ({ kind }) =>
      ['F', 'B', 'I', 'W'].includes(kind) ? 1 : 0,
    );
  }

  beginStep(): void {
    this.held = 0;
    this.peak = 0;
    this.under.length = 0;
  }

  /** An action begins, perhaps in the middle of another one. */
  begin(index: number): void {
    this.settle();
    this.under.push(index);
    this.entered = liveBytes();
  }

  /** An action ends; the one around it goes on. */
  end(index: number): void {
    this.settle();
    while (this.under.length > 0 && this.under.pop() !== index);
    if (this.computes[index] === 1 && this.held > this.peak) this.peak = this.held;
    this.entered = liveBytes();
  }

  /** Adds what the action under way has taken or given back since it began or went on. */
  private settle(): void {
    if (this.computes[this.under.at(-1) ?? -1] === 1) this.held += liveBytes() - this.entered;
  }

  /** The action under way has received so many bytes, in memory that another thread has taken. */
  received(bytes: number): void {
    if (this.arrives) this.held += bytes;
  }

  /** Values or gradients are about to be sent: they are gone, except those that a backward still needs. */
  leaving(values: readonly unknown[]): void {
    for (const value of values)
      if (value instanceof Tensor) {
        if (holdsAlone(value)) this.held -= value.nbytes;
      } else if (typeof value === 'object' && value !== null) this.leaving(tensorsIn(value));
  }
}

/** The entries of an action in a record: itself, then its parts. */
function entriesOf(action: Action | null): Action[] {
  return action === null ? [] : [action, ...(action.parts ?? []).flatMap(entriesOf)];
}
