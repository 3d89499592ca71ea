/** @file From settings to simulated steps: the schedule that was chosen, and those it is compared with. */
import {
  type BuildScheduleOptions,
  buildSchedule,
  type Costs,
  findSchedule,
  lower,
  percent,
  pictureOf,
  plural,
  type Schedule,
  ScheduleError,
  type Simulation,
  scheduleDefinitions,
  simulate,
} from '@pipewright/schedule';
import { forStages, recut } from './depth.ts';
import { countActions, type Extent, extentOf, isSearched, mostActions, stagesFor } from './extent.ts';
import { type Lanes, lanesOf } from './lanes.ts';
import { hasShapeOf, type OpenedPlan, planCostsWith, planName, planOrder, planPeaks } from './plan.ts';
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
  /** Microbatches that were simulated where they are not all: time and memory are continued from them. */
  readonly simulated: number | null;
}

/** How a schedule is explored. */
export interface ExploreOptions {
  /** Also sort it into lanes. */
  readonly draw: boolean;
  /** The plan that was opened, whose order goes by the name `plan`. */
  readonly plan: OpenedPlan | null;
  /** Actions up to which a step is simulated in full; default: as many as are quick enough. */
  readonly most?: number;
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

/** Builds and simulates a schedule; of a very long step, the first microbatches, from which the rest is continued. */
export function explore(name: string, settings: Settings, options: ExploreOptions): Explored {
  try {
    const extent = name === planName ? null : extentFor(name, settings, options);
    if (extent === null || extent.fewer === null) return exploreWhole(name, settings, options);
    const [fewer, more] = [extent.fewer, extent.microbatches].map((microbatches) =>
      exploreWhole(name, { ...settings, microbatches }, options),
    ) as [Explored, Explored];
    return continued([fewer, extent.fewer], [more, extent.microbatches], settings);
  } catch (error) {
    if (!(error instanceof ScheduleError)) throw error;
    return refused(name, error.message);
  }
}

/** A schedule of which nothing is known but why. */
export function refused(name: string, problem: string): Explored {
  const unknown = { makespan: Number.NaN, bubble: Number.NaN, peak: Number.NaN, missing: 0 };
  const nothing = { schedule: null, simulation: null, lanes: null, peakRank: 0, missingRank: 0, simulated: null };
  return { name, problem, fits: false, messages: 0, stages: 0, ...nothing, ...unknown };
}

/** How many microbatches are simulated; refused where they are too many and cannot be continued from fewer. */
function extentFor(name: string, settings: Settings, { draw, most }: ExploreOptions): Extent {
  const usual = draw ? mostActions.drawn : mostActions.counted;
  const limit = most ?? (isSearched(name, settings) ? Math.min(usual, mostActions.searched) : usual);
  const extent = extentOf(name, settings, limit);
  if (extent !== null) return extent;
  const count = countActions(name, settings);
  const fewer = Math.max(1, Math.floor((settings.microbatches * limit) / count));
  throw new ScheduleError(
    'BAD_OPTION',
    `${count.toLocaleString('en')} actions are too many to ${draw ? 'draw' : 'simulate'} here; with ${plural(fewer, 'microbatch', 'microbatches')} they are few enough`,
  );
}

function exploreWhole(name: string, settings: Settings, { draw, plan }: ExploreOptions): Explored {
  const { ranks, microbatches } = settings;
  const given = name === planName ? plan : null;
  if (name === planName && given === null)
    throw new ScheduleError(
      'BAD_OPTION',
      'The order of a plan is in its file, not in the address: open the file in Files',
    );
  if (given !== null && !hasShapeOf(given, settings)) {
    const { plan: own } = given;
    throw new ScheduleError(
      'BAD_OPTION',
      `The plan is for ${plural(own.ranks, 'rank')}, ${plural(own.stages, 'stage')} and ${plural(own.microbatches, 'microbatch', 'microbatches')}, and not for this shape`,
    );
  }
  const perRank = given === null ? stagesFor(name, settings) : given.schedule.stages / given.schedule.ranks;
  const stages = given?.schedule.stages ?? ranks * perRank;
  const costs: Costs = isLikePlan(plan, given, { ranks, stages })
    ? planCostsWith(plan, settings.costs)
    : {
        ...costsOf(recut(settings.costs, ranks * settings.stagesPerRank, stages), stages),
        ...(plan === null ? {} : { overlap: 'parts' }), // as plans are predicted
      };
  const built =
    given === null
      ? build(name, { ranks, stagesPerRank: perRank, microbatches, costs }, settings.limit)
      : planOrder(given);
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
    ...memoryOf((given && planPeaks(given, settings.costs)) ?? simulation.peakMemory, settings.limit),
    messages: picture.transferCount,
    stages: schedule.stages,
    simulated: null,
  };
}

/** Whether the costs of a plan hold for a schedule as they are: its own order, or one with the same stages and no replicas. */
function isLikePlan(
  plan: OpenedPlan | null,
  given: OpenedPlan | null,
  { ranks, stages }: { readonly ranks: number; readonly stages: number },
): plan is OpenedPlan {
  if (plan === null || given !== null) return plan !== null;
  return plan.plan.ranks === ranks && plan.plan.stages === stages && plan.plan.dataParallel === undefined;
}

/** A step with all microbatches from two with fewer: every further microbatch adds as much as each of those between the two. */
function continued(
  [fewer, low]: readonly [Explored, number],
  [more, high]: readonly [Explored, number],
  { microbatches, limit }: Settings,
): Explored {
  const line = (a: number, b: number): number => b + ((microbatches - high) * (b - a)) / (high - low);
  const work = ({ makespan, bubble }: Explored): number => makespan * (1 - bubble);
  const makespan = line(fewer.makespan, more.makespan);
  const peaks = more.simulation!.peakMemory.map((peak, rank) =>
    Math.max(peak, line(fewer.simulation!.peakMemory[rank]!, peak)),
  );
  return {
    ...more,
    ...memoryOf(peaks, limit),
    makespan,
    bubble: makespan > 0 ? Math.max(0, 1 - line(work(fewer), work(more)) / makespan) : 0,
    messages: line(fewer.messages, more.messages),
    simulated: high,
  };
}

type Shape = BuildScheduleOptions & { readonly costs: Costs };

/** Builds a schedule; one that adapts to a memory limit gets what the limits leave for activations, unless that is too little. */
function build(name: string, shape: Shape, limit: readonly number[]): Schedule {
  const usual = buildSchedule(name, shape);
  if (!isSearched(name, { limit })) return usual;
  const memoryLimit = roomOf(usual, shape.costs, limit);
  if (memoryLimit.some((room) => room <= 0)) return usual;
  try {
    const adapted = buildSchedule(name, { ...shape, memoryLimit });
    const [a, b] = [simulate(usual, shape.costs), simulate(adapted, shape.costs)];
    return memoryOf(a.peakMemory, limit).fits && a.makespan <= b.makespan ? usual : adapted;
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

type Memory = Pick<Explored, 'peak' | 'peakRank' | 'missing' | 'missingRank' | 'fits'>;

function memoryOf(peakMemory: Float64Array, limit: readonly number[]): Memory {
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

/** All schedules with a backward, for the table: the plan first, where there is one, and last those that are searched for. */
export function namesToCompare(settings: Settings, plan: OpenedPlan | null): string[] {
  const names = scheduleDefinitions.filter(({ hasBackward }) => hasBackward).map(({ name }) => name);
  const [searched, others] = [true, false].map((on) => names.filter((name) => isSearched(name, settings) === on));
  return [...(plan === null ? [] : [planName]), ...others!, ...searched!];
}

/** All schedules, one after the other. */
export function exploreAll(settings: Settings, plan: OpenedPlan | null): Explored[] {
  const shape = { ...settings, lowered: false };
  return namesToCompare(settings, plan).map((name) => explore(name, shape, { draw: false, plan }));
}

/** The fastest of them that keeps to the limits; null where none does. */
export function bestOf(all: readonly Explored[]): Explored | null {
  return all
    .filter(({ fits, problem }) => fits && problem === null)
    .reduce<Explored | null>((a, b) => (a === null || b.makespan < a.makespan * (1 - 1e-9) ? b : a), null);
}

/** Which of them to take, in one sentence; `missing` have not been simulated yet. */
export function recommend(all: readonly Explored[], settings: Settings, missing = 0): string {
  const built = all.filter(({ problem }) => problem === null);
  const within = isLimited(settings) ? ` with ${limitText(settings.limit)}` : '';
  const shape = `${plural(settings.ranks, 'rank')}${within} and ${plural(settings.microbatches, 'microbatch', 'microbatches')}`;
  const least = built.reduce<Explored | null>(
    (best, one) => (best === null || one.missing < best.missing ? one : best),
    null,
  );
  const soFar =
    missing === 0
      ? ''
      : ` so far (${missing} of ${all.length + missing} schedules ${missing === 1 ? 'is' : 'are'} still being simulated)`;
  if (least === null)
    return missing === 0
      ? `No schedule can be simulated for ${shape}; the table says why.`
      : `Simulating ${plural(missing, 'schedule')} for ${shape}…`;
  const best = bestOf(built);
  if (best === null)
    return `No schedule fits ${shape}${soFar}: ${least.name} comes closest, ${showMemory(least.missing)} short on rank ${least.missingRank}.`;
  const others = built.length - built.filter(({ fits }) => fits).length;
  const rest = others === 0 ? '' : ` ${others} of ${built.length} schedules ${others === 1 ? 'does' : 'do'} not fit.`;
  return `Fastest for ${shape}${soFar}: ${best.name}, ${best.simulated === null ? '' : 'about '}${showTime(best.makespan)} with ${percent(best.bubble)} idle and a peak of ${showMemory(best.peak)} on rank ${best.peakRank}.${rest}`;
}

function limitText(limit: readonly number[]): string {
  const [least, most] = [Math.min(...limit), Math.max(...limit)];
  return least === most ? showMemory(most) : `${showMemory(least)} to ${showMemory(most)}`;
}
