/** @file What messages cost on each edge of the stage graph. */

import type { StageEdge } from '../model/schedule.ts';
import type { CostTable } from './cost-table.ts';
import type { PerStage } from './costs.ts';
import { spreadOver } from './spread.ts';

/** Messages over the edges of the stage graph; forward along the edge, backward against it. */
export interface EdgeCosts {
  /** Time an edge's message keeps its link busy. */
  readonly forwardOccupancy: Float64Array;
  readonly backwardOccupancy: Float64Array;
  /** Time after that until it has arrived. */
  readonly forwardLatency: Float64Array;
  readonly backwardLatency: Float64Array;
  /** Dense number of the link (pair of ranks, one direction) an edge uses. */
  readonly forwardLink: Int32Array;
  readonly backwardLink: Int32Array;
  readonly links: number;
}

/** The messages of one direction, by edge. */
interface Way {
  readonly occupancy: Float64Array;
  readonly latency: Float64Array;
  readonly link: Int32Array;
}

/** Spreads communication over edges; edges inside one rank cost nothing. */
export function edgeCosts(
  caller: string,
  table: CostTable,
  graph: { readonly edges: readonly StageEdge[]; readonly stageToRank: readonly number[] },
): EdgeCosts {
  const { edges, stageToRank } = graph;
  const { message } = table;
  const bytesOf = (name: string, value: PerStage | undefined): Float64Array | null =>
    message === null ? null : spreadOver({ caller, name, value, fallback: 0, stages: stageToRank.length });
  const bytes = bytesOf('comm.bytes', message?.bytes);
  const gradientBytes = bytesOf('comm.gradientBytes', message?.gradientBytes ?? message?.bytes);
  const special = new Map((message?.links ?? []).map((link) => [`${link.from}>${link.to}`, link]));
  const linkNumbers = new Map<string, number>();
  const way = (): Way => ({
    occupancy: new Float64Array(edges.length),
    latency: new Float64Array(edges.length),
    link: new Int32Array(edges.length),
  });
  const [forward, backward] = [way(), way()];
  edges.forEach(([from, to], edge) => {
    const a = stageToRank[from]!;
    const b = stageToRank[to]!;
    if (a === b) return;
    for (const [{ occupancy, latency, link }, source, target, size, sender] of [
      [forward, a, b, bytes?.[from], from],
      [backward, b, a, gradientBytes?.[from], to],
    ] as const) {
      const key = `${source}>${target}`;
      if (!linkNumbers.has(key)) linkNumbers.set(key, linkNumbers.size);
      link[edge] = linkNumbers.get(key)!;
      if (message === null || size === undefined) {
        latency[edge] = table.comm[sender]!;
        continue;
      }
      const bandwidth = special.get(key)?.bandwidth ?? message.bandwidth;
      occupancy[edge] = bandwidth === undefined ? 0 : size / bandwidth;
      latency[edge] = special.get(key)?.latency ?? message.latency ?? 0;
    }
  });
  return {
    forwardOccupancy: forward.occupancy,
    backwardOccupancy: backward.occupancy,
    forwardLatency: forward.latency,
    backwardLatency: backward.latency,
    forwardLink: forward.link,
    backwardLink: backward.link,
    links: linkNumbers.size,
  };
}
