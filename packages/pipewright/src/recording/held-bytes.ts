/**
 * @file What a rank holds for the backwards of microbatches under way, counted: the memory that its forwards take and its
 * backwards give back, with what arrives in messages and without what leaves in them for good.
 */
import type { Action } from '@pipewright/schedule';
import { type distributed, keep, liveBytes, type Tensor } from '@pipewright/torch';
import { holdsAlone, originalHolders, type StandIn, standIn } from '@pipewright/torch/internal';

/** Counts one step after the other. */
export class HeldBytes {
  /** The most that was held at the end of an action of the step. */
  peak = 0;
  private held = 0;
  private entered = 0;
  /** Actions under way, the innermost last. */
  private readonly under: number[] = [];
  /** What was sent while a backward still needed it: a message may hold it for longer than that, which does not count. */
  private readonly sent: StandIn[] = [];
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
    for (const { tensor } of this.sent.splice(0)) tensor.dispose();
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
    if (this.computes[index] === 1) {
      this.giveUp();
      if (this.held > this.peak) this.peak = this.held;
    }
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

  /**
   * Values or gradients are about to be sent: they are gone, except those that a backward still needs. Gives what to send in
   * their place.
   */
  leaving(tensors: readonly (Tensor | null)[]): readonly (Tensor | null)[] {
    return tensors.map((tensor) => {
      if (tensor === null) return null;
      if (holdsAlone(tensor)) this.held -= tensor.nbytes;
      else if (this.arrives) {
        const sent = keep(standIn(tensor));
        this.sent.push(sent);
        return sent.tensor;
      }
      return tensor;
    });
  }

  /** What was sent and is now held by nobody but messages is gone. */
  private giveUp(): void {
    const { sent } = this;
    if (sent.length === 0) return;
    const ours = new Map<number, number>();
    for (const { memory } of sent) ours.set(memory, (ours.get(memory) ?? 0) + 1);
    const gone = sent.filter((one) => originalHolders(one) === ours.get(one.memory));
    if (gone.length === 0) return;
    this.sent.splice(0, sent.length, ...sent.filter((one) => !gone.includes(one)));
    const bytes = new Map(gone.map((one) => [one.memory, one.bytes]));
    for (const each of bytes.values()) this.held -= each;
    for (const { tensor } of gone) tensor.dispose();
  }
}

/** The entries of an action in a record: itself, then its parts. */
function entriesOf(action: Action | null): Action[] {
  return action === null ? [] : [action, ...(action.parts ?? []).flatMap(entriesOf)];
}
