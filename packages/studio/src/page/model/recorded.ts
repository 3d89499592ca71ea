/** @file Recorded steps as pictures: from our recordings, and from traces. */
import {
  type Action,
  type Bars,
  computationVisuals,
  meanCosts,
  type Picture,
  type PipelinePlan,
  pictureOf,
  type Recording,
  recordedSimulation,
  type Schedule,
  ScheduleError,
  simulate,
} from '@pipewright/schedule';
import { type Lanes, lanesOf } from './lanes.ts';
import { planCostsInMs } from './plan.ts';
import { type ReadTrace, readTraces, type TracedAction } from './trace-reader.ts';

/** One recorded step beside its plan. */
export interface RecordedView {
  readonly recorded: Lanes;
  /** The same order simulated with the costs of a plan, or with the mean recorded durations; null where that cannot be told. */
  readonly planned: Lanes | null;
}

/** A file that was opened: a run of recorded steps. */
export interface OpenedRun {
  readonly name: string;
  readonly schedule: Schedule;
  readonly stepCount: number;
  /** Number of a step as the run counted it. */
  stepNumber(at: number): number;
  view(at: number): RecordedView;
  /** Costs of the sliders, from the recorded means; null for traces without compute. */
  readonly recording: Recording | null;
  readonly note: string | null;
}

/** Opens one of our recordings, or a trace; several texts are the traces of several ranks. */
export function openRun(name: string, texts: readonly string[]): OpenedRun {
  const first = texts[0] ?? '';
  if (texts.length === 1 && /^\s*\{/.test(first) && first.slice(0, 2000).includes('pipewright-recording'))
    return openRecording(name, parse(first));
  return openTrace(name, readTraces(texts));
}

/** A recording as a run that can be looked through; beside the plan it followed, where there is one. */
export function openRecording(name: string, recording: Recording, given: PipelinePlan | null = null): OpenedRun {
  if (!Array.isArray(recording.steps) || recording.steps.length === 0)
    throw new ScheduleError('BAD_JSON', 'The recording has no steps; record at least one');
  const first = recordedSimulation(recording, 0);
  const plan = planOf(first.schedule, recording, given);
  return {
    name,
    schedule: first.schedule,
    stepCount: recording.steps.length,
    stepNumber: (at) => recording.steps[at]?.step ?? at,
    view: (at) => ({ recorded: lanesOf(pictureOf(recordedSimulation(recording, at))), planned: plan }),
    recording,
    note: null,
  };
}

function planOf(schedule: Schedule, recording: Recording, given: PipelinePlan | null): Lanes | null {
  const isPlans = given !== null && given.ranks === schedule.ranks && given.stages === schedule.stages;
  try {
    return lanesOf(pictureOf(simulate(schedule, isPlans ? planCostsInMs(given) : meanCosts(recording))));
  } catch (error) {
    if (error instanceof ScheduleError) return null;
    throw error;
  }
}

function openTrace(name: string, trace: ReadTrace): OpenedRun {
  return {
    name,
    schedule: trace.schedule,
    stepCount: trace.steps.length,
    stepNumber: (at) => at,
    view: (at) => ({
      recorded: lanesOf(pictureOfActions(trace.schedule, trace.steps[at]!)),
      planned: null,
    }),
    recording: null,
    note: trace.aligned
      ? 'These are the files of several ranks: their clocks are taken as they are, so distances between ranks may be wrong.'
      : null,
  };
}

/** A picture of actions whose times are known, `until` at least; its zero is the first start unless `until` is given. */
export function pictureOfActions(schedule: Schedule, actions: readonly TracedAction[], until?: number): Picture {
  const place = new Map<string, number>();
  schedule.order.forEach((row, rank) =>
    row.forEach((action, slot) => {
      if (action !== null) place.set(keyOf(rank, action), slot);
    }),
  );
  const slotOf = ({ rank, action, slot }: TracedAction): number | undefined => slot ?? place.get(keyOf(rank, action));
  const known = actions.filter((one) => slotOf(one) !== undefined);
  const first = known.reduce((least, { start }) => Math.min(least, start), Number.POSITIVE_INFINITY);
  const begin = until === undefined ? first : 0;
  const count = known.length;
  const busy = new Float64Array(schedule.ranks);
  const bars: Bars = {
    count,
    rank: Int32Array.from(known, ({ rank }) => rank),
    slot: Int32Array.from(known, (one) => slotOf(one)!),
    start: Float64Array.from(known, ({ start }) => start - begin),
    end: Float64Array.from(known, ({ end }) => end - begin),
    beside: Uint8Array.from(known, ({ action }) => (computationVisuals[action.kind].role === 'compute' ? 0 : 1)),
  };
  for (let i = 0; i < count; i++) if (bars.beside[i] === 0) busy[bars.rank[i]!]! += bars.end[i]! - bars.start[i]!;
  const makespan = bars.end.reduce((most, end) => Math.max(most, end), until ?? 0);
  const mean = busy.reduce((sum, value) => sum + value, 0) / Math.max(1, schedule.ranks);
  const idle = makespan > 0 ? 1 - mean / makespan : 0;
  return {
    schedule,
    makespan,
    bars,
    transferCount: 0,
    transfers: () => [],
    memory: null,
    memoryUnit: '',
    bubble: { span: idle, makespan: idle },
    busy,
  };
}

function keyOf(rank: number, { kind, stage, microbatch, parts }: Action): string {
  return `${rank} ${kind} ${stage} ${microbatch} ${parts?.map((part) => `${part.kind}${part.stage}.${part.microbatch}`).join(';') ?? ''}`;
}

function parse(text: string): Recording {
  try {
    return JSON.parse(text) as Recording;
  } catch (cause) {
    throw new ScheduleError(
      'BAD_JSON',
      `The recording is not JSON (${(cause as Error).message}); is the file complete?`,
    );
  }
}
