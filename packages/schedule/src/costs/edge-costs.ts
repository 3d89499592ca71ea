/** @file What messages cost on each edge of the stage graph. */

import type { StageEdge } from '../model/schedule.ts';
import type { CostTable } from './cost-table.ts';
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

/** Spreads communication over edges; edges inside one rank cost nothing. */
export function edgeCosts(
  caller: string,
  table: CostTable,
  graph: { readonly edges: readonly StageEdge[]; readonly stageToRank: readonly number[] },
): EdgeCosts {
  const { edges, stageToRank } = graph;
  const stages = stageToRank.length;
  const { message } = table;
  const bytes =
    message === null ? null : spreadOver({ caller, name: 'comm.bytes', value: message.bytes, fallback: 0, stages });
  const gradientBytes =
    message === null
      ? null
      : spreadOver({
          caller,
          name: 'comm.gradientBytes',
          value: message.gradientBytes ?? message.bytes,
          fallback: 0,
          stages,
        });
  const special = new Map((message?.links ?? []).map((link) => [`${link.from}>${link.to}`, link]));
  const linkNumbers = new Map<string, number>();
  const direction = (): { occupancy: Float64Array; latency: Float64Array; link: Int32Array } => ({
    occupancy: new Float64Array(edges.length),
    latency: new Float64Array(edges.length),
    link: new Int32Array(edges.length),
  });
  const forward = direction();
  const backward = direction();
  edges.forEach(([from, to], e) => {
    const a = stageToRank[from]!;
    const b = stageToRank[to]!;
    if (a === b) return;
    for (const [way, source, target, size, sender] of [
      [forward, a, b, bytes?.[from], from],
      [backward, b, a, gradientBytes?.[from], to],
    ] as const) {
      const key = `${source}>${target}`;
      if (!linkNumbers.has(key)) linkNumbers.set(key, linkNumbers.size);
      way.link[e] = linkNumbers.get(key)!;
      if (message === null || size === undefined) {
        way.latency[e] = table.comm[sender]!;
        continue;
      }
      const link = special.get(key);
      const bandwidth = link?.bandwidth ?? message.bandwidth;
      way.occupancy[e] = bandwidth === undefined ? 0 : size / bandwidth;
      way.latency[e] = link?.latency ?? message.latency ?? 0;
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
