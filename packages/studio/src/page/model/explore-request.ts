/** @file What the page asks of its worker, and what it gets back: one schedule for each request, explored or read from a file. */
import { type PipelinePlan, planSchedule, scheduleNames } from '@pipewright/schedule';
import { judge, readSchedule } from './edit.ts';
import { type Explored, explore } from './explore.ts';
import { countActions, isSearched, listedName } from './extent.ts';
import { type OpenedPlan, planName } from './plan.ts';
import type { CostSettings, Settings } from './settings.ts';
import { buffersOf, type PackedExplored, type PackedJudged, packExplored, packJudged } from './transfer.ts';

/** A schedule to explore. */
export interface ExploreJob {
  readonly name: string;
  readonly settings: Settings;
  readonly draw: boolean;
  readonly plan: OpenedPlan | null;
}

/** A job as it is passed to the worker. */
export interface ExploreRequest extends Omit<ExploreJob, 'plan'> {
  readonly plan: { readonly name: string; readonly plan: PipelinePlan } | null;
}

/** What the worker answers: the schedule, or what went wrong. */
export type ExploreAnswer = { readonly explored: PackedExplored } | { readonly error: string };

/** The text of a schedule, to be read and judged. */
export interface OpenRequest {
  readonly text: string;
  readonly costs: CostSettings;
}

/** What the worker answers: the schedule, or what is wrong with the text. */
export type OpenAnswer = { readonly judged: PackedJudged } | { readonly error: string };

/** The request of a job. */
export function requestOf({ plan, ...job }: ExploreJob): ExploreRequest {
  return { ...job, plan: plan === null ? null : { name: plan.name, plan: plan.plan } };
}

/** Explores a schedule. */
export function runJob({ name, settings, draw, plan }: ExploreJob): Explored {
  return explore(name, settings, { draw, plan });
}

/** Answers a request; `buffers` are handed over with it. */
export function answerRequest({ plan, ...job }: ExploreRequest): { answer: ExploreAnswer; buffers: ArrayBuffer[] } {
  try {
    const opened = plan === null ? null : { ...plan, schedule: planSchedule(plan.plan) };
    const explored = packExplored(runJob({ ...job, plan: opened }));
    return { answer: { explored }, buffers: buffersOf(explored) };
  } catch (error) {
    return { answer: { error: error instanceof Error ? error.message : String(error) }, buffers: [] };
  }
}

/** Reads a schedule and judges it; `buffers` are handed over with the answer. */
export function answerOpening({ text, costs }: OpenRequest): { answer: OpenAnswer; buffers: ArrayBuffer[] } {
  try {
    const judged = packJudged(judge(readSchedule(text), costs));
    return { answer: { judged }, buffers: buffersOf(judged) };
  } catch (error) {
    return { answer: { error: error instanceof Error ? error.message : String(error) }, buffers: [] };
  }
}

/** Actions that the page itself simulates at once, in all jobs together. */
const quickActions = 30_000;

/** Whether the page can do jobs itself without being noticed: few actions, and nothing to search for. */
export function areQuick(jobs: readonly ExploreJob[]): boolean {
  let actions = 0;
  for (const { name, settings, plan } of jobs) {
    if (name === planName) actions += (plan?.schedule.size ?? 0) * (settings.lowered ? 3 : 1);
    else if (!(scheduleNames as readonly string[]).includes(listedName(name))) continue;
    else if (isSearched(name, settings)) return false;
    else actions += countActions(name, settings);
  }
  return actions <= quickActions;
}
