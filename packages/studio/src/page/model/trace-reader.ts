/**
 * @file Traces of PyTorch's profiler, and of ours, as recorded steps: ranges named after actions (`PP:2F0`, `2F0`), one file
 * for each rank or one for all.
 */
import { type Action, formatAction, isComputeOp, parseAction, Schedule, ScheduleError } from '@pipewright/schedule';

/** One action that a trace shows. */
export interface TracedAction {
  readonly rank: number;
  readonly action: Action;
  /** Milliseconds from the first action of its file. */
  readonly start: number;
  readonly end: number;
}

/** What was found in a trace. */
export interface ReadTrace {
  /** The order in which the actions ran, one step. */
  readonly schedule: Schedule;
  /** By step, then in order of start. */
  readonly steps: readonly (readonly TracedAction[])[];
  /** Events that are no actions of a pipeline. */
  readonly passedOver: number;
  /** Whether the files of different ranks were put on one clock by a guess. */
  readonly aligned: boolean;
}

interface TraceEvent {
  readonly name?: unknown;
  readonly ph?: unknown;
  readonly ts?: unknown;
  readonly dur?: unknown;
  readonly pid?: unknown;
  readonly tid?: unknown;
}

const actionName = /^(?:PP:)?\(?\d+(?:F|I|W|B|UNSHARD|RESHARD|REDUCE_GRAD|SEND_F|RECV_F|SEND_B|RECV_B)\d*/;

/** Reads one or several trace files of one run. */
export function readTraces(texts: readonly string[]): ReadTrace {
  const found: TracedAction[] = [];
  let passedOver = 0;
  let clocks = 0;
  texts.forEach((text, file) => {
    const { events, rank } = parseTrace(text);
    const own: TracedAction[] = [];
    const pids = new Map<string, number>();
    for (const event of events) {
      const { name, ts, dur, ph, pid } = event;
      if (ph !== 'X' || typeof name !== 'string' || !actionName.test(name)) {
        passedOver++;
        continue;
      }
      if (typeof ts !== 'number' || typeof dur !== 'number' || !Number.isFinite(ts) || !(dur >= 0)) {
        passedOver++;
        continue;
      }
      let action: Action | null;
      try {
        action = parseAction(name.replace(/^PP:/, ''));
      } catch {
        passedOver++;
        continue;
      }
      if (action === null) continue;
      const key = String(pid);
      if (!pids.has(key)) pids.set(key, pids.size);
      const which = rank ?? (texts.length > 1 ? file : typeof pid === 'number' && pid < 4096 ? pid : pids.get(key)!);
      own.push({ rank: which, action, start: ts / 1000, end: (ts + dur) / 1000 });
    }
    if (own.length > 0) clocks++;
    found.push(...own);
  });
  if (found.length === 0)
    throw new ScheduleError(
      'BAD_JSON',
      'There is no action of a pipeline in this trace: looked for ranges such as PP:2F0 (PyTorch names them so when a schedule runs under its profiler)',
    );
  const begin = found.reduce((least, { start }) => Math.min(least, start), Number.POSITIVE_INFINITY);
  const shifted = found.map((one) => ({ ...one, start: one.start - begin, end: one.end - begin }));
  const steps = intoSteps(shifted);
  return { schedule: scheduleOf(steps[0] as readonly TracedAction[]), steps, passedOver, aligned: clocks > 1 };
}

function parseTrace(text: string): { events: readonly TraceEvent[]; rank: number | null } {
  let data: unknown;
  try {
    data = JSON.parse(text);
  } catch (cause) {
    throw new ScheduleError('BAD_JSON', `This is not a trace: not JSON (${(cause as Error).message})`);
  }
  const events = Array.isArray(data) ? data : (data as { traceEvents?: unknown } | null)?.traceEvents;
  if (!Array.isArray(events))
    throw new ScheduleError('BAD_JSON', 'This is not a trace: there is no list traceEvents in it');
  const rank = (data as { distributedInfo?: { rank?: unknown } }).distributedInfo?.rank;
  return {
    events: events.filter((event): event is TraceEvent => typeof event === 'object' && event !== null),
    rank: typeof rank === 'number' && Number.isInteger(rank) && rank >= 0 && rank < 4096 ? rank : null,
  };
}

/** Cuts a run into steps: a step ends where a rank is about to repeat an action. */
function intoSteps(actions: readonly TracedAction[]): TracedAction[][] {
  const steps: TracedAction[][] = [];
  const seen = new Map<string, number>();
  for (const one of actions.toSorted((a, b) => a.start - b.start)) {
    const key = `${one.rank} ${formatAction(one.action)}`;
    const step = seen.get(key) ?? 0;
    seen.set(key, step + 1);
    (steps[step] ??= []).push(one);
  }
  return steps;
}

function scheduleOf(step: readonly TracedAction[]): Schedule {
  const ranks = step.reduce((most, { rank }) => Math.max(most, rank), 0) + 1;
  const order: Action[][] = Array.from({ length: ranks }, () => []);
  const stageToRank: number[] = [];
  for (const { rank, action } of step) {
    order[rank]!.push(action);
    if (action.parts === null && isComputeOp(action.kind)) stageToRank[action.stage] ??= rank;
  }
  const placed = Array.from(stageToRank, (rank) => rank ?? 0);
  return Schedule.from({ name: 'trace', ranks, ...(placed.length === 0 ? {} : { stageToRank: placed }), order });
}
