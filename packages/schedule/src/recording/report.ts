/** @file A recorded run in words and numbers: the plan beside what happened. */

import { percent, plural, quantity } from '../draw/quantity.ts';
import { renderTimeline } from '../draw/timeline.ts';
import { isComputeOp } from '../model/action.ts';
import type { Schedule } from '../model/schedule.ts';
import { simulate } from '../simulate/simulate.ts';
import type { Simulation } from '../simulate/simulation.ts';
import { meanCosts } from './mean-costs.ts';
import {
  actionsOfRank,
  type RecordedAction,
  type RecordedStep,
  type Recording,
  recordedPlaces,
  recordedSchedule,
  steadySteps,
  workBegin,
} from './recording.ts';
import { recordedSimulation } from './simulation.ts';

/** The numbers of a recorded run; times are milliseconds, means over the steps that count. */
export interface RecordingSummary {
  /** Steps that count: without the first one, which warms up. */
  readonly steps: number;
  /** One step as the schedule makes it with the recorded durations, and as it was. */
  readonly planned: { readonly step: number; readonly bubble: number };
  readonly recorded: { readonly step: number; readonly bubble: number };
  /** From the first step to the last, time between steps included. */
  readonly stepsPerSecond: number;
  readonly tokensPerSecond: number | null;
  /** Time of a step by stage: forwards, backwards and both. */
  readonly stages: readonly { readonly forward: number; readonly backward: number; readonly busy: number }[];
  readonly slowestStage: number;
  /** Shares of a step by rank. */
  readonly ranks: readonly {
    readonly busy: number;
    readonly waiting: number;
    readonly sending: number;
    /** Most tensors alive. */
    readonly peakTensors: number;
    readonly peakProcessBytes: number;
    readonly peakDeviceBytes: number | null;
  }[];
  /** Messages of a step. */
  readonly messages: { readonly count: number; readonly bytes: number };
}

/**
 * The numbers of a recorded run.
 * @example recordingSummary(recording).recorded.bubble // 0.31
 */
export function recordingSummary(recording: Recording): RecordingSummary {
  const schedule = recordedSchedule(recording);
  const steps = steadySteps(recording);
  const planned = simulate(schedule, meanCosts(recording));
  const recorded = steps.map((step) => recordedSimulation(recording, recording.steps.indexOf(step)));
  const span = mean(recorded.map((step) => step.makespan));
  const work = new MeanStep(schedule, steps);
  const stages = Array.from({ length: schedule.stages }, (_, stage) => {
    const of = (...kinds: string[]): number =>
      work.time(({ action }) => action.stage === stage && kinds.includes(action.kind));
    const [forward, backward] = [of('F'), of('B', 'I', 'W')];
    return { forward, backward, busy: forward + backward };
  });
  const ranks = recording.ranks.map(({ peakProcessBytes, peakDeviceBytes }, rank) => {
    const share = (time: number): number => (span > 0 ? time / span : 0);
    const shareOf = (which: (event: RecordedAction) => boolean): number =>
      share(work.time((event) => event.rank === rank && which(event)));
    return {
      busy: shareOf(({ action }) => isComputeOp(action.kind)) - share(work.sentWithinBackwards(rank)),
      waiting: shareOf(isReceive),
      sending: shareOf(({ action }) => action.kind.startsWith('SEND')),
      peakTensors: Math.max(0, ...recording.steps.flatMap((step) => [...step.ranks[rank]!.tensors])),
      peakProcessBytes,
      peakDeviceBytes,
    };
  });
  const stepsPerSecond = ratePerSecond(recording.steps, steps);
  return {
    steps: steps.length,
    planned: { step: planned.makespan, bubble: planned.bubble.makespan },
    recorded: { step: span, bubble: mean(recorded.map((step) => step.bubble.makespan)) },
    stepsPerSecond,
    tokensPerSecond: recording.tokensPerStep === null ? null : recording.tokensPerStep * stepsPerSecond,
    stages,
    slowestStage: stages.reduce((slowest, { busy }, stage) => (busy > stages[slowest]!.busy ? stage : slowest), 0),
    ranks,
    messages: { count: work.total(isReceive, () => 1), bytes: work.total(isReceive, ({ bytes }) => bytes) },
  };
}

/** The actions of several recorded steps, added up over the mean step. */
class MeanStep {
  /** By step and rank. */
  private readonly events: readonly (readonly (readonly RecordedAction[])[])[];
  private readonly perStep: number;

  constructor(schedule: Schedule, steps: readonly RecordedStep[]) {
    const places = schedule.order.map((row) => recordedPlaces(row));
    this.perStep = 1 / Math.max(1, steps.length);
    this.events = steps.map((step) => {
      const ofRanks = step.ranks.map((record, rank) => actionsOfRank(places[rank]!, record, rank));
      const begin = workBegin(ofRanks.flat()) ?? Number.NEGATIVE_INFINITY;
      // A wait that began before the step, for a rank that was still busy with the step before, counts from the step's begin.
      const later = (event: RecordedAction): RecordedAction =>
        event.start < begin ? { ...event, start: begin, end: Math.max(begin, event.end) } : event;
      return ofRanks.map((ofRank) => ofRank.map(later));
    });
  }

  /** A sum over the actions chosen. */
  total(which: (event: RecordedAction) => boolean, of: (event: RecordedAction) => number): number {
    const chosen = this.events.flat(2).filter(which);
    return chosen.reduce((sum, event) => sum + of(event), 0) * this.perStep;
  }

  /** The time of the actions chosen. */
  time(which: (event: RecordedAction) => boolean): number {
    return this.total(which, ({ start, end }) => end - start);
  }

  /** The time that a rank sent gradients in while their backwards went on. */
  sentWithinBackwards(rank: number): number {
    return this.events.reduce((sum, ofRanks) => sum + sentWithinBackwards(ofRanks[rank]!), 0) * this.perStep;
  }
}

function isReceive({ action }: RecordedAction): boolean {
  return action.kind.startsWith('RECV');
}

/** Steps by the time from the first one's beginning to the last one's end; evaluations between them are not counted. */
function ratePerSecond(all: readonly RecordedStep[], steps: readonly RecordedStep[]): number {
  const beginOf = (step: RecordedStep): number => Math.min(...step.ranks.map((record) => record.begin));
  const endOf = (step: RecordedStep): number => Math.max(...step.ranks.map((record) => record.end));
  const [first, last] = [steps[0], steps[steps.length - 1]];
  if (first === undefined || last === undefined) return 0;
  const between = all.filter((step) => !steps.includes(step) && step.step > first.step && step.step < last.step);
  const time = endOf(last) - beginOf(first) - between.reduce((sum, step) => sum + endOf(step) - beginOf(step), 0);
  return time > 0 ? (1000 * steps.length) / time : 0;
}

/** How `recordingReport` writes. */
export interface ReportOptions {
  /** Characters per line of the pictures; default 100. */
  readonly width?: number;
  readonly color?: boolean;
}

/**
 * A recorded run as text: plan and recording side by side, stages, ranks, and both timelines.
 * @example console.log(recordingReport(recording))
 */
export function recordingReport(recording: Recording, options: ReportOptions = {}): string {
  const schedule = recordedSchedule(recording);
  const summary = recordingSummary(recording);
  const { planned, recorded, stages, slowestStage, ranks, messages } = summary;
  const shape = `${plural(schedule.ranks, 'rank')}, ${plural(schedule.stages, 'stage')}, ${plural(schedule.microbatches, 'microbatch', 'microbatches')}`;
  const all = recording.steps.length;
  const steps = all === summary.steps ? plural(all, 'step') : `${summary.steps} of ${plural(all, 'step')}`;
  const sumOfStages = stages.reduce((sum, { busy }) => sum + busy, 0);
  const ratio = sumOfStages > 0 ? (stages[slowestStage]!.busy * stages.length) / sumOfStages : 1;
  const processes = new Set(recording.ranks.map((rank) => rank.process)).size;
  return [
    `${schedule.name}: ${shape}; recorded over ${steps}, times in ms`,
    '',
    table([
      ['', 'planned', 'recorded'],
      ['one step', ms(planned.step), ms(recorded.step)],
      ['bubble', percent(planned.bubble), percent(recorded.bubble)],
    ]),
    '',
    table([
      ['stage', 'rank', 'forwards', 'backwards', 'together'],
      ...stages.map(({ forward, backward, busy }, stage) => [
        String(stage),
        String(schedule.stageToRank[stage]),
        ms(forward),
        ms(backward),
        ms(busy),
        ...(stage === slowestStage && stages.length > 1 ? [`slowest: ${ratio.toFixed(2)} times the mean`] : []),
      ]),
    ]),
    '',
    table([
      ['rank', 'busy', 'waiting', 'sending', 'tensors', 'memory'],
      ...ranks.map(({ busy, waiting, sending, peakTensors, peakProcessBytes, peakDeviceBytes }, rank) => [
        String(rank),
        percent(busy),
        percent(waiting),
        percent(sending),
        String(peakTensors),
        bytes(peakDeviceBytes ?? peakProcessBytes),
        ...(peakDeviceBytes === null && processes < ranks.length ? ['of its process'] : []),
      ]),
    ]),
    '',
    [
      ...(summary.tokensPerSecond === null
        ? []
        : [`${Math.round(summary.tokensPerSecond).toLocaleString('en')} tokens/s`]),
      `${quantity(Number(summary.stepsPerSecond.toPrecision(3)))} steps/s`,
      `${plural(Math.round(messages.count), 'message')} of ${bytes(messages.bytes)} together in a step`,
    ].join(', '),
    '',
    `Planned, with the recorded durations:`,
    picture(simulate(schedule, meanCosts(recording)), options),
    `Recorded, ${describe(typicalStep(recording))}:`,
    picture(recordedSimulation(recording, recording.steps.indexOf(typicalStep(recording))), options),
  ].join('\n');
}

/**
 * The step whose length is in the middle: the one to draw.
 * @example recordedSimulation(recording, recording.steps.indexOf(typicalStep(recording)))
 */
export function typicalStep(recording: Recording): RecordedStep {
  recordedSchedule(recording);
  const length = ({ ranks }: RecordedStep): number =>
    Math.max(...ranks.map((record) => record.end)) - Math.min(...ranks.map((record) => record.begin));
  const sorted = [...steadySteps(recording)].sort((a, b) => length(a) - length(b));
  return sorted[Math.floor((sorted.length - 1) / 2)]!;
}

function describe({ step, training }: RecordedStep): string {
  return `${training ? 'step' : 'evaluation'} ${step}`;
}

function picture(simulation: Simulation, { width, color }: ReportOptions): string {
  const options = {
    legend: false,
    ...(width === undefined ? {} : { width }),
    ...(color === undefined ? {} : { color }),
  };
  return renderTimeline(simulation, options);
}

function mean(values: readonly number[]): number {
  return values.length === 0 ? 0 : values.reduce((sum, value) => sum + value, 0) / values.length;
}

function ms(time: number): string {
  return time.toFixed(2);
}

/** Bytes as people read them. */
function bytes(count: number): string {
  const units = ['B', 'kB', 'MB', 'GB'];
  let [value, unit] = [count, 0];
  while (value >= 1000 && unit < units.length - 1) [value, unit] = [value / 1000, unit + 1];
  return `${quantity(Number(value.toPrecision(3)))} ${units[unit]}`;
}

/** Columns to the right, except the first where it has words and what stands beyond the header. */
function table(rows: readonly (readonly string[])[]): string {
  const columns = rows[0]!.length;
  const widths = Array.from({ length: columns }, (_, i) => Math.max(...rows.map((row) => (row[i] ?? '').length)));
  const left = rows[0]![0] === '';
  return rows
    .map((row) => {
      const cells = row.map((cell, i) =>
        i >= columns ? cell : i === 0 && left ? cell.padEnd(widths[i]!) : cell.padStart(widths[i]!),
      );
      return `  ${cells.join('  ')}`.trimEnd();
    })
    .join('\n');
}

/** Time of the sends that were done in the middle of a backward: it is no computing. */
function sentWithinBackwards(events: readonly RecordedAction[]): number {
  let sum = 0;
  let free = 0;
  for (const { action, start, end } of events) {
    if (action.kind === 'B') free = end;
    else if (action.kind === 'SEND_B' && start < free) sum += end - start;
  }
  return sum;
}
