/**
 * @file The most that each rank holds for backwards, from what its stages were counted to hold: action by action, in the order
 * of the rank's row. Stages of one rank hand their outputs over in the same memory, which counts once.
 */

import { Code } from '../model/packed.ts';
import type { Schedule } from '../model/schedule.ts';
import type { HeldValues, StageInputMemory, StageMemory } from './plan.ts';

/**
 * The highest bytes that each rank holds at the end of an action.
 * @example heldPeaks(planSchedule(plan), plan.memory) // [172032, 20484]
 */
export function heldPeaks(schedule: Schedule, stages: readonly StageMemory[]): number[] {
  const ledger = new Ledger(schedule, stages);
  schedule.forEachLeaf(({ rank, code, stage, microbatch }) => {
    if (code >= Code.F && code <= Code.B) ledger.perform(code, { rank, stage, microbatch });
  });
  return ledger.peaks;
}

/** The place of an action. */
interface Place {
  readonly rank: number;
  readonly stage: number;
  readonly microbatch: number;
}

/** Memory that several stages and messages may hold: it counts once, as the most that one of them holds. */
class Shared {
  private readonly holders = new Map<string, number>();

  get bytes(): number {
    let most = 0;
    for (const bytes of this.holders.values()) most = Math.max(most, bytes);
    return most;
  }

  hold(who: string, bytes: number): void {
    if (bytes > 0) this.holders.set(who, bytes);
    else this.holders.delete(who);
  }
}

/** The bytes that every rank holds while its row is performed. */
class Ledger {
  readonly peaks: number[];
  private readonly stages: readonly StageMemory[];
  private readonly stageToRank: readonly number[];
  /** Bytes that stages hold alone, by rank. */
  private readonly own: number[];
  /** Values and gradients, by rank. */
  private readonly shared: Map<string, Shared>[];
  /** Called before the next action of a rank, when its messages have left. */
  private readonly leaving: (() => void)[][];
  private readonly takers: readonly (readonly { readonly taker: number; readonly input: StageInputMemory }[])[];

  constructor(schedule: Schedule, stages: readonly StageMemory[]) {
    const { stageToRank, ranks } = schedule;
    this.stages = stages;
    this.stageToRank = stageToRank;
    this.peaks = new Array<number>(ranks).fill(0);
    this.own = new Array<number>(ranks).fill(0);
    this.shared = Array.from({ length: ranks }, () => new Map<string, Shared>());
    this.leaving = Array.from({ length: ranks }, () => []);
    this.takers = stages.map((_, stage) =>
      stages.flatMap(({ inputs }, taker) =>
        inputs.flatMap((input) =>
          input.stage === stage && stageToRank[taker] === stageToRank[stage] ? [{ taker, input }] : [],
        ),
      ),
    );
  }

  perform(code: number, place: Place): void {
    const { rank, stage } = place;
    for (const leave of this.leaving[rank]!.splice(0)) leave();
    const memory = this.stages[stage]!;
    const before = code === Code.F ? 0 : ownBytes(code === Code.W ? Code.I : Code.F, memory);
    this.own[rank]! += ownBytes(code, memory) - before;
    this.holdInputs(code, place, memory);
    this.holdOutputs(code, place, memory);
    let all = this.own[rank]!;
    for (const values of this.shared[rank]!.values()) all += values.bytes;
    if (all > this.peaks[rank]!) this.peaks[rank] = all;
    if (code === Code.W || code === Code.B) this.forgetEmpty(rank);
  }

  /** Inputs, which another stage of this rank may hold as its outputs. */
  private holdInputs(code: number, place: Place, { inputs }: StageMemory): void {
    const { stage } = place;
    for (const input of inputs) {
      this.valuesOf(place, input.stage, stage).hold(`${stage}`, bytesAfter(code, input, input.bytes));
      if (code !== Code.F) this.giveBack(code, place, input);
    }
  }

  /** Outputs: held once for every stage of this rank that takes them, or else until their message has left. */
  private holdOutputs(code: number, place: Place, { output }: StageMemory): void {
    const { rank, stage } = place;
    const takers = this.takers[stage] ?? [];
    const targets = takers.length === 0 ? [-1] : takers.map(({ taker }) => taker);
    for (const taker of targets) {
      const values = this.valuesOf(place, stage, taker);
      values.hold(`${stage}`, bytesAfter(code, output, output.saved));
      if (code === Code.F && taker < 0) this.leave(rank, values, output.bytes);
      if (code !== Code.F) this.gradientsOf(place, stage, taker).hold(`${stage}`, bytesAfter(code, output.gradient, 0));
    }
    if (code === Code.F)
      for (const { taker, input } of takers) this.valuesOf(place, stage, taker).hold(`${taker}`, input.bytes);
  }

  /** The gradients of an input go back to a stage of this rank, or leave in a message. */
  private giveBack(code: number, place: Place, { stage: source, gradient }: StageInputMemory): void {
    const { rank, stage } = place;
    const gradients = this.gradientsOf(place, source, stage);
    gradients.hold(`${stage}`, code === Code.I ? gradient.kept : 0);
    if (code === Code.W) return;
    if (this.stageToRank[source] === rank) gradients.hold(`${source}`, gradient.bytes);
    else if (code === Code.I) this.leave(rank, gradients, gradient.bytes);
  }

  /** Values or gradients leave in a message, before the next action. */
  private leave(rank: number, values: Shared, bytes: number): void {
    values.hold('message', bytes);
    this.leaving[rank]!.push(() => values.hold('message', 0));
  }

  /** What stage `from` has sent to stage `to`. */
  private valuesOf(place: Place, from: number, to: number): Shared {
    return this.sharedAs(place, `value ${from} ${to}`);
  }

  /** The gradients that come back for it. */
  private gradientsOf(place: Place, from: number, to: number): Shared {
    return this.sharedAs(place, `gradient ${from} ${to}`);
  }

  private sharedAs({ rank, microbatch }: Place, name: string): Shared {
    const key = `${name} ${microbatch}`;
    const all = this.shared[rank]!;
    let values = all.get(key);
    if (values === undefined) all.set(key, (values = new Shared()));
    return values;
  }

  private forgetEmpty(rank: number): void {
    const all = this.shared[rank]!;
    for (const [key, values] of all) if (values.bytes === 0) all.delete(key);
  }
}

/** Bytes that a stage alone holds for a microbatch after an action, without what it shares with other stages. */
function ownBytes(code: number, { forward, inputHalf, end, inputs, output }: StageMemory): number {
  const total = (of: (input: StageInputMemory) => number): number => inputs.reduce((sum, input) => sum + of(input), 0);
  if (code === Code.F) return forward - output.saved - total(({ bytes }) => bytes);
  if (code !== Code.I) return end;
  return inputHalf - output.kept - output.gradient.kept - total(({ kept, gradient }) => kept + gradient.kept);
}

/** Bytes of values that a stage holds after an action; `first` after the forward. */
function bytesAfter(code: number, { kept }: HeldValues, first: number): number {
  return code === Code.F ? first : code === Code.I ? kept : 0;
}
