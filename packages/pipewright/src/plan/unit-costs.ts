/** @file What the units of a model cost: the smallest pieces that stages are made of, for one microbatch. */
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
  /** Bytes kept from the forward until the backward. */
  readonly activation: number;
  /** Bytes of these that stay from the input half until the weight half. */
  readonly retained: number;
  /** Bytes of what it is given by the unit before: all that is kept where its forward is computed again. */
  readonly input: number;
  /** Bytes of its parameters. */
  readonly parameters: number;
}

/** A stage's costs: those of its units together. */
export interface StageCosts {
  readonly F: number;
  readonly I: number;
  readonly W: number;
  readonly activation: number;
  readonly retained: number;
  readonly parameters: number;
  /** Bytes of what the stage before sends it. */
  readonly input: number;
}

/** Sums of units, so that any run of them is read off at once. */
export class UnitSums {
  readonly units: readonly UnitCosts[];
  private readonly sums: Readonly<Record<'F' | 'I' | 'W' | 'activation' | 'retained' | 'parameters', Float64Array>>;

  constructor(where: string, units: readonly UnitCosts[]) {
    checkArgument(where, Array.isArray(units) && units.length > 0, ['units', units], 'an array of at least one unit');
    this.units = units;
    const sumOf = (key: 'F' | 'I' | 'W' | 'activation' | 'retained' | 'parameters'): Float64Array => {
      const sums = new Float64Array(units.length + 1);
      units.forEach((unit, i) => {
        const value = unit[key];
        const isNumber = Number.isFinite(value) && value >= 0;
        checkArgument(where, isNumber, [`${key} of unit ${i} (${unit.name})`, value], 'a number from 0 on');
        sums[i + 1] = (sums[i] as number) + value;
      });
      return sums;
    };
    this.sums = {
      F: sumOf('F'),
      I: sumOf('I'),
      W: sumOf('W'),
      activation: sumOf('activation'),
      retained: sumOf('retained'),
      parameters: sumOf('parameters'),
    };
  }

  /** The costs of units `from` to `to`, the last one not included; computed again, only the input is kept. */
  stage(from: number, to: number, recompute = false): StageCosts {
    const sum = (key: keyof UnitSums['sums']): number =>
      (this.sums[key][to] as number) - (this.sums[key][from] as number);
    const { input } = this.units[from] as UnitCosts;
    const [F, kept] = [sum('F'), sum('activation')];
    return {
      F,
      I: sum('I') + (recompute ? F : 0),
      W: sum('W'),
      activation: recompute ? Math.min(input, kept) : kept,
      retained: Math.min(sum('retained'), kept),
      parameters: sum('parameters'),
      input: from === 0 ? 0 : input,
    };
  }
}
