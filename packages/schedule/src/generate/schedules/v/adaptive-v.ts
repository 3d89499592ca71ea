/** @file AdaptiveV: the V schedule of shortest span under a memory limit, searched over building blocks and scored with real costs. */

import { type CostTable, resolveCosts } from '../../../costs/cost-table.ts';
import { listOrder } from '../../../costs/list-order.ts';
import { fits, limitTooLow, memorySlack, resolveMemoryLimit } from '../../../costs/memory-limit.ts';
import { OrderGraph } from '../../../costs/order-graph.ts';
import type { Layout } from '../../../model/packed.ts';
import type { Schedule } from '../../../model/schedule.ts';
import type { ScheduleDefinition, ScheduleShape } from '../definition.ts';
import { zbv } from '../zero-bubble/zbv.ts';
import { buildingBlocks, type ChunkSizes, type MeasuredBlock, repeatedPeak } from './blocks.ts';
import type { VGrid } from './grid.ts';
import { pulledPlan, shapedPlan } from './plan.ts';
import { vHalf } from './v-half.ts';
import { vMin } from './v-min.ts';

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

/** A plan as rows of words, and how it does. */
interface Scored {
  readonly words: readonly Int32Array[];
  readonly span: number;
  readonly makespan: number;
}

/** Makes a plan for a number of microbatches, as rows of words; null where it does not work out. */
type Planner = (microbatches: number, layout: Layout) => readonly Int32Array[] | null;

/** Blocks that are tried on the whole step after all were tried on a short one. */
const finalists = 12;
/** On more than 16 ranks with few microbatches there are more blocks than time: actions of all short steps that are tried. */
const [manyRanks, mostActions] = [16, 3_000_000];

class BlockSearch {
  private readonly shape: ScheduleShape;
  private readonly costs: CostTable;
  private readonly limits: Float64Array;
  /** Graphs of the steps of a length, made with the first plan of it. */
  private readonly graphs: Map<number, OrderGraph> = new Map();

  constructor(shape: ScheduleShape) {
    this.shape = shape;
    this.costs = resolveCosts(shape.name, shape.costs ?? {}, shape.stages);
    const whole = Float64Array.from({ length: shape.ranks }, (_, rank) => shape.ranks * this.activationOf(rank));
    this.limits = resolveMemoryLimit(shape.name, shape.memoryLimit, whole);
  }

  run(): Schedule {
    const { microbatches } = this.shape;
    // The orders that are fixed come first: they are cheap, a search must not do worse, and one may be as good as any.
    let best = this.bestOf(this.fixedPlanners(), undefined);
    if (best === undefined || best.span > this.leastSpan() * (1 + 1e-12)) {
      const blocks = this.rankedBlocks();
      const finals = blocks.slice(0, finalists).flatMap((block) => [this.shaped(block), this.pulled(block)]);
      best = this.bestOf(finals, best);
      // Where none of them keeps the limit at full length, one of the others may.
      for (let i = finalists; best === undefined && i < blocks.length; i++)
        best = this.bestOf([this.shaped(blocks[i]!)], best);
    }
    best ??= this.greedy();
    if (best === undefined) this.refuse();
    return this.graphOf(microbatches).schedule.with({ name: this.shape.name, rows: best.words });
  }

  /** Blocks that keep the limits, best first, by their plans for a step that is long enough to show both ends. */
  private rankedBlocks(): MeasuredBlock[] {
    const { ranks, microbatches } = this.shape;
    const most = Math.min(2 * ranks, this.chunksThatMayFit()); // beyond 2p chunks nothing is gained
    const short = Math.min(microbatches, 2 * ranks + 2);
    const tried: { readonly block: MeasuredBlock; readonly scored: Scored }[] = [];
    let levels = 0;
    let actions = 0;
    for (let peak = most; peak >= 1 && (levels < 2 || microbatches < 2 * ranks); peak--) {
      const before = tried.length;
      for (const block of buildingBlocks(ranks)) {
        if (block.peak !== peak) continue;
        if (ranks > manyRanks && actions > mostActions && tried.length >= finalists) break;
        if (ranks > manyRanks && !this.mayFit(block)) continue;
        actions += 6 * ranks * short;
        const scored = this.score(this.shaped(block), short) ?? this.score(this.pulled(block), short);
        if (scored !== null) tried.push({ block, scored });
      }
      if (tried.length > before) levels++;
    }
    return tried.sort((a, b) => compare(a.scored, b.scored)).map(({ block }) => block);
  }

  /** Whether all ranks keep their limits while a block repeats: plans hold about as much, and are not made where that is too much. */
  private mayFit({ block }: MeasuredBlock): boolean {
    const { activation, retained } = this.costs;
    const { ranks, stages } = this.shape;
    return block.every((starts, rank) => {
      const takes = [activation[rank]!, activation[stages - 1 - rank]!] as const;
      const gives = [takes[0] * (1 - retained[rank]!), takes[1] * (1 - retained[stages - 1 - rank]!)] as const;
      const sizes: ChunkSizes = { takes, gives };
      return fits(repeatedPeak([...starts], 2 * ranks + 2, sizes), this.limits[rank]!);
    });
  }

  /** The best of some plans of the whole step, or the best so far. */
  private bestOf(planners: readonly Planner[], soFar: Scored | undefined): Scored | undefined {
    let best = soFar;
    for (const planner of planners) {
      const scored = this.score(planner, this.shape.microbatches);
      if (scored !== null && (best === undefined || compare(scored, best) < 0)) best = scored;
    }
    return best;
  }

  /** No span can be below the work of the busiest rank. */
  private leastSpan(): number {
    const { F, I, W } = this.costs;
    let most = 0;
    for (let down = 0, up = this.shape.stages - 1; down < up; down++, up--) {
      most = Math.max(most, F[down]! + F[up]! + I[down]! + I[up]! + W[down]! + W[up]!);
    }
    return this.shape.microbatches * most;
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

  /** The score of a plan; null where it does not work out or a rank holds more than its limit. */
  private score(planner: Planner, microbatches: number): Scored | null {
    const graph = this.graphOf(microbatches);
    const words = planner(microbatches, graph.schedule.layout);
    if (words === null) return null;
    const rows = words.map((row) => graph.rowOf(row));
    if (!rows.every((row, rank) => fits(graph.peakOf(row), this.limits[rank]!))) return null;
    return { words, ...graph.score(rows) };
  }

  /** The operations of a step of so many microbatches. */
  private graphOf(microbatches: number): OrderGraph {
    let graph = this.graphs.get(microbatches);
    if (graph === undefined) {
      graph = new OrderGraph(this.shape.name, vMin.generate({ ...this.shape, microbatches }), this.costs);
      this.graphs.set(microbatches, graph);
    }
    return graph;
  }

  private shaped({ block, peak }: MeasuredBlock): Planner {
    return (m, layout) => wordsOf(shapedPlan(block, m, peak), layout);
  }

  private pulled({ block }: MeasuredBlock): Planner {
    return (m, layout) => wordsOf(pulledPlan(block, m), layout);
  }

  /** The V schedules of fixed order, which a search must not do worse than. */
  private fixedPlanners(): Planner[] {
    return [zbv, vHalf, vMin].map(
      (definition): Planner =>
        (m) =>
          definition.generate({ ...this.shape, microbatches: m }).rows,
    );
  }

  /** A greedy order, for limits below those of all blocks: fewer microbatches under way at once. */
  private greedy(): Scored | undefined {
    const graph = this.graphOf(this.shape.microbatches);
    const rows = listOrder(graph, this.limits);
    return rows === null ? undefined : { words: graph.scheduleOf(rows).rows, ...graph.score(rows) };
  }

  private refuse(): never {
    const rank = this.limits.findIndex((limit, r) => !fits(this.activationOf(r), limit));
    throw limitTooLow(this.shape.name, {
      rank,
      limit: this.limits[rank]!,
      needed: this.activationOf(rank),
      what: 'one microbatch on both stages',
    });
  }
}

function wordsOf(grid: VGrid | null, layout: Layout): Int32Array[] | null {
  return grid === null ? null : Array.from({ length: grid.ranks }, (_, rank) => grid.wordsOf(rank, layout));
}

function compare(a: Scored, b: Scored): number {
  return a.span - b.span || a.makespan - b.makespan;
}
