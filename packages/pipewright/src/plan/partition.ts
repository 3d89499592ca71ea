/**
 * @file The best partition of a chain of units into stages, found exactly: the slowest stage is made as fast as possible,
 * every stage within the memory it may hold under its schedule. Among equally fast ones the least is sent.
 */
import { checkArgument, checkCount, checkOptions } from '../base/checks.ts';
import { PipelineError } from '../base/errors.ts';
import { formatBytes } from '../pipe/picture.ts';
import { type UnitCosts, UnitSums } from './unit-costs.ts';

/** A chain of units to be divided. */
export interface PartitionProblem {
  readonly units: readonly UnitCosts[];
  readonly stages: number;
  /** Microbatches that each stage holds at its peak. Default: one. */
  readonly inFlight?: readonly number[] | undefined;
  /** Bytes that each stage may hold; null is unlimited. */
  readonly limits?: readonly (number | null)[] | undefined;
  /** How much longer than measured the rank of each stage takes. Default: 1. */
  readonly slowness?: readonly number[] | undefined;
  /** Bytes of parameters, gradients and optimizer state for each byte of parameters. Default 4, as for Adam. */
  readonly stateFactor?: number | undefined;
  /** Seconds to send a byte to the next stage. Default 0. */
  readonly secondsPerByte?: number | undefined;
  /** Whether forwards may be computed again where a stage does not fit otherwise. Default false. */
  readonly mayRecompute?: boolean | undefined;
}

/** A division of a chain. */
export interface Partition {
  /** The unit that each stage begins with; the first is 0. */
  readonly begins: readonly number[];
  /** Stages that keep their input only, and compute their forward again. */
  readonly recompute: readonly boolean[];
  /** Seconds of the slowest stage for one microbatch. */
  readonly slowest: number;
  /** Bytes sent between stages for one microbatch. */
  readonly sent: number;
}

const names = ['units', 'stages', 'inFlight', 'limits', 'slowness', 'stateFactor', 'secondsPerByte', 'mayRecompute'];

/** What one stage of a partition takes and holds. */
export interface PlacedStage {
  readonly seconds: number;
  readonly bytes: number;
  readonly recompute: boolean;
}

/** The rules of a partition: what a stage of given units takes and holds, and whether it fits. */
export class PartitionRules {
  readonly sums: UnitSums;
  readonly stages: number;
  private readonly problem: PartitionProblem;

  constructor(problem: PartitionProblem) {
    checkArgument(
      'partition',
      typeof problem === 'object' && problem !== null,
      ['the problem', problem],
      '{ units, stages }',
    );
    checkOptions('partition', problem, names);
    this.problem = problem;
    this.stages = checkCount('partition', 'stages', problem.stages);
    this.sums = new UnitSums('partition', problem.units);
    for (const name of ['inFlight', 'limits', 'slowness'] as const) {
      const list = problem[name];
      const fits = list === undefined || (Array.isArray(list) && list.length === this.stages);
      checkArgument('partition', fits, [name, list], `one entry for each of the ${this.stages} stages`);
    }
  }

  /** Bytes that a stage may hold. */
  limitOf(stage: number): number {
    return this.problem.limits?.[stage] ?? Number.POSITIVE_INFINITY;
  }

  /** A stage of units `from` to `to`, last not included. */
  place(stage: number, from: number, to: number, recompute: boolean): PlacedStage {
    const { inFlight, slowness, stateFactor = 4, secondsPerByte = 0 } = this.problem;
    const costs = this.sums.stage(from, to, recompute);
    const next = to < this.sums.units.length ? this.sums.units[to]!.input : 0;
    // While it is computed again, one microbatch is there in full.
    const whole = recompute ? this.sums.stage(from, to).activation - costs.activation : 0;
    return {
      recompute,
      seconds: (costs.F + costs.I + costs.W) * (slowness?.[stage] ?? 1) + 2 * (costs.input + next) * secondsPerByte,
      bytes: costs.parameters * stateFactor + (inFlight?.[stage] ?? 1) * costs.activation + whole,
    };
  }

  /** Seconds that a stage takes at least, whatever it sends; the more units, the more. */
  leastSeconds(stage: number, from: number, to: number): number {
    return this.sums.work(from, to) * (this.problem.slowness?.[stage] ?? 1);
  }

  /** The faster way to run a stage that fits; null where none does. */
  best(stage: number, from: number, to: number): PlacedStage | null {
    const limit = this.limitOf(stage);
    const kept = this.place(stage, from, to, false);
    if (kept.bytes <= limit) return kept;
    if (this.problem.mayRecompute !== true) return null;
    const again = this.place(stage, from, to, true);
    return again.bytes <= limit ? again : null;
  }
}

/** What the first stages come to. */
interface End {
  readonly slowest: number;
  readonly sent: number;
}

interface Found extends End {
  /** Where the last stage begins. */
  readonly from: number;
}

/**
 * Divides a chain of units into stages.
 *
 * @example partition({ units, stages: 4, limits: [2e9, 2e9, 2e9, 2e9], inFlight: [4, 3, 2, 1] }).begins // [0, 5, 11, 17]
 */
export function partition(problem: PartitionProblem): Partition {
  const rules = new PartitionRules(problem);
  const { stages, sums } = rules;
  const count = sums.units.length;
  if (count < stages)
    throw new PipelineError(
      'TOO_MANY_STAGES',
      `partition: ${count} units make at most ${count} stages, but ${stages} were asked for`,
      { units: count, stages },
    );
  const fastest = solve(
    rules,
    (end) => end.slowest,
    (known) => known?.slowest ?? Number.POSITIVE_INFINITY,
  );
  if (fastest === null) throw misfit(rules);
  // Of all that are as fast, the one that sends least: a second pass, in which no stage may be slower.
  const { slowest } = fastest;
  const { begins, sent } = solve(
    rules,
    (end) => (end.slowest > slowest ? Number.POSITIVE_INFINITY : end.sent),
    () => slowest,
  )!;
  const recompute = begins.map((from, i) => rules.best(i, from, begins[i + 1] ?? count)?.recompute === true);
  return { begins, recompute, slowest, sent };
}

interface Solution extends End {
  readonly begins: readonly number[];
}

/**
 * The division whose value is least; null where none fits or all are worth infinitely much. Stages that must take longer than
 * `mostSeconds` of what is known so far are not looked at: a stage only gets slower by more units.
 */
function solve(
  rules: PartitionRules,
  valueOf: (end: End) => number,
  mostSeconds: (known: End | undefined) => number,
): Solution | null {
  const { stages, sums } = rules;
  const count = sums.units.length;
  // rows[k][j]: stages 0 to k of units 0 to j - 1.
  const rows: (Found | undefined)[][] = [];
  for (let stage = 0; stage < stages; stage++) {
    const row: (Found | undefined)[] = [];
    const isLast = stage === stages - 1;
    for (let to = isLast ? count : stage + 1; to <= count - (stages - 1 - stage); to++)
      for (let from = stage === 0 ? 0 : to - 1; from >= stage; from--) {
        const earlier = stage === 0 ? { slowest: 0, sent: 0 } : rows[stage - 1]?.[from];
        if (from > 0 && rules.leastSeconds(stage, from, to) > mostSeconds(row[to])) break;
        const placed = earlier === undefined ? null : rules.best(stage, from, to);
        if (earlier === undefined || placed === null) continue;
        const slowest = Math.max(earlier.slowest, placed.seconds);
        const found = { slowest, sent: earlier.sent + rules.sums.stage(from, to).input, from };
        const value = valueOf(found);
        const known = row[to];
        if (value < (known === undefined ? Number.POSITIVE_INFINITY : valueOf(known))) row[to] = found;
      }
    rows.push(row);
  }
  const end = rows[stages - 1]?.[count];
  if (end === undefined) return null;
  const begins: number[] = [];
  for (let stage = stages - 1, to = count; stage >= 0; stage--) {
    to = rows[stage]![to]?.from ?? 0;
    begins.unshift(to);
  }
  return { begins, slowest: end.slowest, sent: end.sent };
}

/** Why nothing fits: the stage that lacks least of what it needs, at the border where that is. */
function misfit(rules: PartitionRules): PipelineError {
  const { stages, sums } = rules;
  const count = sums.units.length;
  // Missing bytes, at least, of the worst stage when the first `stage` stages end at each place.
  let missing = new Array<number>(count + 1).fill(Number.POSITIVE_INFINITY);
  let worst = new Array<number>(count + 1).fill(0);
  missing[0] = 0;
  for (let stage = 0; stage < stages; stage++) {
    const [next, where] = [
      new Array<number>(count + 1).fill(Number.POSITIVE_INFINITY),
      new Array<number>(count + 1).fill(0),
    ];
    for (let to = stage + 1; to <= count; to++)
      for (let from = stage; from < to; from++) {
        const needed = Math.min(
          rules.place(stage, from, to, false).bytes,
          rules.best(stage, from, to)?.bytes ?? Number.POSITIVE_INFINITY,
        );
        const own = Math.max(0, needed - rules.limitOf(stage));
        const lacks = Math.max(missing[from]!, own);
        if (lacks >= next[to]!) continue;
        next[to] = lacks;
        where[to] = own >= missing[from]! ? stage : worst[from]!;
      }
    missing = next;
    worst = where;
  }
  const [stage, bytes] = [worst[count]!, Math.ceil(missing[count]!)];
  return new PipelineError(
    'MEMORY_LIMIT',
    `partition: no division into ${stages} stages fits: stage ${stage} lacks at least ${formatBytes(bytes)}; give more memory there, more stages, fewer microbatches in flight, or let forwards be computed again`,
    { stage, missingBytes: bytes },
  );
}
