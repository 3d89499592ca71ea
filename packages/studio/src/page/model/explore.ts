/** @file From settings to simulated steps: the schedule that was chosen, and those it is compared with. */
import {
  buildSchedule,
  type Costs,
  findSchedule,
  lower,
  percent,
  pictureOf,
  quantity,
  type Schedule,
  ScheduleError,
  type Simulation,
  scheduleDefinitions,
  simulate,
} from '@pipewright/schedule';
import { type Lanes, lanesOf } from './lanes.ts';
import type { CostSettings, Settings } from './settings.ts';

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
  /** Whether it keeps to the memory limit. */
  readonly fits: boolean;
}

/** The costs of a simulation from what the sliders say. */
export function costsOf(costs: CostSettings, stages: number): Costs {
  const spread = (values: readonly number[]): number[] =>
    Array.from({ length: stages }, (_, stage) => values[Math.min(stage, values.length - 1)] ?? 0);
  return {
    F: spread(costs.F),
    I: spread(costs.I),
    W: spread(costs.W),
    comm: costs.comm,
    activation: spread(costs.activation),
    parameters: costs.parameters,
  };
}

/** Builds and simulates a schedule; `draw` also sorts it into lanes. */
export function explore(name: string, settings: Settings, draw: boolean): Explored {
  const nothing = { makespan: Number.NaN, bubble: Number.NaN, peak: Number.NaN, peakRank: 0, messages: 0, stages: 0 };
  try {
    const { stagesPerRank } = findSchedule(name);
    const perRank = Math.min(stagesPerRank.most, Math.max(stagesPerRank.least, settings.stagesPerRank));
    const { ranks, microbatches } = settings;
    // A rank's work stays the same when it is cut into more stages.
    const scaled = scaleCosts(settings.costs, settings.stagesPerRank / perRank);
    const costs = costsOf(scaled, ranks * perRank);
    const built = buildSchedule(name, { ranks, stagesPerRank: perRank, microbatches, costs });
    const schedule = settings.lowered ? lower(built) : built;
    const simulation = simulate(schedule, costs);
    const peaks = simulation.peakMemory;
    const peakRank = peaks.reduce((best, value, rank) => (value > (peaks[best] as number) ? rank : best), 0);
    const peak = peaks[peakRank] ?? 0;
    const picture = pictureOf(simulation);
    return {
      name: findSchedule(name).name,
      schedule,
      simulation,
      lanes: draw ? lanesOf(picture) : null,
      problem: null,
      makespan: simulation.makespan,
      bubble: simulation.bubble.makespan,
      peak,
      peakRank,
      messages: picture.transferCount,
      stages: schedule.stages,
      fits: settings.limit === 0 || peak <= settings.limit,
    };
  } catch (error) {
    if (!(error instanceof ScheduleError)) throw error;
    return { name, schedule: null, simulation: null, lanes: null, problem: error.message, fits: false, ...nothing };
  }
}

/** Costs of stages that hold `factor` as much each; per-stage lists stay as they are. */
function scaleCosts(costs: CostSettings, factor: number): CostSettings {
  if (factor === 1) return costs;
  const scale = (values: readonly number[]): readonly number[] =>
    values.length === 1 ? [(values[0] as number) * factor] : values;
  return {
    ...costs,
    F: scale(costs.F),
    I: scale(costs.I),
    W: scale(costs.W),
    activation: scale(costs.activation),
    parameters: costs.parameters * factor,
  };
}

/** All schedules with a backward, for the table. */
export function exploreAll(settings: Settings): Explored[] {
  return scheduleDefinitions
    .filter(({ hasBackward }) => hasBackward)
    .map(({ name }) => explore(name, { ...settings, lowered: false }, false));
}

/** Which of them to take, in one sentence. */
export function recommend(all: readonly Explored[], settings: Settings): string {
  const built = all.filter(({ problem }) => problem === null);
  const fitting = built.filter(({ fits }) => fits);
  const shape = `${settings.ranks} ranks and ${settings.microbatches} microbatches`;
  const least = built.reduce<Explored | null>(
    (best, one) => (best === null || one.peak < best.peak ? one : best),
    null,
  );
  if (least === null) return `No schedule can be built for ${shape}.`;
  if (fitting.length === 0)
    return `No schedule for ${shape} keeps within ${quantity(settings.limit)}: ${least.name} needs the least, ${quantity(least.peak)} on rank ${least.peakRank}.`;
  const best = fitting.reduce((a, b) => (b.makespan < a.makespan * (1 - 1e-9) ? b : a));
  const within = settings.limit === 0 ? '' : ` within ${quantity(settings.limit)}`;
  return `Shortest${within} for ${shape}: ${best.name}, ${quantity(best.makespan)} with ${percent(best.bubble)} idle and a peak of ${quantity(best.peak)} on rank ${best.peakRank}.`;
}
