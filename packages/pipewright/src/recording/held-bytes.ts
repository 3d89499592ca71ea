/**
 * @file Counts the bytes that a rank holds for the backwards of microbatches under way: the memory that forwards allocate and
 * backwards free, plus what arrives in messages, minus what is sent and not needed any more. Gradients of parameters do not count,
 * not even where a backward allocates them anew.
 */
import type { Action } from '@pipewright/schedule';
import { type distributed, keep, liveBytes, scope, type Tensor } from '@pipewright/torch';
import { holdsAlone, originalHolders, type StandIn, standIn } from '@pipewright/torch/internal';

/** A stage of the rank that is counted. */
export interface CountedStage {
  readonly stageIndex: number;
  readonly module: { parameters(): readonly Tensor[] };
}

/** The rank that is counted. */
interface CountedRank {
  readonly device: string;
  readonly group: distributed.ProcessGroup | null;
  readonly stages?: readonly CountedStage[];
}

/** The bytes held in one step after the other. */
export class HeldBytes {
  /** The most that was held at the end of an action of the step. */
  peak = 0;
  private held = 0;
  private entered = 0;
  /** Actions under way, the innermost last. */
  private readonly under: number[] = [];
  /** What was sent while a backward still needed it: a message may hold it longer than the backward, which does not count. */
  private readonly sent: StandIn[] = [];
  /** Whether an entry of the row computes. */
  private readonly computes: Uint8Array;
  /** The stage whose parameters an entry of the row may give gradients; -1 for others. */
  private readonly learns: Int32Array;
  private readonly stages: readonly CountedStage[];
  /** The trainable parameters of a stage; collected when they are first needed. */
  private readonly learned = new Map<number, readonly Tensor[]>();
  /** Parameters that had no gradient when last looked at. */
  private readonly absent = new Set<Tensor>();
  /** Threads hand tensors over: their memory is the sender's. */
  private readonly arrives: boolean;

  /** The count of a rank's row; null where its stages are not on the CPU. */
  static of(row: readonly (Action | null)[], rank: CountedRank): HeldBytes | null {
    return rank.device === 'cpu' ? new HeldBytes(row, rank) : null;
  }

  private constructor(row: readonly (Action | null)[], { group, stages = [] }: CountedRank) {
    this.arrives = group?.backend !== 'thread';
    this.stages = stages;
    const entries = row.flatMap(entriesOf);
    this.computes = Uint8Array.from(entries, ({ kind }) => (['F', 'B', 'I', 'W'].includes(kind) ? 1 : 0));
    this.learns = Int32Array.from(entries, ({ kind, stage }) => (['B', 'I', 'W'].includes(kind) ? stage : -1));
  }

  beginStep(): void {
    this.held = 0;
    this.peak = 0;
    this.under.length = 0;
    for (const { tensor } of this.sent.splice(0)) tensor.dispose();
    this.absent.clear();
    scope(() => {
      for (const { stageIndex } of this.stages)
        for (const parameter of this.learnedIn(stageIndex)) if (parameter.grad === null) this.absent.add(parameter);
    });
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
    const index = this.under.at(-1) ?? -1;
    if (this.computes[index] !== 1) return;
    this.held += liveBytes() - this.entered;
    if (this.absent.size > 0 && this.learns[index]! >= 0) this.held -= this.newGradients(this.learns[index]!);
  }

  /** Bytes of the gradients that parameters of a stage have got since they were last looked at. */
  private newGradients(stage: number): number {
    return scope(() => {
      let bytes = 0;
      for (const parameter of this.learnedIn(stage)) {
        const grad = this.absent.has(parameter) ? parameter.grad : null;
        if (grad === null) continue;
        bytes += grad.nbytes;
        this.absent.delete(parameter);
      }
      return bytes;
    });
  }

  private learnedIn(stage: number): readonly Tensor[] {
    let found = this.learned.get(stage);
    if (found === undefined) {
      const all = this.stages.flatMap(({ stageIndex, module }) => (stageIndex === stage ? module.parameters() : []));
      this.learned.set(stage, (found = all.filter(({ requiresGrad }) => requiresGrad)));
    }
    return found;
  }

  /** The action under way has received so many bytes, in memory that another thread has taken. */
  received(bytes: number): void {
    if (this.arrives) this.held += bytes;
  }

  /** What the action under way has found so far is not held for backwards: parameters that were gathered for it. */
  passOver(): void {
    this.entered = liveBytes();
  }

  /**
   * Values or gradients are about to be sent: they do not count any more, except those that a backward still needs. Returns what to
   * send in their place.
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

  /** Stops counting what was sent and is now held only by messages. */
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
