/** @file One pipeline that the search looks at: simulated with the costs of its stages, and weighed against the memory of its ranks. */
import {
  buildSchedule,
  type Costs,
  type PipelinePlan,
  type PlanParallel,
  type Schedule,
  type ScheduleDefinition,
  type Simulation,
  type StageCosts,
  simulate,
  stageToRank,
} from '@pipewright/schedule';
import { pipelineMachine, predictionOf, stageCosts, stateOf, withCollectives } from '@pipewright/schedule/internal';
import { fittingStages } from './fit.ts';
import { partition } from './partition.ts';
import type { PlanOptions, UnitTable } from './search.ts';
import { UnitSums } from './unit-costs.ts';

/** One combination of what can be chosen besides the partition. */
export interface Setting {
  readonly definition: ScheduleDefinition;
  readonly table: UnitTable;
  /** Microbatches and ranks of each pipeline. */
  readonly microbatches: number;
  readonly ranks: number;
  readonly stagesPerRank: number;
  /** Pipelines beside each other. */
  readonly parallel: PlanParallel;
}

/** A pipeline and its simulated step. */
export interface Candidate {
  readonly setting: Setting;
  readonly begins: readonly number[];
  readonly recompute: readonly boolean[];
  /** The order of its computations. */
  readonly schedule: Schedule;
  readonly costs: Costs;
  /** The step, collectives included. */
  readonly simulation: Simulation;
  /** Bytes beyond what a rank has; 0 where all fits. */
  readonly excess: number;
  readonly excessRank: number;
  /** Whether its order was found by search. */
  readonly searched: boolean;
}

/** Where a stage begins and which stages compute again. */
type Cut = Pick<Candidate, 'setting' | 'begins' | 'recompute'>;

/** Less beyond the memory first, then a shorter step. */
export function isBetter(a: Candidate, b: Candidate): boolean {
  if (a.excess !== b.excess) return a.excess < b.excess;
  return a.simulation.makespan < b.simulation.makespan;
}

/** Simulates candidates. */
export class Judge {
  simulated = 0;
  readonly options: PlanOptions;
  /** Orders that were made for a setting: for its memory, or for partitions found on the way. */
  private readonly orders = new Map<Setting, Schedule>();
  /** Orders by shape, which pipelines with other collectives share; made for the first costs that are asked for. */
  private readonly shapes = new Map<string, Schedule>();
  /** The last order that was made anew for a shape, and what for. */
  private readonly renewed = new Map<string, { readonly cut: string; readonly schedule: Schedule }>();
  private readonly parallelOrders = new WeakMap<Schedule, Map<string, Schedule>>();
  private readonly partitions = new Map<string, readonly number[]>();
  private readonly sums = new Map<UnitTable, UnitSums>();

  constructor(options: PlanOptions) {
    this.options = options;
  }

  /** Where the search begins: the exact partition for the speeds of the ranks, or equal numbers of units where that is better. */
  first(setting: Setting): Candidate {
    const { units } = setting.table;
    const stages = setting.ranks * setting.stagesPerRank;
    const begins = this.partitionOf(setting);
    const equal = Array.from({ length: stages }, (_, stage) => Math.round((stage * units.length) / stages));
    const none = begins.map(() => false);
    const exact = this.judge(setting, begins, none);
    if (String(equal) === String(begins)) return exact;
    const other = this.judge(setting, equal, none);
    return isBetter(other, exact) ? other : exact;
  }

  /** Simulates one pipeline, in the order of its setting or in another one. */
  judge(setting: Setting, begins: readonly number[], recompute: readonly boolean[], order?: Schedule): Candidate {
    const stages = this.stagesOf(setting, begins, recompute);
    const schedule = order ?? this.orderOf(setting, stages);
    const costs = this.costsOf(setting, stages, schedule.stageToRank);
    const simulation = simulate(this.withCollectives(schedule, setting, stages), costs);
    this.simulated++;
    let [excess, excessRank] = [0, -1];
    if (this.options.machine.memory !== undefined) {
      const limits = this.limitsOf(setting, stages, schedule.stageToRank);
      simulation.memory.forEach(({ peak }, rank) => {
        const again = stages.reduce(
          (most, each, stage) => (schedule.stageToRank[stage] === rank ? Math.max(most, each.again ?? 0) : most),
          0,
        );
        const over = peak + again - limits[rank]!;
        if (over > excess) [excess, excessRank] = [over, rank];
      });
    }
    return { setting, begins, recompute, schedule, costs, simulation, excess, excessRank, searched: false };
  }

  /** The same pipeline with an order that is made for its own costs. */
  anew({ setting, begins, recompute }: Cut): Candidate {
    if (!setting.definition.usesCosts) return this.judge(setting, begins, recompute);
    const [shape, cut] = [this.shapeOf(setting), `${begins} ${recompute}`];
    let found = this.renewed.get(shape);
    if (found?.cut !== cut) {
      const stages = this.stagesOf(setting, begins, recompute);
      this.renewed.set(shape, (found = { cut, schedule: this.build(setting, stages) }));
    }
    this.orders.set(setting, found.schedule);
    return this.judge(setting, begins, recompute);
  }

  /** The same pipeline with an order that is planned for the memory that is there; null where its schedule cannot do that. */
  withinMemory(candidate: Candidate): Candidate | null {
    const { setting, begins, recompute, costs } = candidate;
    const memoryLimit = this.activationLimits(candidate);
    if (!setting.definition.usesMemoryLimit || memoryLimit === null || memoryLimit.some((limit) => limit <= 0))
      return null;
    try {
      const { definition, ranks, stagesPerRank, microbatches } = setting;
      const shape = { ranks, stagesPerRank, microbatches };
      this.orders.set(setting, buildSchedule(definition.name, { ...shape, costs: timesOf(costs), memoryLimit }));
      return this.judge(setting, begins, recompute);
    } catch {
      return null; // less than any order needs
    }
  }

  /** The same pipeline with those stages computed again that let every rank fit, at the least cost; null where all fit. */
  recomputed(candidate: Candidate): Candidate | null {
    const { setting, begins, recompute, schedule } = candidate;
    const again = fittingStages({
      order: this.withCollectives(schedule, setting, this.stagesOf(setting, begins, recompute)),
      recompute,
      stagesOf: (chosen) => this.stagesOf(setting, begins, chosen),
      costsOf: (stages) => this.costsOf(setting, stages, schedule.stageToRank),
      limitsOf: (stages) => this.limitsOf(setting, stages, schedule.stageToRank),
    });
    return String(again) === String(recompute) ? null : this.judge(setting, begins, again);
  }

  /** What each rank has for activations, beside parameters, gradients and state; null without a limit. */
  activationLimits({ setting, begins, recompute, schedule }: Candidate): number[] | null {
    const { machine, stateFactor = 4 } = this.options;
    if (machine.memory === undefined) return null;
    const stages = this.stagesOf(setting, begins, recompute);
    const { replicas, level } = setting.parallel;
    const sharded = replicas > 1 && level === 'parameters';
    return this.limitsOf(setting, stages, schedule.stageToRank).map((limit, rank) =>
      stages.reduce((left, stage, at) => {
        if (schedule.stageToRank[at] !== rank) return left;
        const { simulated } = stateOf(stage, stateFactor, setting.parallel);
        const gradient = stateFactor >= 1 ? stage.parameters : 0;
        return left - (sharded ? simulated + simulated / replicas : simulated) - gradient;
      }, limit),
    );
  }

  /** Seconds that no order of a pipeline can be faster than: each rank's work, after what must come before it. */
  bound({ setting, begins, recompute }: Cut): number {
    const stages = this.stagesOf(setting, begins, recompute);
    const placement = this.placementOf(setting);
    const { F = [], I = [], W = [], B } = this.costsOf(setting, stages, placement) as Record<string, number[]>;
    const [starts, work] = [
      new Array<number>(setting.ranks).fill(Number.POSITIVE_INFINITY),
      new Array<number>(setting.ranks).fill(0),
    ];
    let before = 0;
    placement.forEach((rank, stage) => {
      starts[rank] = Math.min(starts[rank]!, before);
      const halves = I[stage]! + W[stage]!;
      work[rank] = work[rank]! + F[stage]! + Math.min(halves, B?.[stage] ?? halves);
      before += F[stage]!;
    });
    return work.reduce((most, each, rank) => Math.max(most, starts[rank]! + setting.microbatches * each), 0);
  }

  stagesOf({ table }: Pick<Setting, 'table'>, begins: readonly number[], recompute: readonly boolean[]): StageCosts[] {
    const sums = this.sums.get(table) ?? new UnitSums('planPipeline', table.units);
    this.sums.set(table, sums);
    return begins.map((from, stage) => sums.stage(from, begins[stage + 1] ?? table.units.length, recompute[stage]));
  }

  /** The rank, of all, that stands for a rank of a pipeline: of those beside each other, the one with least memory. */
  worldRank({ parallel: { replicas } }: Setting, rank: number): number {
    const { memory } = this.options.machine;
    const all = Array.from({ length: replicas }, (_, i) => rank * replicas + i);
    const bytes = (at: number): number => (typeof memory === 'object' ? memory[at]! : 0);
    return all.reduce((least, at) => (bytes(at) < bytes(least) ? at : least), rank * replicas);
  }

  private costsOf(setting: Setting, stages: readonly StageCosts[], placement: readonly number[]): Costs {
    const { machine, stateFactor = 4 } = this.options;
    return stageCosts({ stages, stageToRank: placement, machine, stateFactor, parallel: setting.parallel });
  }

  /** Bytes that each rank has for what is simulated. */
  private limitsOf(setting: Setting, stages: readonly StageCosts[], placement: readonly number[]): number[] {
    const { machine, stateFactor = 4 } = this.options;
    const { ranks, parallel } = setting;
    const { memory } = pipelineMachine(machine, ranks, parallel.replicas);
    const limits = Array.from({ length: ranks }, (_, rank) =>
      memory === undefined ? Number.POSITIVE_INFINITY : typeof memory === 'number' ? memory : memory[rank]!,
    );
    stages.forEach((stage, at) => {
      const rank = placement[at]!;
      limits[rank] = limits[rank]! - stateOf(stage, stateFactor, parallel).beside;
    });
    return limits;
  }

  private partitionOf(setting: Setting): readonly number[] {
    const { machine, stateFactor } = this.options;
    const { ranks, stagesPerRank, table, parallel } = setting;
    const { slowness } = pipelineMachine(machine, ranks, parallel.replicas);
    const placement = slowness === undefined ? '' : setting.definition.placement;
    const key = `${this.options.tables.indexOf(table)} ${ranks} ${stagesPerRank} ${placement}`;
    const known = this.partitions.get(key);
    if (known !== undefined) return known;
    const { begins } = partition({
      units: table.units,
      stages: ranks * stagesPerRank,
      stateFactor,
      slowness: this.placementOf(setting).map((rank) => slowness?.[rank] ?? 1),
      secondsPerByte: machine.bandwidth === undefined ? 0 : 1 / machine.bandwidth,
    });
    this.partitions.set(key, begins);
    return begins;
  }

  /** An order with the collectives of its setting. */
  private withCollectives(schedule: Schedule, { parallel }: Setting, stages: readonly StageCosts[]): Schedule {
    if (parallel.replicas === 1) return schedule;
    // Only where parameters are divided do collectives stand where their sizes say.
    if (parallel.level === 'parameters') return withCollectives(schedule, stages, parallel);
    const known = this.parallelOrders.get(schedule) ?? new Map<string, Schedule>();
    this.parallelOrders.set(schedule, known);
    const found = known.get(parallel.level) ?? withCollectives(schedule, stages, parallel);
    known.set(parallel.level, found);
    return found;
  }

  private orderOf(setting: Setting, stages: readonly StageCosts[]): Schedule {
    const shape = this.shapeOf(setting);
    const found = this.orders.get(setting) ?? this.shapes.get(shape);
    if (found !== undefined) return found;
    const schedule = this.build(setting, stages);
    this.shapes.set(shape, schedule);
    return schedule;
  }

  private build(setting: Setting, stages: readonly StageCosts[]): Schedule {
    const { definition, ranks, stagesPerRank, microbatches } = setting;
    const shape = { ranks, stagesPerRank, microbatches };
    if (!definition.usesCosts) return buildSchedule(definition.name, shape);
    const costs = this.costsOf(setting, stages, this.placementOf(setting));
    return buildSchedule(definition.name, { ...shape, costs: timesOf(costs) });
  }

  /** What the order of a setting depends on. */
  private shapeOf({ definition, ranks, stagesPerRank, microbatches, table }: Setting): string {
    const costs = definition.usesCosts ? this.options.tables.indexOf(table) : '';
    return `${definition.name} ${ranks} ${stagesPerRank} ${microbatches} ${costs}`;
  }

  /** The rank of each stage of a setting. */
  private placementOf({ definition, ranks, stagesPerRank }: Setting): number[] {
    return stageToRank({ ranks, stages: ranks * stagesPerRank, style: definition.placement });
  }
}

/** Costs without what is shared between pipelines: an order does not depend on that. */
function timesOf(costs: Costs): Costs {
  const shared: readonly string[] = ['shards', 'replicas', 'sharding', 'collective'];
  return Object.fromEntries(Object.entries(costs).filter(([name]) => !shared.includes(name)));
}

/** A candidate as a plan. */
export function planOf(
  { setting, begins, recompute, simulation, schedule, searched }: Candidate,
  { judge, why }: { readonly judge: Judge; readonly why: string },
): PipelinePlan {
  const { table, microbatches, definition, ranks, parallel } = setting;
  const { ranks: _, ...machine } = judge.options.machine;
  const bounds = begins.map((from, stage) => [from, begins[stage + 1] ?? table.units.length] as const);
  const plan = {
    version: 1 as const,
    schedule: searched ? 'searched' : definition.name,
    ...(searched || definition.usesCosts ? { order: schedule.toJSON() } : {}),
    ranks,
    ...(parallel.replicas === 1 ? {} : { dataParallel: parallel }),
    stages: begins.length,
    stageToRank: [...schedule.stageToRank],
    microbatches,
    rows: table.rows,
    units: bounds.map(([from, to]) => table.units.slice(from, to).map(({ name }) => name)),
    cutBefore: begins.slice(1).map((from) => table.units[from]?.begins ?? ''),
    recompute: [...recompute],
    costs: judge.stagesOf(setting, begins, recompute),
    stateFactor: judge.options.stateFactor ?? 4,
    machine,
  };
  return { ...plan, predicted: predictionOf(plan, simulation), why };
}
