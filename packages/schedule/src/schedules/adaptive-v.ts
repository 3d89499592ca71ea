/** @file AdaptiveV: the V schedule of shortest span under a memory limit, searched over building blocks and scored with real costs. */

import { type CostTable, resolveCosts } from '../costs.ts';
import { fits, limitTooLow, memorySlack, resolveMemoryLimit } from '../memory-limit.ts';
import { OrderGraph } from '../order-graph.ts';
import type { Schedule } from '../schedule.ts';
import type { ScheduleDefinition, ScheduleShape } from '../schedule-definition.ts';
import { buildingBlocks, type MeasuredBlock } from './v-blocks.ts';
import type { VGrid } from './v-grid.ts';
import { pulledPlan, shapedPlan } from './v-plan.ts';

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

/** How a plan is made from a block. */
type Planner = (microbatches: number) => VGrid | null;

/** Plans that are tried at full length after all were tried on a short step. */
const finalists = 16;

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
      for (const planner of plannersFor(blocks, peak)) {
        const scored = this.score(planner(short));
        if (scored !== null) tried.push({ planner, scored });
      }
      if (tried.length > before) levels++;
    }
    tried.sort((a, b) => compare(a.scored, b.scored));
    const best = short === microbatches ? tried[0]?.scored : this.bestAtFullLength(tried.map((t) => t.planner));
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
  private score(plan: VGrid | null): Scored | null {
    if (plan === null) return null;
    const schedule = plan.toSchedule(this.shape);
    let graph = this.graphs.get(plan.microbatches);
    if (graph === undefined)
      this.graphs.set(plan.microbatches, (graph = new OrderGraph(this.shape.name, schedule, this.costs)));
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

  private refuse(): never {
    const blocks = buildingBlocks(this.shape.ranks);
    const least = Math.min(...blocks.map((b) => b.peak));
    for (const planner of plannersFor(blocks, least)) this.score(planner(this.shape.microbatches));
    const { rank, needed } = this.nearest;
    throw limitTooLow(this.shape.name, { rank, limit: this.limits[rank]!, needed, what: 'the leanest plan found' });
  }
}

/** Ways to plan the blocks that hold a number of chunks. */
function plannersFor(blocks: readonly MeasuredBlock[], peak: number): Planner[] {
  return blocks
    .filter((measured) => measured.peak === peak)
    .flatMap(({ block }): Planner[] => [(m) => shapedPlan(block, m, peak), (m) => pulledPlan(block, m)]);
}

function compare(a: Scored, b: Scored): number {
  return a.span - b.span || a.makespan - b.makespan;
}
