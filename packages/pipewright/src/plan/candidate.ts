/** @file One pipeline that the search looks at: simulated with the costs of its stages, and weighed against the memory of its ranks. */
import {
  buildSchedule,
  type Costs,
  type PipelinePlan,
  type Schedule,
  type ScheduleDefinition,
  type Simulation,
  type StageCosts,
  simulate,
} from '@pipewright/schedule';
import { predictionOf, stageCosts } from '@pipewright/schedule/internal';
import { partition } from './partition.ts';
import type { PlanOptions, UnitTable } from './search.ts';
import { UnitSums } from './unit-costs.ts';

/** One combination of what can be chosen besides the partition. */
export interface Setting {
  readonly definition: ScheduleDefinition;
  readonly table: UnitTable;
  readonly microbatches: number;
  readonly stagesPerRank: number;
}

/** A pipeline and its simulated step. */
export interface Candidate {
  readonly setting: Setting;
  readonly begins: readonly number[];
  readonly recompute: readonly boolean[];
  readonly schedule: Schedule;
  readonly costs: Costs;
  readonly simulation: Simulation;
  /** Bytes beyond what a rank has; 0 where all fits. */
  readonly excess: number;
  readonly excessRank: number;
  /** Whether its order was found by search. */
  readonly searched: boolean;
}

/** Less beyond the memory first, then a shorter step. */
export function isBetter(a: Candidate, b: Candidate): boolean {
  if (a.excess !== b.excess) return a.excess < b.excess;
  return a.simulation.makespan < b.simulation.makespan;
}

/** Simulates candidates. */
export class Judge {
  simulated = 0;
  readonly options: PlanOptions;
  /** The order of a setting: made for the first costs that are asked for, and kept while borders move. */
  private readonly orders = new Map<Setting, Schedule>();
  private readonly sums = new Map<UnitTable, UnitSums>();

  constructor(options: PlanOptions) {
    this.options = options;
  }

  /** Where the search begins: the exact partition for the speeds of the ranks, or equal numbers of units where that is better. */
  first(setting: Setting): Candidate {
    const { machine, stateFactor } = this.options;
    const { units } = setting.table;
    const stages = machine.ranks * setting.stagesPerRank;
    const { stageToRank } = buildSchedule(setting.definition.name, {
      ranks: machine.ranks,
      stagesPerRank: setting.stagesPerRank,
      microbatches: Math.min(setting.microbatches, 2 * machine.ranks),
    });
    const { begins } = partition({
      units,
      stages,
      stateFactor,
      slowness: stageToRank.map((rank) => machine.slowness?.[rank] ?? 1),
      secondsPerByte: machine.bandwidth === undefined ? 0 : 1 / machine.bandwidth,
    });
    const equal = Array.from({ length: stages }, (_, stage) => Math.round((stage * units.length) / stages));
    const none = begins.map(() => false);
    const exact = this.judge(setting, begins, none);
    const other = this.judge(setting, equal, none);
    return isBetter(other, exact) ? other : exact;
  }

  /** Simulates one pipeline, in the order of its setting or in another one. */
  judge(setting: Setting, begins: readonly number[], recompute: readonly boolean[], order?: Schedule): Candidate {
    const stages = this.stagesOf(setting, begins, recompute);
    const { machine, stateFactor = 4 } = this.options;
    const schedule = order ?? this.orderOf(setting, stages);
    const costs = stageCosts({ stages, stageToRank: schedule.stageToRank, machine, stateFactor });
    const simulation = simulate(schedule, costs);
    this.simulated++;
    let [excess, excessRank] = [0, -1];
    if (machine.memory !== undefined)
      simulation.memory.forEach(({ peak }, rank) => {
        const again = stages.reduce(
          (most, each, stage) => (schedule.stageToRank[stage] === rank ? Math.max(most, each.again ?? 0) : most),
          0,
        );
        const over = peak + again - this.memoryOf(rank);
        if (over > excess) [excess, excessRank] = [over, rank];
      });
    return { setting, begins, recompute, schedule, costs, simulation, excess, excessRank, searched: false };
  }

  /** The same pipeline with an order that is made for its own costs. */
  anew({ setting, begins, recompute }: Pick<Candidate, 'setting' | 'begins' | 'recompute'>): Candidate {
    if (!setting.definition.usesCosts) return this.judge(setting, begins, recompute);
    this.orders.delete(setting);
    return this.judge(setting, begins, recompute);
  }

  /** The same pipeline with an order that is planned for the memory that is there; null where its schedule cannot do that. */
  withinMemory(candidate: Candidate): Candidate | null {
    const { setting, begins, recompute, costs } = candidate;
    const memoryLimit = this.activationLimits(candidate);
    if (!setting.definition.usesMemoryLimit || memoryLimit === null || memoryLimit.some((limit) => limit <= 0))
      return null;
    try {
      const schedule = buildSchedule(setting.definition.name, {
        ranks: this.options.machine.ranks,
        stagesPerRank: setting.stagesPerRank,
        microbatches: setting.microbatches,
        costs,
        memoryLimit,
      });
      this.orders.set(setting, schedule);
      return this.judge(setting, begins, recompute);
    } catch {
      return null; // less than any order needs
    }
  }

  /** What each rank has for activations, beside parameters, gradients and state; null without a limit. */
  activationLimits({ setting, begins, recompute, schedule }: Candidate): number[] | null {
    const { machine, stateFactor = 4 } = this.options;
    if (machine.memory === undefined) return null;
    const stages = this.stagesOf(setting, begins, recompute);
    return Array.from({ length: machine.ranks }, (_, rank) =>
      stages.reduce(
        (left, { parameters }, stage) =>
          schedule.stageToRank[stage] === rank ? left - parameters * stateFactor : left,
        this.memoryOf(rank),
      ),
    );
  }

  stagesOf({ table }: Setting, begins: readonly number[], recompute: readonly boolean[]): StageCosts[] {
    const sums = this.sums.get(table) ?? new UnitSums('planPipeline', table.units);
    this.sums.set(table, sums);
    return begins.map((from, stage) => sums.stage(from, begins[stage + 1] ?? table.units.length, recompute[stage]));
  }

  private orderOf(setting: Setting, stages: readonly StageCosts[]): Schedule {
    const found = this.orders.get(setting);
    if (found !== undefined) return found;
    const { machine, stateFactor = 4 } = this.options;
    const { definition, stagesPerRank, microbatches } = setting;
    const shape = { ranks: machine.ranks, stagesPerRank, microbatches };
    const costs = (): Costs => {
      const { stageToRank } = buildSchedule(definition.name, {
        ...shape,
        microbatches: Math.min(microbatches, 2 * shape.ranks),
      });
      return stageCosts({ stages, stageToRank, machine, stateFactor });
    };
    const schedule = buildSchedule(definition.name, definition.usesCosts ? { ...shape, costs: costs() } : shape);
    this.orders.set(setting, schedule);
    return schedule;
  }

  private memoryOf(rank: number): number {
    const { memory } = this.options.machine;
    return memory === undefined
      ? Number.POSITIVE_INFINITY
      : typeof memory === 'number'
        ? memory
        : (memory[rank] as number);
  }
}

/** A candidate as a plan. */
export function planOf(
  { setting, begins, recompute, simulation, schedule, searched }: Candidate,
  { judge, batch, why }: { readonly judge: Judge; readonly batch: number; readonly why: string },
): PipelinePlan {
  const { table, microbatches, definition } = setting;
  const { ranks: _, ...machine } = judge.options.machine;
  const bounds = begins.map((from, stage) => [from, begins[stage + 1] ?? table.units.length] as const);
  const plan = {
    version: 1 as const,
    schedule: searched ? 'searched' : definition.name,
    ...(searched || definition.usesCosts ? { order: schedule.toJSON() } : {}),
    ranks: schedule.ranks,
    stages: begins.length,
    stageToRank: [...schedule.stageToRank],
    microbatches,
    rows: batch / microbatches,
    units: bounds.map(([from, to]) => table.units.slice(from, to).map(({ name }) => name)),
    cutBefore: begins.slice(1).map((from) => table.units[from]?.begins ?? ''),
    recompute: [...recompute],
    costs: judge.stagesOf(setting, begins, recompute),
    stateFactor: judge.options.stateFactor ?? 4,
    machine,
  };
  return { ...plan, predicted: predictionOf(plan, simulation), why };
}
