/** @file One clock for all ranks: threads share one; between processes round trips of messages measure the difference of the clocks. */
import { formatAction, type RankRecord, type Recording, recordedActions, Schedule } from '@pipewright/schedule';
import type { distributed } from '@pipewright/torch';

const ROUNDS = 20;
/** Times are whole nanoseconds, in milliseconds. */
const NANOSECOND = 1e-6;

/**
 * Where this thread's `performance.now()` begins on a clock that all threads of a process share, in milliseconds. Not
 * `performance.timeOrigin`: that is taken from another clock, and a thread may lose its core between the two looks.
 */
export function clockOrigin(): number {
  let best = { trip: Number.POSITIVE_INFINITY, origin: 0 };
  for (let i = 0; i < ROUNDS; i++) {
    const before = performance.now();
    const shared = Number(process.hrtime.bigint()) * NANOSECOND;
    const after = performance.now();
    if (after - before < best.trip) best = { trip: after - before, origin: shared - (before + after) / 2 };
  }
  return best.origin;
}

/** What must be added to this rank's times for times on the clock at the other end of the channel, in milliseconds. */
export function clockOffset(channel: distributed.Channel, tag: number): number {
  let best = { trip: Number.POSITIVE_INFINITY, offset: 0 };
  for (let i = 0; i < ROUNDS; i++) {
    const left = performance.now();
    channel.sendObject(i, tag);
    const there = channel.recvObject<number>(tag);
    const back = performance.now();
    // The shortest trip is the best estimate: its error is at most half of the trip.
    if (back - left < best.trip) best = { trip: back - left, offset: there - (left + back) / 2 };
  }
  return best.offset;
}

/** The other end of `clockOffset`. */
export function serveClock(channel: distributed.Channel, tag: number): void {
  for (let i = 0; i < ROUNDS; i++) {
    channel.recvObject(tag);
    channel.sendObject(performance.now(), tag);
  }
}

/**
 * Moves the times of ranks by as little as it takes for every message to be received after it was sent: it removes what the
 * estimate has left of the clocks' differences.
 */
export function settleClocks(recording: Recording): Recording {
  const ways = tightestWays(recording);
  const shifts = new Array<number>(recording.ranks.length).fill(0);
  for (const _ of recording.ranks) {
    for (const { from, to, slack } of ways) {
      const needed = shifts[from]! - slack;
      // A nanosecond more: what is added to large numbers is rounded.
      if (needed > shifts[to]!) shifts[to] = needed + NANOSECOND;
    }
  }
  if (shifts.every((shift) => shift === 0)) return recording;
  const steps = recording.steps.map((step) => ({
    ...step,
    ranks: step.ranks.map((record, rank) => shiftRecord(record, shifts[rank]!)),
  }));
  return { ...recording, steps };
}

/** Messages from one rank to another, and the least time that one of them took. */
interface Way {
  readonly from: number;
  readonly to: number;
  slack: number;
}

function tightestWays(recording: Recording): Way[] {
  const { stageEdges, stageToRank, microbatches } = Schedule.fromJSON(recording.schedule);
  const ways = new Map<string, Way>();
  recording.steps.forEach((_, at) => {
    const events = new Map(recordedActions(recording, at).map((event) => [formatAction(event.action), event]));
    const note = (sent: string, received: string): void => {
      const [send, receive] = [events.get(sent), events.get(received)];
      if (send === undefined || receive === undefined) return;
      const slack = receive.end - send.start;
      const key = `${send.rank}>${receive.rank}`;
      const way = ways.get(key);
      if (way === undefined) ways.set(key, { from: send.rank, to: receive.rank, slack });
      else way.slack = Math.min(way.slack, slack);
    };
    for (const [from, to] of stageEdges.filter(([a, b]) => stageToRank[a] !== stageToRank[b])) {
      for (let m = 0; m < microbatches; m++) {
        note(`${from}SEND_F${m}`, `${to}RECV_F${m}`);
        note(`${to}SEND_B${m}`, `${from}RECV_B${m}`);
      }
    }
  });
  return [...ways.values()];
}

function shiftRecord(record: RankRecord, by: number): RankRecord {
  const moved = (times: readonly number[]): number[] => times.map((time) => (time < 0 ? time : time + by));
  const { begin, end, start, ready, stop } = record;
  return {
    ...record,
    begin: begin + by,
    end: end + by,
    start: moved(start),
    ready: moved(ready),
    stop: moved(stop),
  };
}
