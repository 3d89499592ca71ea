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
import {
  countActions,
  type Extent,
  extentOf,
  isSearched,
  mostActions,
  type Scale,
  scaleOf,
  stagesFor,
} from './extent.ts';
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
  /** What was simulated where it is not all: time and memory are continued from it. */
  readonly simulated: { readonly ranks: number; readonly microbatches: number } | null;
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

/** Builds and simulates a schedule; of a very long step, the first microbatches or fewer ranks, from which the rest is continued. */
export function explore(name: string, settings: Settings, options: ExploreOptions): Explored {
  try {
    const extent = name === planName ? null : extentFor(name, settings, options);
    if (extent === null || ('fewer' in extent && extent.fewer === null)) return exploreWhole(name, settings, options);
    const part = (ranks: number, microbatches: number): Explored =>
      exploreWhole(name, { ...settings, ranks, microbatches }, options);
    if (!('further' in extent)) {
      const { fewer, microbatches } = extent as Extent & { readonly fewer: number };
      const { ranks } = settings;
      return continued([part(ranks, fewer), fewer], [part(ranks, microbatches), microbatches], settings);
    }
    const { ranks, microbatches, further } = extent;
    return scaled(
      [part(ranks, microbatches), part(ranks, microbatches + further), part(2 * ranks, 2 * microbatches)],
      extent,
      settings,
    );
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

/** How much is simulated; refused where it is too much and cannot be continued from less. */
function extentFor(name: string, settings: Settings, { draw, most }: ExploreOptions): Extent | Scale {
  const usual = draw ? mostActions.drawn : mostActions.counted;
  const limit = most ?? (isSearched(name, settings) ? Math.min(usual, mostActions.searched) : usual);
  const extent = extentOf(name, settings, limit) ?? scaleOf(name, settings, Math.min(limit, mostActions.scaled));
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
    simulated: { ranks: more.schedule!.ranks, microbatches: high },
  };
}

/**
 * A step of all ranks from three of fewer: with more microbatches on the same ranks, and twice as large in both. Ranks at the end of
 * the pipeline are counted from there.
 */
function scaled(
  [small, longer, large]: readonly [Explored, Explored, Explored],
  { ranks: few, microbatches: own, further }: Scale,
  { ranks, microbatches, limit }: Settings,
): Explored {
  const times = ranks / few;
  const rest = (microbatches - times * own) / further;
  const plane = (a: number, b: number, c: number): number => a + (times - 1) * (c - a) + rest * (b - a);
  const work = ({ makespan, bubble }: Explored): number => makespan * (1 - bubble);
  const makespan = plane(small.makespan, longer.makespan, large.makespan);
  const [peaks, longerPeaks, largePeaks] = [small, longer, large].map(({ simulation }) => simulation!.peakMemory);
  const peak = Float64Array.from({ length: ranks }, (_, rank) => {
    // The ranks of the first half stand where they stood, those of the second half as far from the end.
    const at = (count: number): number => Math.min(count - 1, Math.floor(((rank + 0.5) / ranks) * count));
    return Math.max(0, plane(peaks![at(few)]!, longerPeaks![at(few)]!, largePeaks![at(2 * few)]!));
  });
  const perMicrobatch = (one: Explored, count: number): number => one.messages / count;
  const [few1, few2] = [perMicrobatch(small, own), perMicrobatch(large, 2 * own)];
  return {
    ...large,
    ...memoryOf(peak, limit),
    makespan,
    bubble: makespan > 0 ? Math.max(0, 1 - plane(work(small), work(longer), work(large)) / makespan) : 0,
    messages: Math.round(microbatches * (few1 + (times - 1) * (few2 - few1))),
    stages: (large.stages / (2 * few)) * ranks,
    simulated: { ranks: 2 * few, microbatches: 2 * own },
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
  return `Fastest for ${shape}${soFar}: ${best.name}, ${best.simulated === null ? '' : 'about '}${showTime(best.makespan)} with ${percent(best.bubble)} idle and a peak of ${sayPeak(best, settings)}.${rest}`;
}

/** The highest memory and its rank; less exact where the step was continued from fewer ranks. */
export function sayPeak({ peak, peakRank, simulated }: Explored, { ranks }: Settings): string {
  return `${simulated === null || simulated.ranks === ranks ? '' : 'about '}${showMemory(peak)} on rank ${peakRank}`;
}

/** What a step is continued from. */
export function sayContinued(
  { ranks, microbatches }: { readonly ranks: number; readonly microbatches: number },
  all: number,
): string {
  return `${ranks === all ? '' : `${plural(ranks, 'rank')} and `}${plural(microbatches, 'microbatch', 'microbatches')}`;
}

function limitText(limit: readonly number[]): string {
  const [least, most] = [Math.min(...limit), Math.max(...limit)];
  return least === most ? showMemory(most) : `${showMemory(least)} to ${showMemory(most)}`;
}
