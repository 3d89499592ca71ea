/**
 * @file Traces of PyTorch's profiler, and of ours, as recorded steps: ranges named after actions (`PP:2F0`, `2F0`), one file
 * for each rank or one for all.
 */
import { type Action, formatAction, isComputeOp, parseAction, Schedule, ScheduleError } from '@pipewright/schedule';

/** One action that a trace shows. */
export interface TracedAction {
  readonly rank: number;
  readonly action: Action;
  /** Where it is in the rank's row, if that is known. */
  readonly slot?: number;
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
  readonly cat?: unknown;
  readonly tid?: unknown;
}

/** PyTorch's GPipe names its actions without their stage, which is that of the rank. */
const gpipeName = /^(Forward|Backward) (\d{1,6})$/;
/** Ranges as they ran on a GPU: where there are any, those of the processor only say when work was handed over. */
const deviceRanges = 'gpu_user_annotation';
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
    const ranges = events.filter(({ ph, name }) => ph === 'X' && typeof name === 'string' && isActionName(name));
    const onDevice = ranges.filter(({ cat }) => cat === deviceRanges);
    const used = onDevice.length > 0 ? onDevice : ranges;
    passedOver += events.length - used.length;
    for (const { name, ts, dur, pid } of used) {
      const key = String(pid);
      if (!pids.has(key)) pids.set(key, pids.size);
      const which = rank ?? (texts.length > 1 ? file : typeof pid === 'number' && pid < 4096 ? pid : pids.get(key)!);
      const action = actionOf(name as string, which);
      if (action === null || typeof ts !== 'number' || typeof dur !== 'number' || !Number.isFinite(ts) || !(dur >= 0)) {
        passedOver++;
        continue;
      }
      own.push({ rank: which, action, start: ts / 1000, end: (ts + dur) / 1000 });
    }
    if (own.length > 0) clocks++;
    for (const one of own) found.push(one); // more than one call takes as arguments
  });
  if (found.length === 0)
    throw new ScheduleError(
      'BAD_JSON',
      'There is no action of a pipeline in this trace: looked for ranges such as PP:2F0 (as PyTorch names those of schedules with several stages per rank) and Forward 0 (those of its GPipe; its 1F1B names none)',
    );
  const begin = found.reduce((least, { start }) => Math.min(least, start), Number.POSITIVE_INFINITY);
  const shifted = found.map((one) => ({ ...one, start: one.start - begin, end: one.end - begin }));
  const steps = intoSteps(shifted);
  return { schedule: scheduleOf(steps[0] as readonly TracedAction[]), steps, passedOver, aligned: clocks > 1 };
}

function isActionName(name: string): boolean {
  return actionName.test(name) || gpipeName.test(name);
}

/** The action that a range is named after; null where it is none. */
function actionOf(name: string, rank: number): Action | null {
  const gpipe = gpipeName.exec(name);
  try {
    if (gpipe !== null) return parseAction(`${rank}${gpipe[1] === 'Forward' ? 'F' : 'B'}${gpipe[2]}`);
    return parseAction(name.replace(/^PP:/, ''));
  } catch {
    return null;
  }
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
