/** @file A recorded step in the shape of a simulated one, so that everything that draws or measures the one takes the other. */

import { type Action, formatAction } from '../model/action.ts';
import { Code, wordCode } from '../model/packed.ts';
import { Schedule } from '../model/schedule.ts';
import { simulate } from '../simulate/simulate.ts';
import { Simulation } from '../simulate/simulation.ts';
import type { Messages, Timing } from '../simulate/timing.ts';
import { meanCosts } from './mean-costs.ts';
import {
  type RecordedAction,
  type Recording,
  recordedActions,
  recordedSchedule,
  recordedStepAt,
  workBegin,
} from './recording.ts';

/**
 * A recorded step with its times, in milliseconds from its beginning: it draws, and has a bubble rate and a critical path,
 * like a simulated step. It begins with its first computation: ranks that came earlier, because the step before had ended for
 * them, waited. Waiting is idle time. Of an evaluation there are only the forwards.
 * @example console.log(renderTimeline(recordedSimulation(recording)))
 */
export function recordedSimulation(recording: Recording, at: number = -1): Simulation {
  const whole = recordedSchedule(recording);
  const step = recordedStepAt(recording, at);
  const recorded = new Map<string, RecordedAction[]>();
  const events = recordedActions(recording, at);
  for (const event of events) {
    const events = recorded.get(formatAction(event.action));
    if (events === undefined) recorded.set(formatAction(event.action), [event]);
    else events.push(event);
  }
  const isForward =
    !step.training && whole.order.some((row) => row.some((cell) => cell?.kind === 'B' || cell?.kind === 'W'));
  const schedule = isForward ? forwardsOf(whole) : whole;
  const planned = simulate(schedule, meanCosts(recording));
  const zero = workBegin(events) ?? Math.min(...step.ranks.map((record) => record.begin));
  return new Simulation(schedule, planned.costs, new RecordedTimes(planned, recorded, zero).timing());
}

/** The forwards of an order and their messages. */
function forwardsOf(schedule: Schedule): Schedule {
  const { name, ranks, stages, microbatches, stageToRank, edges } = schedule;
  const isForward = ({ kind }: Action): boolean => kind === 'F' || kind === 'SEND_F' || kind === 'RECV_F';
  const order = schedule.order.map((row) =>
    row.flatMap((cell) => (cell === null ? [] : (cell.parts ?? [cell]))).filter(isForward),
  );
  return Schedule.from({ name, ranks, stages, microbatches, stageToRank, ...(edges === null ? {} : { edges }), order });
}

/** Fills the columns of a simulated step with recorded times. */
class RecordedTimes {
  private readonly planned: Simulation;
  /** By the text of the action, in the order of the row: a stage may be unsharded and resharded several times. */
  private readonly recorded: ReadonlyMap<string, readonly RecordedAction[]>;
  /** How many of them have been placed. */
  private readonly placed: Map<string, number> = new Map();
  /** When the step began. */
  private readonly zero: number;
  private readonly start: Float64Array;
  private readonly end: Float64Array;
  private readonly partTimes: Map<number, Float64Array> = new Map();

  constructor(planned: Simulation, recorded: ReadonlyMap<string, readonly RecordedAction[]>, zero: number) {
    this.planned = planned;
    this.recorded = recorded;
    this.zero = zero;
    this.start = new Float64Array(planned.start.length);
    this.end = new Float64Array(planned.end.length);
  }

  timing(): Timing {
    this.planned.schedule.order.forEach((row, rank) => {
      row.forEach((cell, slot) => {
        if (cell !== null) this.place(cell, this.planned.offsets[rank]! + slot);
      });
    });
    const messages = this.messages();
    const { start, end, partTimes } = this;
    return { offsets: this.planned.offsets, start, end, cause: this.causes(), messages, partTimes, issued: new Map() };
  }

  private place(action: Action, at: number): void {
    const parts = (action.parts ?? []).flatMap((part) => this.timesOf(part) ?? []);
    if (parts.length > 0) this.partTimes.set(at, Float64Array.from(parts));
    const times = parts.length > 0 ? parts : (this.timesOf(action) ?? [0, 0]);
    this.start[at] = Math.min(...times); // parts may have run side by side
    this.end[at] = Math.max(...times);
  }

  private timesOf(action: Action): [number, number] | undefined {
    const text = formatAction(action);
    const placed = this.placed.get(text) ?? 0;
    this.placed.set(text, placed + 1);
    const event = this.recorded.get(text)?.[placed];
    return event === undefined ? undefined : [this.time(event.start), this.time(event.end)];
  }

  /** From the beginning of the step; a rank that came earlier only waited until then. */
  private time(recorded: number): number {
    return Math.max(0, recorded - this.zero);
  }

  /** Messages leave when their send begins and are there when they are taken. */
  private messages(): Messages {
    const { graph, senders } = this.planned.messages;
    const { microbatches } = this.planned.schedule;
    const departures = new Float64Array(senders.length).fill(Number.NaN);
    const arrivals = new Float64Array(senders.length).fill(Number.NaN);
    senders.forEach((sender, key) => {
      if (sender < 0) return;
      const backward = key >= graph.edgeCount * microbatches;
      const edge = Math.floor(key / microbatches) - (backward ? graph.edgeCount : 0);
      const receiver = backward ? graph.from[edge]! : graph.to[edge]!;
      const received = this.recorded.get(`${receiver}${backward ? 'RECV_B' : 'RECV_F'}${key % microbatches}`)?.[0];
      departures[key] = this.start[sender]!;
      arrivals[key] = received === undefined ? this.end[sender]! : this.time(received.end);
    });
    return { graph, departures, arrivals, senders };
  }

  /** What each compute action started after: its message, where it waited for one that was sent while it did; else the one before it. */
  private causes(): Int32Array {
    const { schedule, offsets } = this.planned;
    const cause = new Int32Array(this.start.length).fill(-1);
    for (let rank = 0; rank < schedule.ranks; rank++) {
      let before = -1;
      for (let at = offsets[rank]!; at < offsets[rank + 1]!; at++) {
        const code = wordCode(schedule.rows[rank]![at - offsets[rank]!]!);
        if (code === Code.Bubble || code === Code.RecvF || code === Code.RecvB) continue;
        cause[at] = this.senderOf(schedule.order[rank]![at - offsets[rank]!]!, before) ?? before;
        before = at;
      }
    }
    return cause;
  }

  /** The cell that sent what an action waited for, if it was sent after the action before had ended. */
  private senderOf(action: Action, before: number): number | undefined {
    const first = action.parts?.[0] ?? action;
    const backward = first.kind === 'B' || first.kind === 'I';
    if (!backward && first.kind !== 'F') return undefined;
    const { graph, senders } = this.planned.messages;
    const { microbatches } = this.planned.schedule;
    const starts = backward ? graph.outputStart : graph.inputStart;
    const list = backward ? graph.outEdges : graph.inEdges;
    let latest: number | undefined;
    for (let i = starts[first.stage]!; i < starts[first.stage + 1]!; i++) {
      const key = ((backward ? graph.edgeCount : 0) + list[i]!) * microbatches + (first.microbatch ?? 0);
      const sender = senders[key]!;
      if (sender < 0 || graph.crosses[list[i]!] === 0) continue;
      if (before >= 0 && this.end[sender]! <= this.end[before]!) continue;
      if (latest === undefined || this.end[sender]! > this.end[latest]!) latest = sender;
    }
    return latest;
  }
}
