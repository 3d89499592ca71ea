/** @file What an action waits for, what waits for it, and how much later it could end without making the step longer. */
import { type Action, formatAction, type SimulatedMessage, type Simulation } from '@pipewright/schedule';

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

/** A wait between two cells: the second begins, or as a receive ends, at least `lag` after the first has ended. */
interface Edge {
  readonly from: number;
  readonly to: number;
  readonly lag: number;
  readonly link: WaitLink;
}

/**
 * Dependencies of a simulated step, with the slack of every action. Compute waits for the action before it in its row and, where
 * messages and collectives are actions, for the receives and the parameters that it needs; these run beside it.
 */
export class Links {
  readonly simulation: Simulation;
  private readonly out: (readonly Edge[] | undefined)[];
  private readonly into: (readonly Edge[] | undefined)[];
  private slackCache: Float64Array | undefined;

  constructor(simulation: Simulation) {
    this.simulation = simulation;
    const cells = simulation.offsets[simulation.offsets.length - 1]!;
    const out = new Array<Edge[] | undefined>(cells);
    const into = new Array<Edge[] | undefined>(cells);
    for (const edge of [...this.messageEdges(), ...this.rowEdges()]) {
      (out[edge.from] ??= []).push(edge);
      (into[edge.to] ??= []).push(edge);
    }
    this.out = out;
    this.into = into;
  }

  /** What must be over before a cell can start. */
  before(place: CellPlace): WaitLink[] {
    return (this.into[this.cell(place)] ?? []).map(({ link }) => link);
  }

  /** What can only start when a cell is over. */
  after(place: CellPlace): WaitLink[] {
    return (this.out[this.cell(place)] ?? []).map(({ link }) => link);
  }

  /** How much later a cell could end without making the step longer; 0: it is critical. */
  slack(place: CellPlace): number {
    return this.slacks()[this.cell(place)]!;
  }

  /** The slack of every cell, in the order of the simulation's columns; bubbles have none. */
  slacks(): Float64Array {
    if (this.slackCache !== undefined) return this.slackCache;
    const { start, end, makespan, schedule, offsets } = this.simulation;
    const latest = new Float64Array(end.length).fill(makespan); // latest end
    const isReceive = new Uint8Array(end.length);
    schedule.order.forEach((row, rank) =>
      row.forEach((action, slot) => {
        if (action?.kind === 'RECV_F' || action?.kind === 'RECV_B') isReceive[offsets[rank]! + slot] = 1;
      }),
    );
    // Every cell once all that wait for it are done; a receive begins to wait at any time.
    const open = Int32Array.from(end, (_, at) => this.out[at]?.length ?? 0);
    const ready = Array.from(open.keys()).filter((at) => open[at] === 0);
    for (let at = ready.pop(); at !== undefined; at = ready.pop()) {
      for (const { to, lag } of this.out[at] ?? []) {
        const begin = isReceive[to] === 1 ? latest[to]! : latest[to]! - (end[to]! - start[to]!);
        latest[at] = Math.min(latest[at]!, begin - lag);
      }
      for (const { from } of this.into[at] ?? []) if (--open[from]! === 0) ready.push(from);
    }
    this.slackCache = latest.map((value, at) => clean(value - end[at]!, makespan));
    return this.slackCache;
  }

  private *messageEdges(): Generator<Edge> {
    const { simulation } = this;
    const { end, schedule } = simulation;
    for (const message of simulation.transfers()) {
      const link = linkOf(message);
      const [from, to] = [this.cell(link.from), this.cell(link.to)];
      // A send takes the time of its message.
      const isSend = schedule.at(link.from.rank, link.from.slot)?.kind.startsWith('SEND') === true;
      yield { from, to, lag: isSend ? message.arrival - end[from]! : link.delay, link };
    }
  }

  private *rowEdges(): Generator<Edge> {
    for (const [rank, row] of this.simulation.schedule.order.entries()) {
      /** Slots of the compute action before, of the collective before, and of what was received and gathered. */
      let compute = -1;
      let collective = -1;
      const there = new Map<string, number>();
      for (const [slot, action] of row.entries()) {
        if (action === null) continue;
        const { kind, stage } = action;
        const needed: number[] = [];
        if (kind === 'RECV_F' || kind === 'RECV_B') there.set(formatAction(action), slot);
        else if (kind === 'SEND_F' || kind === 'SEND_B' || kind === 'RESHARD') needed.push(compute);
        else if (kind === 'UNSHARD' || kind === 'REDUCE_GRAD') {
          needed.push(compute, collective);
          collective = slot;
          if (kind === 'UNSHARD') there.set(String(stage), slot);
        } else {
          needed.push(...neededBy(action).map((name) => there.get(name) ?? -1), compute);
          compute = slot;
        }
        for (const before of new Set(needed)) {
          if (before < 0) continue;
          const [from, to] = [
            { rank, slot: before },
            { rank, slot },
          ];
          yield { from: this.cell(from), to: this.cell(to), lag: 0, link: rowLink(from, to) };
        }
      }
    }
  }

  private cell({ rank, slot }: CellPlace): number {
    return this.simulation.offsets[rank]! + slot;
  }
}

/** What compute needs besides the compute before it: the texts of receives, the numbers of stages whose parameters are gathered. */
function neededBy({ kind, stage, microbatch, parts }: Action): string[] {
  if (parts !== null) return parts.flatMap(neededBy);
  const receive = kind === 'F' ? 'RECV_F' : kind === 'B' || kind === 'I' ? 'RECV_B' : null;
  return [...(receive === null ? [] : [`${stage}${receive}${microbatch}`]), String(stage)];
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
