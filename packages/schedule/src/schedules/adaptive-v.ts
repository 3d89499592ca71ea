/** @file AdaptiveV: the V schedule of shortest span under a memory limit, searched over building blocks and scored with real costs. */

import { type CostTable, resolveCosts } from '../costs.ts';
import { fits, limitTooLow, memorySlack, resolveMemoryLimit } from '../memory-limit.ts';
import { OrderGraph } from '../order-graph.ts';
import type { Schedule } from '../schedule.ts';
import type { ScheduleDefinition, ScheduleShape } from '../schedule-definition.ts';
import { buildingBlocks, type MeasuredBlock } from './v-blocks.ts';
import { vHalf } from './v-half.ts';
import { vMin } from './v-min.ts';
import { pulledPlan, shapedPlan } from './v-plan.ts';
import { zbv } from './zbv.ts';

/** Limit: 2p chunks on each rank (what 1F1B holds), or `memoryLimit`. */
export const adaptiveV: ScheduleDefinition = {
  name: 'AdaptiveV',
  aliases: ['VAdaptive'],
  summary:
    'Two stages per rank in a V: the shortest plan found for measured times and a memory limit, from V-Min to no bubble.',
  placement: 'v',
  stagesPerRank: { default: 2, least: 2, most: 2 },
  inTorch: false,
  usesCosts: true,
  usesMemoryLimit: true,
  hasBackward: true,
  generate(shape) {
    return new BlockSearch(shape).run();
  },
};

/** A plan and how it does. */
interface Scored {
  readonly schedule: Schedule;
  readonly span: number;
  readonly makespan: number;
}

/** Makes a plan for a number of microbatches; null where it does not work out. */
type Planner = (microbatches: number) => Schedule | null;

/** Plans that are tried at full length after all were tried on a short step; the three of fixed order are among them. */
const finalists = 19;

class BlockSearch {
  private readonly shape: ScheduleShape;
  private readonly costs: CostTable;
  private readonly limits: Float64Array;
  /** Graphs of the steps of a length, made with the first plan of it. */
  private readonly graphs: Map<number, OrderGraph> = new Map();
  /** The limit missed by least so far. */
  private nearest = { rank: 0, needed: 0, ratio: Number.POSITIVE_INFINITY };

  constructor(shape: ScheduleShape) {
    this.shape = shape;
    this.costs = resolveCosts(shape.name, shape.costs ?? {}, shape.stages);
    const whole = Float64Array.from({ length: shape.ranks }, (_, rank) => shape.ranks * this.activationOf(rank));
    this.limits = resolveMemoryLimit(shape.name, shape.memoryLimit, whole);
  }

  run(): Schedule {
    const { ranks, microbatches } = this.shape;
    const blocks = buildingBlocks(ranks);
    const most = Math.min(2 * ranks, this.chunksThatMayFit()); // beyond 2p chunks nothing is gained
    const short = Math.min(microbatches, 2 * ranks + 2);
    const tried: { readonly planner: Planner; readonly scored: Scored }[] = [];
    let levels = 0;
    for (let peak = most; peak >= 1 && (levels < 2 || microbatches < 2 * ranks); peak--) {
      const before = tried.length;
      for (const planner of this.plannersFor(blocks, peak)) {
        const scored = this.score(planner(short));
        if (scored !== null) tried.push({ planner, scored });
      }
      if (tried.length > before) levels++;
    }
    tried.sort((a, b) => compare(a.scored, b.scored));
    const best = this.bestAtFullLength([...this.fixedPlanners(), ...tried.map((t) => t.planner)]);
    if (best === undefined) this.refuse();
    return best.schedule;
  }

  /** The best of the finalists; of the others only when no finalist keeps the limit. */
  private bestAtFullLength(planners: readonly Planner[]): Scored | undefined {
    let best: Scored | undefined;
    for (let i = 0; i < planners.length && (i < finalists || best === undefined); i++) {
      const scored = this.score(planners[i]!(this.shape.microbatches));
      if (scored !== null && (best === undefined || compare(scored, best) < 0)) best = scored;
    }
    return best;
  }

  /** Activation memory of one microbatch on both stages of a rank. */
  private activationOf(rank: number): number {
    return this.costs.activation[rank]! + this.costs.activation[this.shape.stages - 1 - rank]!;
  }

  /** Chunks that could fit on some rank, given that part of a chunk goes before its W. */
  private chunksThatMayFit(): number {
    let most = 0;
    this.limits.forEach((limit, rank) => {
      const smallest = Math.min(this.costs.activation[rank]!, this.costs.activation[this.shape.stages - 1 - rank]!);
      most = Math.max(most, smallest === 0 ? Number.POSITIVE_INFINITY : Math.floor(limit / smallest + memorySlack) + 1);
    });
    return most;
  }

  /** The score of a plan; null where there is none or a rank holds more than its limit. */
  private score(schedule: Schedule | null): Scored | null {
    if (schedule === null) return null;
    let graph = this.graphs.get(schedule.microbatches);
    if (graph === undefined)
      this.graphs.set(schedule.microbatches, (graph = new OrderGraph(this.shape.name, schedule, this.costs)));
    const rows = graph.rowsOf(schedule);
    let worst = { rank: 0, needed: 0, ratio: 0 };
    rows.forEach((row, rank) => {
      const needed = graph.peakOf(row);
      if (!fits(needed, this.limits[rank]!) && needed / this.limits[rank]! > worst.ratio)
        worst = { rank, needed, ratio: needed / this.limits[rank]! };
    });
    if (worst.ratio > 0) {
      if (worst.ratio < this.nearest.ratio) this.nearest = worst;
      return null;
    }
    return { schedule, ...graph.score(rows) };
  }

  /** Ways to plan the blocks that hold a number of chunks. */
  private plannersFor(blocks: readonly MeasuredBlock[], peak: number): Planner[] {
    const { shape } = this;
    return blocks
      .filter((measured) => measured.peak === peak)
      .flatMap(({ block }): Planner[] => [
        (m) => shapedPlan(block, m, peak)?.toSchedule(shape) ?? null,
        (m) => pulledPlan(block, m).toSchedule(shape),
      ]);
  }

  /** The V schedules of fixed order, which a search must not do worse than. */
  private fixedPlanners(): Planner[] {
    return [zbv, vHalf, vMin].map(
      (definition): Planner =>
        (m) =>
          definition.generate({ ...this.shape, microbatches: m }),
    );
  }

  private refuse(): never {
    const blocks = buildingBlocks(this.shape.ranks);
    const least = Math.min(...blocks.map((b) => b.peak));
    for (const planner of this.plannersFor(blocks, least)) this.score(planner(this.shape.microbatches));
    const { rank, needed } = this.nearest;
    throw limitTooLow(this.shape.name, { rank, limit: this.limits[rank]!, needed, what: 'the leanest plan found' });
  }
}

function compare(a: Scored, b: Scored): number {
  return a.span - b.span || a.makespan - b.makespan;
}
