/** @file The stage graph of a schedule as columns: edges into and out of each stage, and which of them cross ranks. */

import type { Schedule } from '../model/schedule.ts';

/** Edges by number; `inStart[s] .. inStart[s + 1] - 1` are the positions in `inEdges` of the edges into stage `s`. */
export interface EdgeGraph {
  readonly edges: number;
  readonly from: Int32Array;
  readonly to: Int32Array;
  /** 1 where the two stages are on different ranks. */
  readonly crosses: Uint8Array;
  readonly inStart: Int32Array;
  readonly inEdges: Int32Array;
  readonly outStart: Int32Array;
  readonly outEdges: Int32Array;
}

/** The columns of a schedule's stage graph. */
export function edgeGraph(schedule: Pick<Schedule, 'stages' | 'stageEdges' | 'stageToRank'>): EdgeGraph {
  const { stages, stageEdges, stageToRank } = schedule;
  const count = stageEdges.length;
  const from = new Int32Array(count);
  const to = new Int32Array(count);
  const crosses = new Uint8Array(count);
  stageEdges.forEach(([a, b], e) => {
    from[e] = a;
    to[e] = b;
    crosses[e] = stageToRank[a] === stageToRank[b] ? 0 : 1;
  });
  const into = group(to, stages);
  const out = group(from, stages);
  return {
    edges: count,
    from,
    to,
    crosses,
    inStart: into.start,
    inEdges: into.items,
    outStart: out.start,
    outEdges: out.items,
  };
}

/** Edge numbers grouped by stage, in edge order. */
function group(stageOf: Int32Array, stages: number): { start: Int32Array; items: Int32Array } {
  const start = new Int32Array(stages + 1);
  for (const s of stageOf) start[s + 1]!++;
  for (let s = 0; s < stages; s++) start[s + 1]! += start[s]!;
  const next = start.slice(0, stages);
  const items = new Int32Array(stageOf.length);
  stageOf.forEach((s, e) => {
    items[next[s]!++] = e;
  });
  return { start, items };
}
