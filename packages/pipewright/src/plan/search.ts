/**
 * @file The search for the best pipeline: partition, schedule, stages per rank, number and size of microbatches, which stages
 * compute their forward again, and how many pipelines stand beside each other and what they divide; each judged by simulating it
 * with measured costs under the ranks' memory.
 */
import {
  improveSchedule,
  type PipelinePlan,
  type PlanMachine,
  plural,
  ScheduleError,
  type ScheduleName,
  type ShardingLevel,
  scheduleDefinitions,
  shardingLevels,
} from '@pipewright/schedule';
import { machineProblem } from '@pipewright/schedule/internal';
import { checkArgument, checkCount, checkOptions, show } from '../base/checks.ts';
import { PipelineError } from '../base/errors.ts';
import { formatBytes } from '../pipe/picture.ts';
import { type Candidate, isBetter, Judge, planOf, type Setting } from './candidate.ts';
import type { UnitCosts } from './unit-costs.ts';

/** The machine that is planned for. */
export interface Machine extends PlanMachine {
  readonly ranks: number;
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
  /**
   * Pipelines beside each other to try, each with its part of the batch: numbers that divide the ranks, or `all` of these. Default: 1.
   * Without a bandwidth of the machine, gradients are summed in no time.
   */
  readonly replicas?: readonly number[] | 'all' | undefined;
  /** What such pipelines may divide among them. Default: all levels, from nothing (`replicate`) to parameters. */
  readonly levels?: readonly ShardingLevel[] | undefined;
  /** Bytes of parameters, gradients and optimizer state for each byte of parameters. Default 4, as for Adam. */
  readonly stateFactor?: number | undefined;
  /** Whether stages may compute their forward again. Default true. */
  readonly mayRecompute?: boolean | undefined;
  /** Orders that are tried around the best schedule, to find a better one. Default 1000, or 0 where `schedules` are named. */
  readonly searchOrders?: number | undefined;
  /** How many plans to return. Default 5. */
  readonly most?: number | undefined;
}

/** What a search found. */
export interface PlanResult {
  /** The best plans, fastest first, one for each schedule and shape. */
  readonly plans: readonly PipelinePlan[];
  /** What was tried and cannot be, with the reason. */
  readonly refused: readonly { readonly what: string; readonly why: string }[];
  readonly simulated: number;
}

const optionNames = [
  ...[
    'machine',
    'tables',
    'batch',
    'schedules',
    'stagesPerRank',
    'replicas',
    'levels',
    'stateFactor',
    'mayRecompute',
    'searchOrders',
    'most',
  ],
];
/** Partitions that are tried around the first one of a setting, and cells that may be simulated for it. */
const mostMoves = 80;
const mostCells = 600_000;
/** Settings whose partitions are improved, at most, however many plans are asked for. */
const mostImproved = 16;
/** How many cells a searched order is tried on, at most. */
const mostSearchedCells = 4_000_000;
/** A searched order must be so much shorter to be worth its own file. */
const worthwhile = 0.002;
const machineNames = ['ranks', 'memory', 'slowness', 'bandwidth', 'latency', 'links'];

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
  const problem = machineProblem(machine, machine.ranks);
  if (problem !== null) throw new PipelineError('BAD_OPTION', `planPipeline: machine.${problem}`);
  const isList = options.replicas === undefined || options.replicas === 'all' || Array.isArray(options.replicas);
  checkArgument('planPipeline', isList, ['replicas', options.replicas], "numbers such as [1, 2], or 'all'");
  for (const each of options.replicas === 'all' ? [] : (options.replicas ?? [])) {
    checkCount('planPipeline', 'replicas', each);
    const rule = `numbers that divide the ${machine.ranks} ranks`;
    checkArgument('planPipeline', machine.ranks % each === 0, ['replicas', options.replicas], rule);
  }
  const areLevels = options.levels?.every((level) => shardingLevels.includes(level)) ?? true;
  checkArgument('planPipeline', areLevels, ['levels', options.levels], `some of ${shardingLevels.join(', ')}`);
  return new PlanSearch(options).run();
}

/** Why something cannot be. */
interface Refusal {
  readonly what: string;
  readonly why: string;
  readonly missing: number;
  readonly rank: number;
}

class PlanSearch {
  private readonly options: PlanOptions;
  private readonly judge: Judge;
  private readonly refused: Refusal[] = [];

  constructor(options: PlanOptions) {
    this.options = options;
    this.judge = new Judge(options);
  }

  run(): PlanResult {
    const most = this.options.most ?? 5;
    const starts = this.settings()
      .flatMap((setting) => this.startOf(setting) ?? [])
      .sort((a, b) => (isBetter(a, b) ? -1 : 1));
    const improves = Math.min(most, mostImproved) + 3;
    const isPromising = (start: Candidate, i: number): boolean => i < improves || start.excess > 0;
    const improved = starts.map((start, i) => (isPromising(start, i) ? this.improve(start) : start));
    const found = this.withOthers(improved).filter((each) => this.isIn(each));
    if (found.length === 0) throw this.nothingFits();
    found.sort(shorter);
    const searched = this.searched(found[0]!);
    if (searched !== null) found.unshift(searched);
    const plans = found
      .slice(0, most)
      .map((each, i): PipelinePlan => planOf(each, { judge: this.judge, why: why(each, found, i) }));
    return {
      plans,
      refused: this.refused.map(({ what, why: reason }) => ({ what, why: reason })),
      simulated: this.judge.simulated,
    };
  }

  private settings(): Setting[] {
    const { tables, batch, machine, levels = shardingLevels } = this.options;
    for (const { rows } of tables)
      checkArgument('planPipeline', batch % rows === 0, ['batch', batch], `a multiple of ${rows} rows`);
    return this.degrees().flatMap((replicas) =>
      tables.flatMap((table) => {
        const microbatches = batch / replicas / table.rows;
        if (!Number.isInteger(microbatches)) {
          const rows = `microbatches of ${plural(table.rows, 'row')}`;
          this.note(`${replicas} replicas, ${rows}`, `a batch of ${batch} rows is not divided evenly`);
          return [];
        }
        const ranks = machine.ranks / replicas;
        return this.shapes(ranks, replicas).flatMap((shape) =>
          (replicas === 1 ? (['replicate'] as const) : levels).map(
            (level): Setting => ({ ...shape, table, microbatches, ranks, parallel: { replicas, level } }),
          ),
        );
      }),
    );
  }

  /** How many pipelines may stand beside each other. */
  private degrees(): readonly number[] {
    const { replicas = [1], machine } = this.options;
    if (replicas !== 'all') return [...new Set(replicas)];
    return Array.from({ length: machine.ranks }, (_, i) => i + 1).filter((each) => machine.ranks % each === 0);
  }

  /** Schedules and stages per rank. */
  private shapes(ranks: number, replicas: number): Pick<Setting, 'definition' | 'stagesPerRank'>[] {
    const { schedules, stagesPerRank = [1, 2, 4] } = this.options;
    // On one rank nothing waits: of all schedules, 1F1B holds least.
    const isAlone = ranks === 1 && replicas > 1 && schedules === undefined;
    return scheduleDefinitions
      .filter(({ name, hasBackward }) => hasBackward && (schedules === undefined || schedules.includes(name)))
      .filter(({ name }) => !isAlone || name === '1F1B')
      .flatMap((definition) =>
        stagesPerRank
          .filter((each) => each >= definition.stagesPerRank.least && each <= definition.stagesPerRank.most)
          .map((each) => ({ definition, stagesPerRank: each })),
      );
  }

  private describe({ definition, table, microbatches, ranks, stagesPerRank, parallel }: Setting): string {
    const { replicas, level } = parallel;
    const beside = level === 'replicate' ? `${replicas} replicas, ` : `${replicas} shards of ${level}, `;
    const shape = `${plural(ranks * stagesPerRank, 'stage')}, ${plural(microbatches, 'microbatch', 'microbatches')} of ${plural(table.rows, 'row')}`;
    return `${definition.name}, ${replicas === 1 ? '' : beside}${shape}`;
  }

  private refuse(setting: Setting, reason: string, place?: Pick<Refusal, 'missing' | 'rank'>): void {
    this.note(this.describe(setting), reason, place);
  }

  private note(what: string, reason: string, place?: Pick<Refusal, 'missing' | 'rank'>): void {
    const { missing = Number.POSITIVE_INFINITY, rank = -1 } = place ?? {};
    this.refused.push({ what, why: reason, missing, rank });
  }

  /** Where the search begins for a setting; null where it cannot be, with the reason noted. */
  private startOf(setting: Setting): Candidate | null {
    const stages = setting.ranks * setting.stagesPerRank;
    const { length } = setting.table.units;
    if (length < stages) {
      this.refuse(
        setting,
        `the model has only ${length} ${length === 1 ? 'layer' : 'layers'}, too few for ${stages} stages`,
      );
      return null;
    }
    try {
      return this.fit(this.judge.first(setting));
    } catch (error) {
      if (!(error instanceof ScheduleError || error instanceof PipelineError)) throw error;
      this.refuse(setting, error.message.split('\n')[0] ?? '');
      return null;
    }
  }

  /** Whether a candidate fits; what one lacks is noted. */
  private isIn({ setting, excess, excessRank }: Candidate): boolean {
    if (excess === 0) return true;
    const missing = Math.ceil(excess);
    const rank = this.judge.worldRank(setting, excessRank);
    this.refuse(setting, `rank ${rank} lacks ${formatBytes(missing)}`, { missing, rank });
    return false;
  }

  /** Plans the order for the memory where it can be, then lets stages of ranks that hold too much compute their forward again. */
  private fit(start: Candidate): Candidate {
    let best = start;
    if (best.excess > 0) best = this.better(best, this.judge.withinMemory(best));
    if (best.excess > 0 && this.options.mayRecompute !== false) best = this.better(best, this.judge.recomputed(best));
    return best;
  }

  private better(a: Candidate, b: Candidate | null): Candidate {
    return b !== null && isBetter(b, a) ? b : a;
  }

  /** Moves borders, and lets stages keep or compute again, as long as that makes the step shorter. */
  private improve(start: Candidate): Candidate {
    let best = start;
    let left = Math.min(mostMoves, Math.max(4, Math.floor(mostCells / start.schedule.size)));
    const attempt = (begins: readonly number[], recompute: readonly boolean[]): void => {
      if (left <= 0 || !isPartition(begins, start.setting.table.units.length)) return;
      left--;
      best = this.better(best, this.judge.judge(start.setting, begins, recompute));
    };
    for (let before: Candidate | null = null; before !== best && left > 0; ) {
      before = best;
      for (const stage of this.worstFirst(best))
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
    return this.better(best, this.judge.anew(best));
  }

  /** Borders in the order of the busiest rank beside them: moving those is most likely to help. */
  private worstFirst({ begins, schedule, simulation }: Candidate): number[] {
    const busy = (stage: number): number => simulation.busy[schedule.stageToRank[stage]!]!;
    const weight = (stage: number): number => Math.max(busy(stage), busy(stage - 1));
    return begins
      .map((_, stage) => stage)
      .slice(1)
      .sort((a, b) => weight(b) - weight(a) || a - b);
  }

  /** All schedules on the partition of the best one of their shape as well: none may be faster than what is chosen. */
  private withOthers(candidates: readonly Candidate[]): Candidate[] {
    const shape = ({ setting: { ranks, stagesPerRank, table, parallel } }: Candidate): string =>
      `${ranks} ${stagesPerRank} ${table.rows} ${parallel.level}`;
    const first = candidates.reduce<Candidate | null>((a, b) => (a === null || isBetter(b, a) ? b : a), null);
    const fastest = first === null || first.excess > 0 ? Number.POSITIVE_INFINITY : first.simulation.makespan;
    const best = new Map<string, Candidate>();
    for (const each of candidates) {
      const known = best.get(shape(each));
      if (known === undefined || isBetter(each, known)) best.set(shape(each), each);
    }
    return candidates.map((each) => {
      const model = best.get(shape(each))!;
      if (model === each || String(model.begins) === String(each.begins)) return each;
      const moved = { ...each, begins: model.begins, recompute: model.recompute };
      if (this.judge.bound(moved) >= fastest) return each; // it cannot become the best
      try {
        return this.better(each, this.judge.anew(moved));
      } catch (error) {
        if (error instanceof ScheduleError) return each;
        throw error;
      }
    });
  }

  /** A better order than that of the best schedule, by search; null where there is none, or it was not asked for. */
  private searched(best: Candidate): Candidate | null {
    const wanted = this.options.searchOrders ?? (this.options.schedules === undefined ? 1000 : 0);
    const evaluations = Math.min(wanted, Math.floor(mostSearchedCells / best.schedule.size));
    if (evaluations < 20 || best.schedule.order.some((row) => row.some((cell) => (cell?.parts ?? null) !== null)))
      return null;
    const memoryLimit = this.judge.activationLimits(best);
    try {
      const { schedule } = improveSchedule(best.schedule, {
        costs: best.costs,
        evaluations,
        ...(memoryLimit === null ? {} : { memoryLimit }),
      });
      const found = this.judge.judge(best.setting, best.begins, best.recompute, schedule.with({ name: 'searched' }));
      const isWorth = found.simulation.makespan < best.simulation.makespan * (1 - worthwhile);
      return isWorth && found.excess === 0 ? { ...found, searched: true } : null;
    } catch (error) {
      if (error instanceof ScheduleError) return null;
      throw error;
    }
  }

  private nothingFits(): PipelineError {
    const nearest = this.refused.reduce<Refusal | null>((a, b) => (a === null || b.missing < a.missing ? b : a), null);
    const rank = nearest?.rank ?? -1;
    const details = rank < 0 ? {} : { rank, missingBytes: nearest?.missing };
    return new PipelineError(
      rank < 0 ? 'NO_PLAN' : 'MEMORY_LIMIT',
      `planPipeline: no plan fits; the closest is ${nearest?.what ?? show(this.options.schedules)}: ${nearest?.why ?? 'there is no schedule of that name'}`,
      details,
    );
  }
}

/** Percent below which steps are called equal: 0.0 is what would be printed. */
const leastShown = 0.05;

/** Why a plan stands where it does. */
function why(one: Candidate, all: readonly Candidate[], place: number): string {
  const { simulation, recompute } = one;
  const again = recompute.filter(Boolean).length;
  const extra = again === 0 ? '' : `; ${again} of its stages compute their forward again to fit`;
  const idle = `idle for ${(100 * simulation.bubble.makespan).toFixed(1)}% of the step`;
  const [best, second] = all as [Candidate, Candidate | undefined];
  if (place > 0) {
    const longer = 100 * (simulation.makespan / best.simulation.makespan - 1);
    return `${longer < leastShown ? 'equal to the best' : `${longer.toFixed(1)}% longer than the best`}, ${idle}${extra}`;
  }
  if (second === undefined) return `the only one that fits, ${idle}${extra}`;
  const lead = 100 * (second.simulation.makespan / simulation.makespan - 1);
  const how = one.searched ? `an order found by search, ` : '';
  const ahead = lead < leastShown ? 'equal to' : `${lead.toFixed(1)}% ahead of`;
  return `${how}${ahead} ${second.setting.definition.name}, ${idle}${extra}`;
}

function shorter(a: Candidate, b: Candidate): number {
  return a.simulation.makespan - b.simulation.makespan;
}

function isPartition(begins: readonly number[], units: number): boolean {
  return begins.every((at, i) => (i === 0 ? at === 0 : at > begins[i - 1]!) && at < units);
}
