/**
 * @file The recorder: when every action of a rank began and ended, how long it waited for its message, what it sent and
 * received, and what memory was in use. For each action it only stores a few numbers into an array that was made beforehand.
 */
import { resolve } from 'node:path';
import {
  type RecordedAction,
  type Recording,
  type ReportOptions,
  recordedActions,
  recordingReport,
  recordingTrace,
  type Schedule,
} from '@pipewright/schedule';
import { cuda, type distributed, liveTensors, Tensor } from '@pipewright/torch';
import { writeFile } from '@pipewright/torch/files';
import { checkCount, checkOptions } from '../base/checks.ts';
import { PipelineError } from '../base/errors.ts';
import { tensorsIn } from '../base/tree.ts';
import type { Waited } from '../base/waited.ts';
import { BusyTimes } from './busy-times.ts';
import { clockOrigin, settleClocks } from './clock.ts';
import { GpuClock } from './gpu-clock.ts';
import { type CountedStage, HeldBytes } from './held-bytes.ts';
import { LIVE_FOLDER, LiveFeed, type StepDetails } from './live-feed.ts';
import { COLUMNS, Column, gatherParts, processName, type RankPart, recordingOf, thisMachine } from './parts.ts';
import { StepProgress } from './step-progress.ts';

/** What a recorder keeps. */
export interface RecorderOptions {
  /** How many steps are kept: the last ones. Default 100. */
  readonly steps?: number | undefined;
  /** Tokens of a whole step, for tokens per second. */
  readonly tokensPerStep?: number | undefined;
}

/** What a recorder watches. */
export interface RecordedRuntime {
  readonly schedule: Schedule;
  readonly group: distributed.ProcessGroup | null;
  /** Where the stages compute. */
  readonly device: string;
  /** Number of entries: actions, and parts of overlapped ones. */
  readonly actions: number;
  /** The stages of this rank, whose gradients do not count as activations; if left out, they do. */
  readonly stages?: readonly CountedStage[];
  /** Whether there are replicas or shards beside the pipeline. */
  readonly isParallel?: boolean;
  /** Whether this rank reports while it runs: of several replicas only the first does. Default true. */
  readonly isFollowed?: boolean;
}

/** This rank's part of a step, in short. */
export interface StepTimes {
  /** Its number, from 0. */
  readonly step: number;
  readonly seconds: number;
  /** Share of it in which this rank waited for messages, 0 to 1. */
  readonly waiting: number;
}

/** One kept step of this rank. */
class StepRecord {
  readonly data: Float64Array;
  step = 0;
  training = false;
  begin = 0;
  end = -1;
  processBytes = 0;
  deviceBytes: number | null = null;
  heldBytes: number | null = null;

  constructor(actions: number) {
    this.data = new Float64Array(actions * COLUMNS);
  }
}

/**
 * Records the steps of a runtime. All ranks make one; `gather`, `writeTrace` and `report` are called by all ranks together
 * and give their result on rank 0.
 *
 * @example const recorder = new Recorder(); new PipelineRuntime(stage, '1F1B', { microbatches: 8, lossFn, record: recorder })
 */
export class Recorder {
  private readonly limit: number;
  private readonly tokensPerStep: number | null;
  private watched: RecordedRuntime | null = null;
  private gpu: GpuClock | null = null;
  private live: LiveFeed | null = null;
  private progress: StepProgress | null = null;
  private held: HeldBytes | null = null;
  private busy: BusyTimes | null = null;
  /** Whether only the steps are recorded that the live view shows. */
  private onlyWatched = false;
  /** Whether the actions of the step under way are recorded, and whether they are reported to the live view. */
  private isOn = true;
  private tells = false;
  private training = false;
  private begun = 0;
  /** Kept steps; the oldest is overwritten once there are enough. */
  private readonly records: StepRecord[] = [];
  private steps = 0;
  /** How many of them are evaluations, and the number of the one under way among those of its kind. */
  private evaluations = 0;
  private number = 0;
  private record: StepRecord | null = null;
  private data: Float64Array = new Float64Array(0);
  private current = 0;
  /** Bytes of this process when they were last reported, and when that was. */
  private bytes = 0;
  private bytesAt = Number.NEGATIVE_INFINITY;
  private gathered: { readonly steps: number; readonly recording: Recording | null } | null = null;

  constructor(options: RecorderOptions = {}) {
    checkOptions('Recorder', options, ['steps', 'tokensPerStep']);
    this.limit = checkCount('Recorder', 'steps', options.steps ?? 100);
    this.tokensPerStep =
      options.tokensPerStep === undefined ? null : checkCount('Recorder', 'tokensPerStep', options.tokensPerStep);
  }

  /** The recorder of a run that is watched but not recorded: it records only the steps that the live view shows. */
  static forWatching(): Recorder {
    const recorder = new Recorder({ steps: 2 });
    recorder.onlyWatched = true;
    return recorder;
  }

  // --- what the runtime calls ----------------------------------------------------------------------------------------

  /** Begins to watch a runtime; once. */
  attach(runtime: RecordedRuntime): void {
    if (this.watched !== null)
      throw new PipelineError('BAD_OPTION', 'Recorder: it records another runtime already; make one for each');
    this.watched = runtime;
    this.gpu = GpuClock.on(runtime.device, runtime.actions * COLUMNS);
    const rank = runtime.group?.rank ?? 0;
    this.held = HeldBytes.of(runtime.schedule.order[rank] ?? [], runtime);
    this.busy = this.gpu === null ? BusyTimes.of(runtime) : null;
    const folder = runtime.isFollowed === false ? undefined : process.env[LIVE_FOLDER];
    const origin = clockOrigin();
    this.live = LiveFeed.open(folder, {
      rank,
      device: runtime.device,
      process: processName(),
      origin,
      tokensPerStep: this.tokensPerStep,
      schedule: rank === 0 ? runtime.schedule.toJSON() : null,
    });
    if (this.live !== null && folder !== undefined)
      this.progress = StepProgress.open(folder, { rank, origin, actions: runtime.actions });
  }

  /** A step begins. */
  beginStep(training: boolean): void {
    const { actions } = this.watched!;
    this.number = training ? this.steps - this.evaluations : this.evaluations++;
    const step = this.steps++;
    this.training = training;
    this.tells = this.live?.wantsActions({ training, number: this.number }, actions) ?? false;
    // A GPU runs behind its host: only a mark in its stream says when a step has ended.
    this.isOn = !this.onlyWatched || this.tells || (this.gpu !== null && this.live !== null);
    const record = this.isOn ? this.openRecord(step) : null;
    this.begun = performance.now();
    this.progress?.beginStep(this.number, training, this.begun);
    if (record === null) return;
    record.begin = this.begun;
    this.busy?.beginStep(record.data);
  }

  private openRecord(step: number): StepRecord {
    const { actions } = this.watched!;
    const full = this.records.length === this.limit;
    const record = full ? this.records.shift()! : new StepRecord(actions);
    this.records.push(record);
    record.data.fill(-1);
    record.step = step;
    record.training = this.training;
    record.end = -1;
    this.record = record;
    this.data = record.data;
    this.held?.beginStep();
    this.gpu?.beginStep();
    return record;
  }

  /** An action begins. */
  begin(index: number): void {
    this.progress?.begin(index);
    if (!this.isOn) return;
    this.current = index;
    this.data[index * COLUMNS + Column.Bytes] = 0;
    this.held?.begin(index);
    this.mark(index * COLUMNS + Column.Start);
    this.busy?.begin(index); // a thread may lose its core in it: within the action
  }

  /** The action under way has received something. */
  received(values: readonly unknown[]): void {
    this.progress?.received();
    if (!this.isOn) return;
    this.mark(this.current * COLUMNS + Column.Ready);
    const bytes = bytesOf(values);
    this.data[this.current * COLUMNS + Column.Bytes]! += bytes;
    this.held?.received(bytes);
  }

  /** The parameters that the action under way computes with are there. */
  parametersCame(): void {
    if (this.isOn) this.held?.passOver();
  }

  /** The action under way has sent something. */
  sent(values: readonly unknown[]): void {
    if (!this.isOn) return;
    this.data[this.current * COLUMNS + Column.Bytes]! += bytesOf(values);
  }

  /** The action under way is about to send tensors; returns what to send in their place. */
  leaving(tensors: readonly (Tensor | null)[]): readonly (Tensor | null)[] {
    return this.isOn && this.held !== null ? this.held.leaving(tensors) : tensors;
  }

  /** An action ends. */
  end(index: number): void {
    this.progress?.end(index);
    if (!this.isOn) return;
    this.busy?.end(index);
    this.mark(index * COLUMNS + Column.Stop);
    this.data[index * COLUMNS + Column.Tensors] = liveTensors();
    this.held?.end(index);
  }

  /** Adds the end of a collective to the action that began it: a reduction after the row, a gathering before its stage computed. */
  prolong(index: number, { time, busy }: Waited): void {
    if (!this.isOn || this.gpu !== null) return;
    this.data[index * COLUMNS + Column.Stop]! += time;
    this.busy?.prolong(index, busy);
  }

  /** The step ends; `loss` is called only in a run that is watched. */
  endStep(loss: () => number | null = () => null): void {
    if (this.isOn) this.closeRecord(this.record!);
    const { live } = this;
    if (live === null) return;
    const step = this.steps - 1;
    const end = this.isOn ? this.record!.end : performance.now();
    this.progress?.endStep(end);
    const { training, number, begun: begin } = this;
    live.step({ step, training, number, begin, end, loss: loss() }, this.tells, () =>
      this.isOn ? this.detailsOf(this.record!) : { ...nothingKnown, processBytes: this.processBytes(end) },
    );
  }

  /** The step under way has failed: reports the steps that have ended before it. The launcher reports how far the failed one came. */
  failStep(): void {
    this.progress?.failStep();
    this.live?.flush();
  }

  private closeRecord(record: StepRecord): void {
    this.gpu?.read(record.data);
    this.busy?.endStep();
    record.end = performance.now();
    record.processBytes = process.memoryUsage.rss();
    record.deviceBytes = this.gpu === null ? null : cuda.memoryAllocated(this.watched?.device);
    record.heldBytes = this.held?.peak ?? null;
  }

  /** What is reported of a recorded step, besides its time. */
  private detailsOf({ processBytes, deviceBytes, heldBytes, data }: StepRecord): StepDetails {
    const column = (which: number): number[] =>
      Array.from({ length: data.length / COLUMNS }, (_, i) => Math.round(data[i * COLUMNS + which]! * 1000) / 1000);
    const actions = !this.tells
      ? null
      : {
          start: column(Column.Start),
          ready: column(Column.Ready),
          stop: column(Column.Stop),
          bytes: column(Column.Bytes),
          tensors: column(Column.Tensors),
        };
    return { processBytes, deviceBytes, heldBytes, actions };
  }

  /** Bytes of this process, read only now and then: reading them takes as long as many actions. */
  private processBytes(now: number): number {
    if (now - this.bytesAt > bytesMs) {
      this.bytesAt = now;
      this.bytes = process.memoryUsage.rss();
    }
    return this.bytes;
  }

  private mark(at: number): void {
    if (this.gpu === null) this.data[at] = performance.now();
    else this.gpu.mark(at);
  }

  // --- what users call -----------------------------------------------------------------------------------------------

  /** Number of steps recorded so far, also those that are no longer kept. */
  get stepCount(): number {
    return this.steps;
  }

  /** The last step that has ended, on this rank; null before the first. */
  get lastStep(): StepTimes | null {
    const record = this.records.findLast(({ end }) => end >= 0);
    if (record === undefined) return null;
    let waited = 0;
    for (let at = 0; at < record.data.length; at += COLUMNS) {
      const ready = record.data[at + Column.Ready]!;
      if (ready >= 0) waited += ready - record.data[at + Column.Start]!;
    }
    const time = record.end - record.begin;
    return { step: record.step, seconds: time / 1000, waiting: time > 0 ? waited / time : 0 };
  }

  /**
   * What this rank did in a step, waits included; the last one where no position among the kept ones is given.
   *
   * @example for (const { action, start, end } of recorder.timeline()) console.log(formatAction(action), end - start)
   */
  timeline(at = -1): RecordedAction[] {
    const { schedule, group } = this.attached('timeline');
    const rank = group?.rank ?? 0;
    const part = this.part();
    const parts = Array.from({ length: schedule.ranks }, (_, other) => ({ ...part, rank: other }));
    const recording = recordingOf(schedule, parts, null);
    return recordedActions(recording, at).filter((event) => event.rank === rank);
  }

  /** The recording of all ranks on rank 0, null elsewhere. All ranks call it. */
  gather(): Recording | null {
    const { schedule, group } = this.attached('gather');
    if (this.gathered?.steps !== this.steps) {
      const parts = gatherParts(group, this.part());
      const recording = parts === null ? null : settleClocks(recordingOf(schedule, parts, this.tokensPerStep));
      this.gathered = { steps: this.steps, recording };
    }
    return this.gathered.recording;
  }

  /**
   * Writes the recording of all ranks as a trace that Perfetto opens. All ranks call it, rank 0 writes and gets the full path.
   *
   * @example recorder.writeTrace('trace.json') // open it at ui.perfetto.dev
   */
  writeTrace(path: string): string | null {
    const recording = this.gather();
    if (recording === null) return null;
    writeFile(path, JSON.stringify(recordingTrace(recording)));
    return resolve(path);
  }

  /**
   * Plan and recording side by side, in words. All ranks call it, rank 0 gets the text.
   *
   * @example const text = recorder.report(); if (text !== null) console.log(text)
   */
  report(options?: ReportOptions): string | null {
    const recording = this.gather();
    return recording === null ? null : recordingReport(recording, options);
  }

  private attached(where: string): RecordedRuntime {
    if (this.watched === null || this.steps === 0)
      throw new PipelineError(
        'NOTHING_RECORDED',
        `Recorder.${where}: nothing is recorded yet; give the recorder to a runtime ({ record: recorder }) and run a step`,
      );
    return this.watched;
  }

  /** What this rank contributes: its steps that have ended. */
  private part(): RankPart {
    const { group, device } = this.watched!;
    return {
      rank: group?.rank ?? 0,
      process: processName(),
      device,
      peakProcessBytes: 1024 * process.resourceUsage().maxRSS,
      peakDeviceBytes: this.gpu === null ? null : cuda.maxMemoryAllocated(device),
      machine: thisMachine(group?.size ?? 1),
      steps: this.records.filter(({ end }) => end >= 0),
    };
  }
}

/** How often the bytes of a watched process are read, in milliseconds, besides in steps that are recorded. */
const bytesMs = 500;

/** What is reported of a step that was not recorded. */
const nothingKnown = { deviceBytes: null, heldBytes: null, actions: null };

/** Bytes of the tensors among values. */
function bytesOf(values: readonly unknown[]): number {
  const [only] = values;
  if (values.length === 1 && only instanceof Tensor) return only.nbytes;
  return tensorsIn(values).reduce((sum, tensor) => sum + tensor.nbytes, 0);
}
