/** @file Messages between ranks in a simulated step, and the two actions each of them connects. */

import { edgeCosts } from './costs.ts';
import { Code } from './packed.ts';
import { hasMessages } from './replay.ts';
import type { Schedule, StageEdge } from './schedule.ts';
import type { Simulation } from './simulation.ts';

/** Data on its way from one rank to another. */
export interface Transfer {
  readonly fromRank: number;
  readonly toRank: number;
  readonly depart: number;
  readonly arrive: number;
  /** Whether it carries gradients. */
  readonly backward: boolean;
  readonly microbatch: number;
  /** Slots of the two actions on their ranks: send and receive, or the compute actions in an order without messages. */
  readonly fromSlot: number;
  readonly toSlot: number;
}

/** How many messages a step of a schedule has if it trains all its microbatches. */
export function countTransfers(schedule: Schedule): number {
  const trains = schedule.rows.some((row) =>
    row.some((word) => (word & 15) === Code.I || (word & 15) === Code.B || (word & 15) === Code.Composite),
  );
  return crossingEdges(schedule).length * schedule.microbatches * (trains ? 2 : 1);
}

/** All messages of a simulated step, by edge, direction and microbatch; those whose ends are not in the schedule are left out. */
export function findTransfers(simulation: Simulation): readonly Transfer[] {
  return hasMessages(simulation.schedule) ? explicitTransfers(simulation) : impliedTransfers(simulation);
}

function crossingEdges(schedule: Schedule): StageEdge[] {
  const { stageToRank } = schedule;
  return schedule.stageEdges.filter(([from, to]) => stageToRank[from] !== stageToRank[to]);
}

/** Orders with sends and receives: one send of a stage serves all its edges, one receive takes from all of them. */
function explicitTransfers(simulation: Simulation): Transfer[] {
  const { schedule } = simulation;
  const { stageToRank, microbatches } = schedule;
  const kinds = 4;
  const slots = new Int32Array(kinds * schedule.stages * microbatches).fill(-1);
  const key = (code: number, stage: number, microbatch: number): number =>
    ((code - Code.SendF) * schedule.stages + stage) * microbatches + microbatch;
  schedule.forEachLeaf(({ code, stage, microbatch, slot }) => {
    if (
      code >= Code.SendF &&
      code <= Code.RecvB &&
      stage < schedule.stages &&
      microbatch >= 0 &&
      microbatch < microbatches
    )
      slots[key(code, stage, microbatch)] = slot;
  });
  const found: Transfer[] = [];
  const connect = (from: number, to: number, backward: boolean): void => {
    const fromRank = stageToRank[from]!;
    const toRank = stageToRank[to]!;
    for (let microbatch = 0; microbatch < microbatches; microbatch++) {
      const fromSlot = slots[key(backward ? Code.SendB : Code.SendF, from, microbatch)]!;
      const toSlot = slots[key(backward ? Code.RecvB : Code.RecvF, to, microbatch)]!;
      if (fromSlot < 0 || toSlot < 0) continue;
      const depart = simulation.startOf(fromRank, fromSlot);
      found.push({
        fromRank,
        toRank,
        depart,
        arrive: simulation.endOf(fromRank, fromSlot),
        backward,
        microbatch,
        fromSlot,
        toSlot,
      });
    }
  };
  for (const [from, to] of crossingEdges(schedule)) {
    connect(from, to, false);
    connect(to, from, true);
  }
  return found;
}

/** A compute action that makes or needs a message. */
interface Site {
  readonly slot: number;
  /** When its result is there. */
  readonly done: number;
}

/** Orders without messages: a result leaves when it is made, its link takes one message after the other. */
function impliedTransfers(simulation: Simulation): Transfer[] {
  const { schedule, costs } = simulation;
  const sites = computeSites(simulation);
  const edges = schedule.stageEdges;
  const table = edgeCosts('findTransfers', costs, { edges, stageToRank: schedule.stageToRank });
  const linkFree = new Float64Array(table.links);
  const found: (Omit<Transfer, 'arrive'> & { readonly edge: number })[] = [];
  edges.forEach(([a, b], edge) => {
    if (schedule.stageToRank[a] === schedule.stageToRank[b]) return;
    for (const backward of [false, true]) {
      const from = backward ? b : a;
      const to = backward ? a : b;
      const producers = backward ? sites.gradient : sites.forward;
      for (let microbatch = 0; microbatch < schedule.microbatches; microbatch++) {
        const source = producers.get(from * schedule.microbatches + microbatch);
        const target = producers.get(to * schedule.microbatches + microbatch);
        if (source === undefined || target === undefined) continue;
        found.push({
          fromRank: schedule.stageToRank[from]!,
          toRank: schedule.stageToRank[to]!,
          depart: source.done,
          edge,
          backward,
          microbatch,
          fromSlot: source.slot,
          toSlot: target.slot,
        });
      }
    }
  });
  // Links carry messages in the order in which they are made.
  found.sort((x, y) => x.depart - y.depart);
  return found.map(({ edge, ...transfer }) => {
    const { backward } = transfer;
    const occupancy = (backward ? table.backwardOccupancy : table.forwardOccupancy)[edge]!;
    const latency = (backward ? table.backwardLatency : table.forwardLatency)[edge]!;
    if (occupancy === 0) return { ...transfer, arrive: transfer.depart + latency };
    const link = (backward ? table.backwardLink : table.forwardLink)[edge]!;
    const depart = Math.max(transfer.depart, linkFree[link]!);
    linkFree[link] = depart + occupancy;
    return { ...transfer, depart, arrive: depart + occupancy + latency };
  });
}

/** Where each (stage, microbatch) has its forward, and its backward that makes the input gradient. */
function computeSites(simulation: Simulation): {
  readonly forward: Map<number, Site>;
  readonly gradient: Map<number, Site>;
} {
  const { schedule, costs } = simulation;
  const forward = new Map<number, Site>();
  const gradient = new Map<number, Site>();
  const durations = [null, costs.F, costs.I, costs.W, costs.B];
  const { rows, layout, composites, microbatches } = schedule;
  for (let rank = 0; rank < rows.length; rank++) {
    const row = rows[rank]!;
    for (let slot = 0; slot < row.length; slot++) {
      const leaves = composites.leavesOf(row[slot]!);
      const start = simulation.startOf(rank, slot);
      const end = simulation.endOf(rank, slot);
      const total = leaves.reduce((sum, leaf) => sum + (durations[leaf & 15]?.[layout.stage(leaf)] ?? 0), 0);
      let passed = 0;
      for (const leaf of leaves) {
        const code = leaf & 15;
        passed += durations[code]?.[layout.stage(leaf)] ?? 0;
        const done =
          costs.releaseParts && leaves.length > 1 && total > 0 ? start + ((end - start) * passed) / total : end;
        const key = layout.stage(leaf) * microbatches + layout.microbatch(leaf);
        if (code === Code.F) forward.set(key, { slot, done });
        else if (code === Code.I || code === Code.B) gradient.set(key, { slot, done });
      }
    }
  }
  return { forward, gradient };
}
