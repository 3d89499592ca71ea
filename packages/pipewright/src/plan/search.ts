/**
 * @file The search for the best pipeline: partition, schedule, stages per rank, number and size of microbatches, and which
 * stages compute their forward again, each judged by simulating it with measured costs under the ranks' memory.
 */
import {
  type BuildScheduleOptions,
  buildSchedule,
  type Costs,
  type Schedule,
  ScheduleError,
  type ScheduleName,
  type Simulation,
  scheduleDefinitions,
  simulate,
} from '@pipewright/schedule';
import { checkArgument, checkCount, checkOptions, show } from '../base/checks.ts';
import { PipelineError } from '../base/errors.ts';
import { partition } from './partition.ts';
import { type StageCosts, type UnitCosts, UnitSums } from './unit-costs.ts';

/** The machine that is planned for. */
export interface Machine {
  readonly ranks: number;
  /** Bytes that each rank may hold: one number, or one per rank. Default: unlimited. */
  readonly memory?: number | readonly number[] | undefined;
  /** How much longer than measured each rank takes. Default: 1. */
  readonly slowness?: readonly number[] | undefined;
  /** Bytes per second between ranks. Default: unlimited. */
  readonly bandwidth?: number | undefined;
  /** Seconds until a message is there. Default 0. */
  readonly latency?: number | undefined;
}

/** The costs of the units at one size of microbatches. */
export interface UnitTable {
  /** Rows of a microbatch. */
  readonly rows: number;
  readonly units: readonly UnitCosts[];
}

/** What is searched. */
export interface PlanOptions {
  readonly machine: Machine;
  /** The units at every size of microbatches that may be chosen. */
  readonly tables: readonly UnitTable[];
  /** Rows of the whole batch. */
  readonly batch: number;
  /** Schedules to try. Default: all with a backward. */
  readonly schedules?: readonly ScheduleName[] | undefined;
  /** Stages on each rank to try, where a schedule leaves the choice. Default 1, 2 and 4. */
  readonly stagesPerRank?: readonly number[] | undefined;
  /** Bytes of parameters, gradients and optimizer state for each byte of parameters. Default 4, as for Adam. */
  readonly stateFactor?: number | undefined;
  /** Whether stages may compute their forward again. Default true. */
  readonly mayRecompute?: boolean | undefined;
  /** How many plans to return. Default 5. */
  readonly most?: number | undefined;
}

/** A pipeline, and what is predicted of it. Plain JSON. */
export interface PipelinePlan {
  readonly version: 1;
  readonly schedule: ScheduleName;
  readonly ranks: number;
  readonly stages: number;
  readonly stageToRank: readonly number[];
  readonly microbatches: number;
  /** Rows of a microbatch. */
  readonly rows: number;
  /** The units of each stage, by name. */
  readonly units: readonly (readonly string[])[];
  /** The node that each stage but the first begins with: where the graph is cut. */
  readonly cutBefore: readonly string[];
  /** Stages that compute their forward again. */
  readonly recompute: readonly boolean[];
  /** Seconds and bytes of every stage for one microbatch. */
  readonly costs: readonly StageCosts[];
  readonly predicted: Prediction;
  /** Why it is where it is in the list. */
  readonly why: string;
}

/** What is predicted of a plan. */
export interface Prediction {
  /** Seconds of a step, without the optimizer. */
  readonly step: number;
  readonly rowsPerSecond: number;
  /** Idle share of the step. */
  readonly bubble: number;
  /** Highest bytes of each rank. */
  readonly peak: readonly number[];
  /** Messages of a step, and their bytes. */
  readonly messages: number;
  readonly messageBytes: number;
}

/** What a search found. */
export interface PlanResult {
  /** The best plans, fastest first, one for each schedule and shape. */
  readonly plans: readonly PipelinePlan[];
  /** What was tried and cannot be, with the reason. */
  readonly refused: readonly { readonly what: string; readonly why: string }[];
  readonly simulated: number;
}

const optionNames = ['machine', 'tables', 'batch', 'schedules', 'stagesPerRank', 'stateFactor', 'mayRecompute', 'most'];
/** Partitions that are tried around the first one of a setting. */
const mostMoves = 80;
const machineNames = ['ranks', 'memory', 'slowness', 'bandwidth', 'latency'];

/**
 * The best pipelines for a model on a machine.
 *
 * @example planPipeline({ machine: { ranks: 4, memory: 2e9 }, tables: [{ rows: 4, units }], batch: 64 }).plans[0]
 */
export function planPipeline(options: PlanOptions): PlanResult {
  const isObject = typeof options === 'object' && options !== null;
  checkArgument('planPipeline', isObject, ['the options', options], '{ machine, tables, batch }');
  checkOptions('planPipeline', options, optionNames);
  const { machine, tables } = options;
  const isMachine = typeof machine === 'object' && machine !== null;
  checkArgument('planPipeline', isMachine, ['machine', machine], '{ ranks, memory }');
  checkOptions('planPipeline: machine', machine, machineNames);
  checkCount('planPipeline', 'machine.ranks', machine.ranks);
  checkCount('planPipeline', 'batch', options.batch);
  const areTables = Array.isArray(tables) && tables.length > 0;
  checkArgument('planPipeline', areTables, ['tables', tables], 'the units at one size of microbatches at least');
  for (const name of ['memory', 'slowness'] as const) {
    const list = machine[name];
    const fits = !Array.isArray(list) || list.length === machine.ranks;
    checkArgument('planPipeline', fits, [`machine.${name}`, list], `one entry for each of the ${machine.ranks} ranks`);
  }
  return new PlanSearch(options).run();
}

/** One combination of what can be chosen besides the partition. */
interface Setting {
  readonly name: ScheduleName;
  readonly table: UnitTable;
  readonly microbatches: number;
  readonly stagesPerRank: number;
}

interface Candidate {
  readonly setting: Setting;
  readonly begins: readonly number[];
  readonly recompute: readonly boolean[];
  readonly simulation: Simulation;
  readonly schedule: Schedule;
  /** Bytes beyond what a rank has; 0 where all fits. */
  readonly excess: number;
  readonly excessRank: number;
}

class PlanSearch {
  private readonly options: PlanOptions;
  private readonly refused: { what: string; why: string; missing: number; rank: number }[] = [];
  private simulated = 0;

  constructor(options: PlanOptions) {
    this.options = options;
  }

  run(): PlanResult {
    const most = this.options.most ?? 5;
    const starts = this.settings()
      .flatMap((setting) => this.startOf(setting) ?? [])
      .sort((a, b) => (isBetter(a, b) ? -1 : 1));
    const isPromising = (start: Candidate, i: number): boolean => i < most + 3 || start.excess > 0;
    const found = starts
      .map((start, i) => (isPromising(start, i) ? this.improve(start) : start))
      .filter((each) => this.isIn(each));
    if (found.length === 0) throw this.nothingFits();
    found.sort((a, b) => a.simulation.makespan - b.simulation.makespan);
    const plans = found.slice(0, most).map((each, i) => this.planOf(each, found, i));
    return { plans, refused: this.refused.map(({ what, why }) => ({ what, why })), simulated: this.simulated };
  }

  private settings(): Setting[] {
    const { tables, batch, schedules, stagesPerRank = [1, 2, 4] } = this.options;
    const definitions = scheduleDefinitions.filter(
      ({ name, hasBackward }) => hasBackward && (schedules === undefined || schedules.includes(name)),
    );
    return tables.flatMap((table) => {
      checkArgument('planPipeline', batch % table.rows === 0, ['batch', batch], `a multiple of ${table.rows} rows`);
      return definitions.flatMap(({ name, stagesPerRank: { least, most } }) =>
        stagesPerRank
          .filter((each) => each >= least && each <= most)
          .map((each): Setting => ({ name, table, microbatches: batch / table.rows, stagesPerRank: each })),
      );
    });
  }

  private describe({ name, table, microbatches, stagesPerRank }: Setting): string {
    const stages = this.options.machine.ranks * stagesPerRank;
    return `${name}, ${stages} stages, ${microbatches} microbatches of ${table.rows}`;
  }

  private refuse(setting: Setting, why: string, place?: { readonly missing: number; readonly rank: number }): void {
    const { missing = Number.POSITIVE_INFINITY, rank = -1 } = place ?? {};
    this.refused.push({ what: this.describe(setting), why, missing, rank });
  }

  /** Where the search begins for a setting; null where it cannot be, with the reason noted. */
  private startOf(setting: Setting): Candidate | null {
    const stages = this.options.machine.ranks * setting.stagesPerRank;
    const { length } = setting.table.units;
    if (length < stages) {
      this.refuse(setting, `${length} units make fewer than ${stages} stages`);
      return null;
    }
    try {
      return this.fit(this.firstOf(setting, stages));
    } catch (error) {
      if (!(error instanceof ScheduleError || error instanceof PipelineError)) throw error;
      this.refuse(setting, error.message.split('\n')[0] ?? '');
      return null;
    }
  }

  /** Whether a candidate fits; what one lacks is noted. */
  private isIn({ setting, excess, excessRank: rank }: Candidate): boolean {
    if (excess === 0) return true;
    const missing = Math.ceil(excess);
    this.refuse(setting, `rank ${rank} lacks ${missing} bytes`, { missing, rank });
    return false;
  }

  /** The exact partition for the speeds of the ranks, which the search begins with. */
  private firstOf(setting: Setting, stages: number): Candidate {
    const { machine, stateFactor } = this.options;
    const { stageToRank } = buildSchedule(setting.name, {
      ...this.shapeOf(setting),
      microbatches: Math.min(setting.microbatches, 2 * machine.ranks),
    });
    const { begins } = partition({
      units: setting.table.units,
      stages,
      stateFactor,
      slowness: stageToRank.map((rank) => machine.slowness?.[rank] ?? 1),
      secondsPerByte: machine.bandwidth === undefined ? 0 : 1 / machine.bandwidth,
    });
    return this.judge(
      setting,
      begins,
      begins.map(() => false),
    );
  }

  private shapeOf({ microbatches, stagesPerRank }: Setting, costs?: Costs): BuildScheduleOptions {
    const { ranks } = this.options.machine;
    return { ranks, microbatches, stagesPerRank, ...(costs === undefined ? {} : { costs }) };
  }

  /** Lets stages of ranks that hold too much compute their forward again: those that free most for a second first. */
  private fit(start: Candidate): Candidate {
    if (this.options.mayRecompute === false) return start;
    let best = start;
    while (best.excess > 0) {
      const stages = best.begins.flatMap((_, stage) =>
        best.recompute[stage] === false && best.schedule.stageToRank[stage] === best.excessRank ? [stage] : [],
      );
      const tried = stages.map((stage) =>
        this.judge(
          best.setting,
          best.begins,
          best.recompute.map((each, i) => each || i === stage),
        ),
      );
      const next = tried.reduce<Candidate | null>((a, b) => (a === null || isBetter(b, a) ? b : a), null);
      if (next === null) return best;
      best = next;
    }
    return best;
  }

  /** Moves borders, and lets stages keep or compute again, as long as that makes the step shorter. */
  private improve(start: Candidate): Candidate {
    let best = start;
    let left = mostMoves;
    const attempt = (begins: readonly number[], recompute: readonly boolean[]): void => {
      if (left <= 0 || !isPartition(begins, start.setting.table.units.length)) return;
      left--;
      const next = this.judge(start.setting, begins, recompute);
      if (isBetter(next, best)) best = next;
    };
    for (let before: Candidate | null = null; before !== best && left > 0; ) {
      before = best;
      for (let stage = 1; stage < start.begins.length; stage++)
        for (const move of [-1, 1])
          attempt(
            best.begins.map((at, i) => (i === stage ? at + move : at)),
            best.recompute,
          );
      if (this.options.mayRecompute === false || !(best.excess > 0 || best.recompute.includes(true))) continue;
      for (let stage = 0; stage < start.begins.length; stage++)
        attempt(
          best.begins,
          best.recompute.map((each, i) => (i === stage ? !each : each)),
        );
    }
    // An order that depends on the costs is made once more for those that were found.
    this.orders.delete(best.setting);
    const last = this.judge(best.setting, best.begins, best.recompute);
    return isBetter(last, best) ? last : best;
  }

  /** The order of a setting: made for the first costs that are asked for, and kept while borders move. */
  private readonly orders = new Map<Setting, Schedule>();

  private orderOf(setting: Setting, costs: Costs): Schedule {
    const found = this.orders.get(setting) ?? buildSchedule(setting.name, this.shapeOf(setting, costs));
    this.orders.set(setting, found);
    return found;
  }

  /** Simulates one pipeline. */
  private judge(setting: Setting, begins: readonly number[], recompute: readonly boolean[]): Candidate {
    const costs = this.costsOf(setting, begins, recompute);
    const schedule = this.orderOf(setting, costs);
    const simulation = simulate(schedule, this.onRanks(costs, schedule.stageToRank));
    this.simulated++;
    const { memory } = this.options.machine;
    let [excess, excessRank] = [0, -1];
    if (memory !== undefined)
      simulation.memory.forEach(({ peak }, rank) => {
        const over = peak + this.recomputed(setting, begins, { recompute, schedule, rank }) - memoryOf(memory, rank);
        if (over > excess) [excess, excessRank] = [over, rank];
      });
    return { setting, begins, recompute, simulation, schedule, excess, excessRank };
  }

  /** While a stage is computed again, one microbatch of it is there in full; the largest of a rank counts. */
  private recomputed(setting: Setting, begins: readonly number[], place: RankPlace): number {
    const sums = this.sumsOf(setting.table);
    return begins.reduce((most, from, stage) => {
      if (place.recompute[stage] !== true || place.schedule.stageToRank[stage] !== place.rank) return most;
      const to = begins[stage + 1] ?? sums.units.length;
      return Math.max(most, sums.stage(from, to).activation - sums.stage(from, to, true).activation);
    }, 0);
  }

  private readonly sums = new Map<UnitTable, UnitSums>();

  private sumsOf(table: UnitTable): UnitSums {
    const found = this.sums.get(table) ?? new UnitSums('planPipeline', table.units);
    this.sums.set(table, found);
    return found;
  }

  /** The costs of the stages as the simulator takes them, on ranks that are as fast as measured. */
  private costsOf(setting: Setting, begins: readonly number[], recompute: readonly boolean[]): Costs {
    const { machine, stateFactor = 4 } = this.options;
    const { bandwidth, latency } = machine;
    const stages = this.stagesOf(setting, begins, recompute);
    const { units } = setting.table;
    return {
      F: stages.map(({ F }) => F),
      I: stages.map(({ I }) => I),
      W: stages.map(({ W }) => W),
      activation: stages.map(({ activation }) => activation),
      retained: stages.map((each) => (each.activation === 0 ? 0 : Math.min(1, each.retained / each.activation))),
      // One byte in `stateFactor` is the gradient's, which is there from the first backward on.
      parameters: stages.map((each) => each.parameters * (stateFactor - 1)),
      weightGradient: stages.map((each) => each.parameters),
      comm: {
        bytes: begins.map((_, stage) =>
          stage + 1 < begins.length ? (units[begins[stage + 1] as number]?.input ?? 0) : 0,
        ),
        ...(bandwidth === undefined ? {} : { bandwidth }),
        ...(latency === undefined ? {} : { latency }),
      },
    };
  }

  private stagesOf({ table }: Setting, begins: readonly number[], recompute: readonly boolean[]): StageCosts[] {
    const sums = this.sumsOf(table);
    return begins.map((from, stage) => sums.stage(from, begins[stage + 1] ?? table.units.length, recompute[stage]));
  }

  private onRanks(costs: Costs, stageToRank: readonly number[]): Costs {
    const { slowness } = this.options.machine;
    if (slowness === undefined) return costs;
    const slow = (values: Costs['F']): number[] =>
      (values as readonly number[]).map((value, stage) => value * (slowness[stageToRank[stage] as number] as number));
    return { ...costs, F: slow(costs.F), I: slow(costs.I), W: slow(costs.W) };
  }

  private planOf(one: Candidate, all: readonly Candidate[], place: number): PipelinePlan {
    const { setting, begins, recompute, simulation, schedule } = one;
    const { table, microbatches } = setting;
    const { batch } = this.options;
    const bounds = begins.map((from, stage) => [from, begins[stage + 1] ?? table.units.length] as const);
    const transfers = simulation.transfers().filter(({ fromRank, toRank }) => fromRank !== toRank);
    const costs = this.stagesOf(setting, begins, recompute);
    const peak = simulation.memory.map(
      (each, rank) => each.peak + this.recomputed(setting, begins, { recompute, schedule, rank }),
    );
    const bytes = costs.reduce((sum, { input }) => sum + input, 0);
    return {
      version: 1,
      schedule: setting.name,
      ranks: schedule.ranks,
      stages: begins.length,
      stageToRank: [...schedule.stageToRank],
      microbatches,
      rows: table.rows,
      units: bounds.map(([from, to]) => table.units.slice(from, to).map(({ name }) => name)),
      cutBefore: begins.slice(1).map((from) => table.units[from]?.begins ?? ''),
      recompute,
      costs,
      predicted: {
        step: simulation.makespan,
        rowsPerSecond: batch / simulation.makespan,
        bubble: simulation.bubble.makespan,
        peak,
        messages: transfers.length,
        messageBytes: 2 * bytes * microbatches,
      },
      why: this.why(one, all, place),
    };
  }

  private why(one: Candidate, all: readonly Candidate[], place: number): string {
    const { simulation, recompute } = one;
    const again = recompute.filter(Boolean).length;
    const extra = again === 0 ? '' : `; ${again} of its stages compute their forward again to fit`;
    const idle = `idle for ${(100 * simulation.bubble.makespan).toFixed(1)}% of the step`;
    const [best, second] = all as [Candidate, Candidate | undefined];
    if (place > 0) {
      const longer = 100 * (simulation.makespan / best.simulation.makespan - 1);
      return `${longer.toFixed(1)}% longer than the best, ${idle}${extra}`;
    }
    if (second === undefined) return `the only one that fits, ${idle}${extra}`;
    const lead = 100 * (second.simulation.makespan / simulation.makespan - 1);
    return `${lead.toFixed(1)}% ahead of ${second.setting.name}, ${idle}${extra}`;
  }

  private nothingFits(): PipelineError {
    const nearest = this.refused.reduce<PlanSearch['refused'][number] | null>(
      (a, b) => (a === null || b.missing < a.missing ? b : a),
      null,
    );
    const rank = nearest?.rank ?? -1;
    const details = rank < 0 ? {} : { rank, missingBytes: nearest?.missing };
    return new PipelineError(
      rank < 0 ? 'NO_PLAN' : 'MEMORY_LIMIT',
      `planPipeline: nothing fits; nearest is ${nearest?.what ?? show(this.options.schedules)}: ${nearest?.why ?? 'there is no schedule of that name'}`,
      details,
    );
  }
}

interface RankPlace {
  readonly recompute: readonly boolean[];
  readonly schedule: Schedule;
  readonly rank: number;
}

function memoryOf(memory: number | readonly number[], rank: number): number {
  return typeof memory === 'number' ? memory : (memory[rank] as number);
}

function isPartition(begins: readonly number[], units: number): boolean {
  return begins.every((at, i) => (i === 0 ? at === 0 : at > (begins[i - 1] as number)) && at < units);
}

/** Less beyond the memory first, then a shorter step. */
function isBetter(a: Candidate, b: Candidate): boolean {
  if (a.excess !== b.excess) return a.excess < b.excess;
  return a.simulation.makespan < b.simulation.makespan;
}
