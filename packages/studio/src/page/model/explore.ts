/** @file From settings to simulated steps: the schedule that was chosen, and those it is compared with. */
import {
  type BuildScheduleOptions,
  buildSchedule,
  type Costs,
  findSchedule,
  lower,
  percent,
  pictureOf,
  type Schedule,
  ScheduleError,
  type Simulation,
  scheduleDefinitions,
  simulate,
} from '@pipewright/schedule';
import { forStages, recut } from './depth.ts';
import { type Lanes, lanesOf } from './lanes.ts';
import { planName } from './plan.ts';
import type { CostSettings, Settings } from './settings.ts';
import { showMemory, showTime } from './units.ts';

/** A schedule with what the simulation says of it; a problem where it cannot be built in this shape. */
export interface Explored {
  readonly name: string;
  readonly schedule: Schedule | null;
  readonly simulation: Simulation | null;
  readonly lanes: Lanes | null;
  readonly problem: string | null;
  readonly makespan: number;
  readonly bubble: number;
  /** Highest memory of any rank, and which. */
  readonly peak: number;
  readonly peakRank: number;
  readonly messages: number;
  readonly stages: number;
  /** Memory that is missing on the rank that misses most, and which; 0: it keeps to the limits. */
  readonly missing: number;
  readonly missingRank: number;
  /** Whether it keeps to the memory limits. */
  readonly fits: boolean;
}

/** How a schedule is explored. */
export interface ExploreOptions {
  /** Also sort it into lanes. */
  readonly draw: boolean;
  /** The order of the plan that was opened, which goes by the name `plan`. */
  readonly plan: Schedule | null;
}

/** The costs of a simulation from those of the settings, for so many stages. */
export function costsOf(costs: CostSettings, stages: number): Costs {
  const spread = (values: readonly number[]): number[] => forStages(values, stages);
  return {
    F: spread(costs.F),
    I: spread(costs.I),
    W: spread(costs.W),
    ...(costs.B.length === 0 ? {} : { B: spread(costs.B) }),
    comm: spread(costs.comm),
    activation: spread(costs.activation),
    retained: spread(costs.retained).map((share) => Math.min(1, share)),
    parameters: spread(costs.parameters),
    weightGradient: spread(costs.gradients),
  };
}

/** Builds and simulates a schedule. */
export function explore(name: string, settings: Settings, { draw, plan }: ExploreOptions): Explored {
  try {
    const { ranks, microbatches } = settings;
    const given = name === planName ? plan : null;
    if (name === planName && given === null)
      throw new ScheduleError(
        'BAD_OPTION',
        'The order of a plan is in its file, not in the address: open the file in Files',
      );
    const perRank = given === null ? stagesFor(name, settings) : given.stages / given.ranks;
    const stages = given?.stages ?? ranks * perRank;
    const costs: Costs = {
      ...costsOf(recut(settings.costs, ranks * settings.stagesPerRank, stages), stages),
      ...(plan === null ? {} : { overlap: 'parts' }), // as plans are predicted
    };
    const built = given ?? build(name, { ranks, stagesPerRank: perRank, microbatches, costs }, settings.limit);
    const schedule = settings.lowered ? lower(built) : built;
    const simulation = simulate(schedule, costs);
    const picture = pictureOf(simulation);
    return {
      name: given === null ? findSchedule(name).name : planName,
      schedule,
      simulation,
      lanes: draw ? lanesOf(picture) : null,
      problem: null,
      makespan: simulation.makespan,
      bubble: simulation.bubble.makespan,
      ...memoryOf(simulation, settings.limit),
      messages: picture.transferCount,
      stages: schedule.stages,
    };
  } catch (error) {
    if (!(error instanceof ScheduleError)) throw error;
    const unknown = { makespan: Number.NaN, bubble: Number.NaN, peak: Number.NaN, missing: 0 };
    const nothing = { schedule: null, simulation: null, lanes: null, peakRank: 0, missingRank: 0 };
    return { name, problem: error.message, fits: false, messages: 0, stages: 0, ...nothing, ...unknown };
  }
}

type Shape = BuildScheduleOptions & { readonly costs: Costs };

/** Builds a schedule; one that adapts to a memory limit gets what the limits leave for activations, unless that is too little. */
function build(name: string, shape: Shape, limit: readonly number[]): Schedule {
  const usual = buildSchedule(name, shape);
  if (!findSchedule(name).usesMemoryLimit || limit.every((value) => value === 0)) return usual;
  const memoryLimit = roomOf(usual, shape.costs, limit);
  if (memoryLimit.some((room) => room <= 0)) return usual;
  try {
    const adapted = buildSchedule(name, { ...shape, memoryLimit });
    const [a, b] = [simulate(usual, shape.costs), simulate(adapted, shape.costs)];
    return memoryOf(a, limit).fits && a.makespan <= b.makespan ? usual : adapted;
  } catch (error) {
    if (error instanceof ScheduleError && error.code === 'MEMORY_LIMIT') return usual;
    throw error;
  }
}

/** What the limit of each rank leaves for activations; a rank without a limit has room for all microbatches. */
function roomOf(
  { ranks, stages, microbatches, stageToRank }: Schedule,
  costs: Costs,
  limit: readonly number[],
): number[] {
  const at = (values: Costs['F'], stage: number): number =>
    typeof values === 'number' ? values : (values?.[stage] ?? 0);
  return Array.from({ length: ranks }, (_, rank) => {
    const own = Array.from({ length: stages }, (__, stage) => stage).filter((stage) => stageToRank[stage] === rank);
    const sum = (of: (stage: number) => number): number => own.reduce((total, stage) => total + of(stage), 0);
    const most = limitOf(limit, rank);
    return most === 0
      ? microbatches * sum((stage) => at(costs.activation, stage))
      : most - sum((stage) => at(costs.parameters, stage) + at(costs.weightGradient, stage));
  });
}

/**
 * Stages of a rank: as many as asked for, as far as the schedule allows. A schedule made for several stages per rank gets
 * several: with one it would be no better than a simpler schedule.
 */
function stagesFor(name: string, settings: Settings): number {
  const { stagesPerRank } = findSchedule(name);
  return Math.min(stagesPerRank.most, Math.max(stagesPerRank.default, settings.stagesPerRank));
}

type Memory = Pick<Explored, 'peak' | 'peakRank' | 'missing' | 'missingRank' | 'fits'>;

function memoryOf({ peakMemory }: Simulation, limit: readonly number[]): Memory {
  let [peak, peakRank, missing, missingRank] = [0, 0, 0, 0];
  peakMemory.forEach((value, rank) => {
    if (value > peak) [peak, peakRank] = [value, rank];
    const most = limitOf(limit, rank);
    // A limit that is met to the last digit is met.
    const over = most === 0 || value <= most * (1 + 1e-9) ? 0 : value - most;
    if (over > missing) [missing, missingRank] = [over, rank];
  });
  return { peak, peakRank, missing, missingRank, fits: missing === 0 };
}

/** The limit of a rank; 0: none. */
function limitOf(limit: readonly number[], rank: number): number {
  return limit[Math.min(rank, limit.length - 1)] ?? 0;
}

/** Whether any rank has a limit. */
export function isLimited({ limit }: Settings): boolean {
  return limit.some((value) => value > 0);
}

/** All schedules with a backward, for the table; with a plan, its order before them. */
export function exploreAll(settings: Settings, plan: Schedule | null): Explored[] {
  const shape = { ...settings, lowered: false };
  const names = scheduleDefinitions.filter(({ hasBackward }) => hasBackward).map(({ name }) => name);
  return [...(plan === null ? [] : [planName]), ...names].map((name) => explore(name, shape, { draw: false, plan }));
}

/** The fastest of them that keeps to the limits; null where none does. */
export function bestOf(all: readonly Explored[]): Explored | null {
  return all
    .filter(({ fits, problem }) => fits && problem === null)
    .reduce<Explored | null>((a, b) => (a === null || b.makespan < a.makespan * (1 - 1e-9) ? b : a), null);
}

/** Which of them to take, in one sentence. */
export function recommend(all: readonly Explored[], settings: Settings): string {
  const built = all.filter(({ problem }) => problem === null);
  const within = isLimited(settings) ? ` with ${limitText(settings.limit)}` : '';
  const shape = `${settings.ranks} ranks${within} and ${settings.microbatches} microbatches`;
  const least = built.reduce<Explored | null>(
    (best, one) => (best === null || one.missing < best.missing ? one : best),
    null,
  );
  if (least === null) return `No schedule can be built for ${shape}.`;
  const best = bestOf(built);
  if (best === null)
    return `No schedule fits ${shape}: ${least.name} comes closest, ${showMemory(least.missing)} short on rank ${least.missingRank}.`;
  const others = built.length - built.filter(({ fits }) => fits).length;
  const rest = others === 0 ? '' : ` ${others} of ${built.length} schedules do not fit.`;
  return `Fastest for ${shape}: ${best.name}, ${showTime(best.makespan)} with ${percent(best.bubble)} idle and a peak of ${showMemory(best.peak)} on rank ${best.peakRank}.${rest}`;
}

function limitText(limit: readonly number[]): string {
  const [least, most] = [Math.min(...limit), Math.max(...limit)];
  return least === most ? showMemory(most) : `${showMemory(least)} to ${showMemory(most)}`;
}
