/** @file What an action waits for, what waits for it, and how much later it could end without making the step longer. */
import type { SimulatedMessage, Simulation } from '@pipewright/schedule';

/** One cell of a schedule. */
export interface CellPlace {
  readonly rank: number;
  readonly slot: number;
}

/** One wait between two actions. */
export interface WaitLink {
  readonly from: CellPlace;
  readonly to: CellPlace;
  /** Time that a message between them is under way; 0 within a rank. */
  readonly delay: number;
  /** Whether it is a message between ranks. */
  readonly message: boolean;
  readonly backward: boolean;
}

/** Dependencies of a simulated step of a compute-only order, with the slack of every action. */
export class Links {
  readonly simulation: Simulation;
  private readonly out: ReadonlyMap<number, readonly SimulatedMessage[]>;
  private readonly into: ReadonlyMap<number, readonly SimulatedMessage[]>;
  private readonly next: Int32Array;
  private readonly previous: Int32Array;
  private slackCache: Float64Array | undefined;

  constructor(simulation: Simulation) {
    this.simulation = simulation;
    const out = new Map<number, SimulatedMessage[]>();
    const into = new Map<number, SimulatedMessage[]>();
    for (const message of simulation.transfers()) {
      push(out, this.cell({ rank: message.fromRank, slot: message.fromSlot }), message);
      push(into, this.cell({ rank: message.toRank, slot: message.toSlot }), message);
    }
    this.out = out;
    this.into = into;
    const cells = simulation.offsets[simulation.offsets.length - 1]!;
    this.next = new Int32Array(cells).fill(-1);
    this.previous = new Int32Array(cells).fill(-1);
    simulation.schedule.rows.forEach((row, rank) => {
      let last = -1;
      for (let slot = 0; slot < row.length; slot++) {
        if (row[slot] === 0) continue;
        const at = this.cell({ rank, slot });
        this.previous[at] = last;
        if (last >= 0) this.next[last] = at;
        last = at;
      }
    });
  }

  /** What must be over before a cell can start. */
  before(place: CellPlace): WaitLink[] {
    const at = this.cell(place);
    const links = (this.into.get(at) ?? []).map((message) => linkOf(message));
    const previous = this.previous[at]!;
    if (previous >= 0) links.push(rowLink(this.placeOf(previous), place));
    return links;
  }

  /** What can only start when a cell is over. */
  after(place: CellPlace): WaitLink[] {
    const at = this.cell(place);
    const links = (this.out.get(at) ?? []).map((message) => linkOf(message));
    const next = this.next[at]!;
    if (next >= 0) links.push(rowLink(place, this.placeOf(next)));
    return links;
  }

  /** How much later a cell could end without making the step longer; 0: it is critical. */
  slack(place: CellPlace): number {
    return this.slacks()[this.cell(place)]!;
  }

  /** The slack of every cell, in the order of the simulation's columns; bubbles have none. */
  slacks(): Float64Array {
    if (this.slackCache !== undefined) return this.slackCache;
    const { start, end, makespan } = this.simulation;
    const latest = new Float64Array(end.length).fill(makespan); // latest end
    // A cell never starts before what it waits for, so cells in the reverse order of their starts are in dependency order.
    const order = Array.from(end.keys()).sort((a, b) => start[b]! - start[a]! || end[b]! - end[a]!);
    for (const at of order) {
      let limit = makespan;
      const next = this.next[at]!;
      const begin = (cell: number): number => latest[cell]! - (end[cell]! - start[cell]!);
      if (next >= 0) limit = Math.min(limit, begin(next));
      for (const message of this.out.get(at) ?? [])
        limit = Math.min(
          limit,
          begin(this.cell({ rank: message.toRank, slot: message.toSlot })) - (message.arrival - message.departure),
        );
      latest[at] = limit;
    }
    this.slackCache = latest.map((value, at) => clean(value - end[at]!, makespan));
    return this.slackCache;
  }

  private cell({ rank, slot }: CellPlace): number {
    return this.simulation.offsets[rank]! + slot;
  }

  private placeOf(cell: number): CellPlace {
    const { offsets } = this.simulation;
    let rank = 0;
    while (offsets[rank + 1]! <= cell) rank++;
    return { rank, slot: cell - offsets[rank]! };
  }
}

/** Rounding of sums is not slack. */
function clean(value: number, scale: number): number {
  return Math.abs(value) <= scale * 1e-12 ? 0 : value;
}

function linkOf(message: SimulatedMessage): WaitLink {
  return {
    from: { rank: message.fromRank, slot: message.fromSlot },
    to: { rank: message.toRank, slot: message.toSlot },
    delay: message.arrival - message.departure,
    message: true,
    backward: message.backward,
  };
}

function rowLink(from: CellPlace, to: CellPlace): WaitLink {
  return { from, to, delay: 0, message: false, backward: false };
}

function push<T>(into: Map<number, T[]>, key: number, value: T): void {
  const list = into.get(key);
  if (list === undefined) into.set(key, [value]);
  else list.push(value);
}
