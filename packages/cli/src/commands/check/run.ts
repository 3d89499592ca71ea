/** @file `pipewright check`: reads a schedule and lists every broken rule. */
import type { Schedule, Violation } from '@pipewright/schedule';
import { inFlagWords } from '../../shared/flag-words.ts';
import { writeResult } from '../../shared/output.ts';
import { readSchedule } from '../../shared/source.ts';
import { colors } from '../../shared/term.ts';

/** The flags of the command. */
export interface CheckFlags {
  readonly stages?: number;
  readonly microbatches?: number;
  readonly limit?: number;
  readonly format?: string;
  readonly color?: boolean;
  readonly out?: string;
}

/** Runs the command; returns 0 if the schedule is legal, 1 if not. */
export async function check(file: string, flags: CheckFlags): Promise<number> {
  const { ScheduleError, validate } = await import('@pipewright/schedule');
  let schedule: Schedule;
  try {
    schedule = expected(await readSchedule(file), flags);
  } catch (error) {
    // A file that is not a schedule fails the check.
    if (!(error instanceof ScheduleError)) throw error;
    const says = inFlagWords(error.message);
    if (flags.format === 'json')
      await writeResult(`${JSON.stringify({ file, ok: false, error: says, violations: [] }, null, 2)}\n`, flags.out);
    else console.error(`pipewright: ${file === '-' ? 'standard input' : file}: ${says}`);
    return 1;
  }
  const violations = validate(schedule, flags.limit === undefined ? {} : { limit: flags.limit });
  const ok = violations.length === 0;
  if (flags.format === 'json')
    await writeResult(`${JSON.stringify({ file, ok, ...shapeOf(schedule), violations }, null, 2)}\n`, flags.out);
  else await writeResult(await describe(file, schedule, violations, flags), flags.out);
  return ok ? 0 : 1;
}

/** The schedule with the counts the user expects, where a file without header cannot say them. */
function expected(schedule: Schedule, flags: CheckFlags): Schedule {
  const stages = flags.stages ?? schedule.stages;
  const microbatches = flags.microbatches ?? schedule.microbatches;
  if (stages === schedule.stages && microbatches === schedule.microbatches) return schedule;
  return schedule.with({
    stages,
    microbatches,
    stageToRank: Array.from({ length: stages }, (_, stage) => schedule.stageToRank[stage] ?? -1),
  });
}

function shapeOf(schedule: Schedule): {
  readonly ranks: number;
  readonly stages: number;
  readonly microbatches: number;
  readonly lowered: boolean;
} {
  return {
    ranks: schedule.ranks,
    stages: schedule.stages,
    microbatches: schedule.microbatches,
    lowered: !schedule.isComputeOnly,
  };
}

async function describe(
  file: string,
  schedule: Schedule,
  violations: readonly Violation[],
  flags: CheckFlags,
): Promise<string> {
  const { plural, renderTable } = await import('@pipewright/schedule');
  const paint = colors(flags.out === undefined ? flags.color : false);
  const { ranks, stages, microbatches, lowered } = shapeOf(schedule);
  const shape = `${plural(ranks, 'rank')}, ${plural(stages, 'stage')}, ${plural(microbatches, 'microbatch', 'microbatches')}, ${lowered ? 'with communication' : 'compute only'}`;
  const what = file === '-' ? 'standard input' : file;
  if (violations.length === 0) return `${paint.green('ok')} ${what}: ${shape}\n`;
  const lines = [`${paint.red(plural(violations.length, 'violation'))} in ${what}: ${shape}`, ''];
  for (const { rule, explanation } of violations) lines.push(`  ${paint.yellow(rule)}: ${explanation}`);
  const first = violations.find(({ slot, rank }) => slot !== null && rank !== null);
  if (first !== undefined) {
    const slot = first.slot!;
    const near = ranks <= 8 ? {} : { ranks: window(first.rank!, ranks) };
    lines.push(
      '',
      renderTable(schedule, {
        ...near,
        from: Math.max(0, slot - 3),
        to: slot + 4,
        mark: { slot, rank: first.rank!, note: first.rule },
      }).trimEnd(),
    );
  }
  return `${lines.join('\n')}\n`;
}

/** The ranks around one. */
function window(rank: number, ranks: number): number[] {
  const from = Math.max(0, Math.min(rank - 3, ranks - 8));
  return Array.from({ length: Math.min(8, ranks) }, (_, i) => from + i);
}
