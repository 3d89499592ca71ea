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

/** Where an action stands. */
interface Place {
  readonly rank: number;
  readonly stage: number;
  readonly microbatch: number;
}

/** Memory that several may hold: it is there as long as one of them does, as much as that one holds. */
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

class Ledger {
  readonly peaks: number[];
  private readonly stages: readonly StageMemory[];
  private readonly stageToRank: readonly number[];
  /** What stages hold alone, by rank. */
  private readonly own: number[];
  /** Values and gradients, by rank. */
  private readonly shared: Map<string, Shared>[];
  /** Messages that leave before the next action, by rank. */
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
    for (const leave of (this.leaving[rank] as (() => void)[]).splice(0)) leave();
    const memory = this.stages[stage]!;
    const { inputs, output } = memory;
    const held = (of: (values: HeldValues) => number, out: number): number =>
      inputs.reduce((total, input) => total + of(input), out);
    const gradients = (): number => inputs.reduce((total, { gradient }) => total + gradient.kept, output.gradient.kept);
    const bodies: Readonly<Record<number, number>> = {
      [Code.F]: memory.forward - held(({ bytes }) => bytes, output.saved),
      [Code.I]: memory.inputHalf - held(({ kept }) => kept, output.kept) - gradients(),
      [Code.W]: memory.end,
      [Code.B]: memory.end,
    };
    const before = code === Code.F ? 0 : code === Code.W ? bodies[Code.I]! : bodies[Code.F]!;
    this.own[rank] = this.own[rank]! + bodies[code]! - before;
    const holds = (values: HeldValues, first: number): number =>
      code === Code.F ? first : code === Code.I ? values.kept : 0;
    // Inputs, which another stage of this rank may hold as its outputs.
    for (const input of inputs) {
      this.tokenOf(place, input.stage, stage, 'value').hold(`${stage}`, holds(input, input.bytes));
      if (code !== Code.F) this.giveBack(code, place, input);
    }
    // Outputs: held under the name of every taker on this rank; those for others leave in messages.
    const takers = this.takers[stage] ?? [];
    const targets = takers.length === 0 ? [-1] : takers.map(({ taker }) => taker);
    for (const taker of targets) {
      const token = this.tokenOf(place, stage, taker, 'value');
      token.hold(`${stage}`, holds(output, output.saved));
      if (code === Code.F && taker < 0) this.leave(rank, token, output.bytes);
      if (code !== Code.F) this.tokenOf(place, stage, taker, 'gradient').hold(`${stage}`, holds(output.gradient, 0));
    }
    if (code === Code.F)
      for (const { taker, input } of takers) this.tokenOf(place, stage, taker, 'value').hold(`${taker}`, input.bytes);
    let all = this.own[rank] as number;
    for (const token of this.shared[rank]!.values()) all += token.bytes;
    if (all > this.peaks[rank]!) this.peaks[rank] = all;
    if (code === Code.W || code === Code.B) this.forgetEmpty(rank);
  }

  /** The gradients of an input: to the stage of this rank that gave it, or away in a message. */
  private giveBack(code: number, place: Place, { stage: source, gradient }: StageInputMemory): void {
    const { rank, stage } = place;
    const token = this.tokenOf(place, source, stage, 'gradient');
    token.hold(`${stage}`, code === Code.I ? gradient.kept : 0);
    if (code === Code.W) return;
    if (this.stageToRank[source] === rank) token.hold(`${source}`, gradient.bytes);
    else if (code === Code.I) this.leave(rank, token, gradient.bytes);
  }

  /** Values or gradients go in a message, before the next action. */
  private leave(rank: number, token: Shared, bytes: number): void {
    token.hold('message', bytes);
    (this.leaving[rank] as (() => void)[]).push(() => token.hold('message', 0));
  }

  private tokenOf({ rank, microbatch }: Place, from: number, to: number, what: 'value' | 'gradient'): Shared {
    const key = `${what} ${from} ${to} ${microbatch}`;
    const all = this.shared[rank]!;
    let token = all.get(key);
    if (token === undefined) all.set(key, (token = new Shared()));
    return token;
  }

  private forgetEmpty(rank: number): void {
    const all = this.shared[rank]!;
    for (const [key, token] of all) if (token.bytes === 0) all.delete(key);
  }
}
