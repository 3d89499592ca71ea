/** @file A run with a plan: what was predicted beside what happened, and the plan with the costs that the run has shown. */
import { readdirSync, readFileSync } from 'node:fs';
import { join, resolve } from 'node:path';
import {
  comparePlan,
  formatComparison,
  type LiveLine,
  LiveRunReader,
  liveRankOf,
  type PipelinePlan,
  parseLiveLine,
  planSchedule,
  plural,
  type Recording,
  readPlan,
  refitPlan,
  Schedule,
} from '@pipewright/schedule';
import { writeResult } from '../../shared/output.ts';
import { readText } from '../../shared/source.ts';
import { UsageError } from '../../shared/usage-error.ts';

/** The flags about plans. */
export interface PlanRunFlags {
  readonly plan?: string;
  readonly refit?: string;
  readonly ranks?: number;
}

/** Steps whose times are compared. */
const mostSteps = 200;

/** The plan of the flags, which ranks then find; null without one. */
export function openPlan(flags: PlanRunFlags): PipelinePlan | null {
  if (flags.plan === undefined) {
    if (flags.refit !== undefined) throw new UsageError('--refit is for runs with a plan; give --plan plan.json too');
    return null;
  }
  const plan = planIn(flags.plan);
  const ranks = ranksOf(plan);
  if (flags.ranks !== undefined && flags.ranks !== ranks)
    throw new UsageError(`--ranks is ${flags.ranks}, but ${flags.plan} is for ${ranks} ranks; leave --ranks out`);
  process.env['PIPEWRIGHT_PLAN'] = resolve(flags.plan);
  return plan;
}

/** The plan in a file; what is wrong with it is said of the file. */
function planIn(file: string): PipelinePlan {
  const text = readText(file);
  try {
    return readPlan(text);
  } catch (error) {
    throw new UsageError(`${file} is no plan: ${(error as Error).message.replace(/^readPlan: /, '')}`);
  }
}

/** All ranks of a plan: those of every pipeline. */
export function ranksOf({ ranks, dataParallel }: PipelinePlan): number {
  return ranks * (dataParallel?.replicas ?? 1);
}

/** What a run wrote into its folder, as a recording; null where no step was timed on all ranks. */
export function readRun(folder: string): Recording | null {
  const lines: { rank: number; line: LiveLine }[] = [];
  for (const name of readdirSync(folder).sort()) {
    const rank = liveRankOf(name);
    if (typeof rank !== 'number') continue;
    for (const text of readFileSync(join(folder, name), 'utf8').split('\n')) {
      const line = parseLiveLine(text);
      if (line !== null) lines.push({ rank, line });
    }
  }
  const reader = new LiveRunReader(mostSteps, mostSteps);
  // Beginnings first: each begins the run anew.
  for (const begins of [true, false])
    for (const { rank, line } of lines) if ((line.kind === 'run') === begins) reader.add(rank, line);
  return reader.recording();
}

/** Prints the comparison; with `--refit`, writes the plan with the costs of the run. */
export async function reportPlan(plan: PipelinePlan, folder: string, flags: PlanRunFlags): Promise<void> {
  const recording = readRun(folder);
  if (recording === null) {
    console.error('pipewright: no step was recorded on all ranks, so there is nothing to compare the plan with');
    return;
  }
  const other = otherSchedule(plan, recording);
  if (other !== null) {
    console.error(`pipewright: this run did not follow ${flags.plan}: it ran ${other}; use givenPlan()`);
    return;
  }
  console.log(formatComparison(comparePlan(plan, recording)));
  if (flags.refit === undefined) return;
  await writeResult(`${JSON.stringify(refitPlan(plan, recording), null, 2)}\n`, flags.refit);
  console.log(`The plan with the costs of this run is in ${flags.refit}.`);
}

/** What was run, where it is not what the plan says; null where it is. */
function otherSchedule(plan: PipelinePlan, recording: Recording): string | null {
  const planned = planSchedule(plan);
  const { name, ranks, stages, microbatches } = Schedule.fromJSON(recording.schedule);
  const hasSameShape = ranks === planned.ranks && stages === planned.stages;
  if (hasSameShape && name === planned.name && microbatches === planned.microbatches) return null;
  const shape = hasSameShape ? '' : `${plural(stages, 'stage')} on ${plural(ranks, 'rank')} and `;
  return `${name} with ${shape}${plural(microbatches, 'microbatch', 'microbatches')}`;
}
