/** @file What the units of a model cost: the smallest pieces that stages are made of, for one microbatch. */
import type { StageCosts } from '@pipewright/schedule';
import { checkArgument } from '../base/checks.ts';

/** One unit: a layer, or what lies between layers. Seconds and bytes of one microbatch. */
export interface UnitCosts {
  /** The module it is, for people: `layers.3`. */
  readonly name: string;
  /** The first node of it in the graph: where a stage that begins with it is cut. */
  readonly begins: string;
  /** Seconds of the forward, the input half and the weight half of the backward. */
  readonly F: number;
  readonly I: number;
  readonly W: number;
  /** Seconds of the whole backward, where it was measured; else `I + W`. */
  readonly B?: number | undefined;
  /** Seconds of it until the gradients of the input are there, where weight gradients come last; else at its end. */
  readonly inputGradient?: number | undefined;
  /** Bytes kept from the forward until the backward. */
  readonly activation: number;
  /** Bytes of these that stay from the input half until the weight half. */
  readonly retained: number;
  /** Bytes of what it is given by the unit before: all that is kept where its forward is computed again. */
  readonly input: number;
  /** Bytes of its parameters. */
  readonly parameters: number;
}

type SumKey = 'F' | 'I' | 'W' | 'B' | 'inputGradient' | 'activation' | 'retained' | 'parameters';

/** Sums of units, so that any run of them is read off at once. */
export class UnitSums {
  readonly units: readonly UnitCosts[];
  /** Whether whole backwards were measured. */
  private readonly hasWhole: boolean;
  /** Whether it is known when gradients leave in them. */
  private readonly hasEarly: boolean;
  private readonly sums: Readonly<Record<SumKey, Float64Array>>;

  constructor(where: string, units: readonly UnitCosts[]) {
    checkArgument(where, Array.isArray(units) && units.length > 0, ['units', units], 'an array of at least one unit');
    this.units = units;
    this.hasWhole = units.some(({ B }) => B !== undefined);
    this.hasEarly = units.some(({ inputGradient }) => inputGradient !== undefined);
    const sumOf = (key: SumKey): Float64Array => {
      const sums = new Float64Array(units.length + 1);
      units.forEach((unit, i) => {
        const whole = unit.B ?? unit.I + unit.W;
        const value = key === 'B' ? whole : key === 'inputGradient' ? Math.min(unit[key] ?? whole, whole) : unit[key];
        const isNumber = Number.isFinite(value) && value >= 0;
        checkArgument(where, isNumber, [`${key} of unit ${i} (${unit.name})`, value], 'a number from 0 on');
        sums[i + 1] = sums[i]! + value;
      });
      return sums;
    };
    this.sums = {
      F: sumOf('F'),
      I: sumOf('I'),
      W: sumOf('W'),
      B: sumOf('B'),
      inputGradient: sumOf('inputGradient'),
      activation: sumOf('activation'),
      retained: sumOf('retained'),
      parameters: sumOf('parameters'),
    };
  }

  /** Seconds of the forwards and of both halves of the backwards of units `from` to `to`, the last one not included. */
  work(from: number, to: number): number {
    const { F, I, W } = this.sums;
    return F[to]! - F[from]! + (I[to]! - I[from]!) + (W[to]! - W[from]!);
  }

  /** The costs of units `from` to `to`, the last one not included; computed again, only the input is kept. */
  stage(from: number, to: number, recompute = false): StageCosts {
    const sum = (key: SumKey): number => this.sums[key][to]! - this.sums[key][from]!;
    const { input } = this.units[from]!;
    const [F, kept] = [sum('F'), sum('activation')];
    // No gradient goes back from the first stage: it has no input half, and all of its backward is in the weight half.
    const [I, W] = from === 0 ? [0, sum('B')] : [sum('I'), sum('W')];
    return {
      F,
      I: I + (recompute ? F : 0),
      W,
      ...(this.hasWhole ? { B: sum('B') + (recompute ? F : 0) } : {}),
      ...(this.hasEarly ? { inputGradient: sum('inputGradient') + (recompute ? F : 0) } : {}),
      activation: recompute ? Math.min(input, kept) : kept,
      retained: Math.min(sum('retained'), kept),
      ...(recompute ? { again: kept - Math.min(input, kept) } : {}),
      parameters: sum('parameters'),
      input: from === 0 ? 0 : input,
    };
  }
}
