/** @file What a command works on: a schedule built by name, or one read from a file. */
import { readFileSync } from 'node:fs';
import type { BuildScheduleOptions, Costs, Schedule } from '@pipewright/schedule';
import { describeFileError, UsageError } from './usage-error.ts';

/** The flags that say which schedule. */
export interface SourceFlags {
  readonly ranks?: number;
  readonly stagesPerRank?: number;
  readonly microbatches?: number;
  readonly compat?: 'torch';
  readonly memoryLimit?: number | readonly number[];
}

/** Whether an argument names a file rather than a schedule. */
export function isFile(name: string): boolean {
  return name === '-' || /\.(csv|json)$/i.test(name) || name.includes('/');
}

/** Refuses flags that give no shape, which schedules are built in. */
export function checkHasShape<T extends SourceFlags>(
  flags: T,
  what = '',
): asserts flags is T & { readonly ranks: number; readonly microbatches: number } {
  const missing = [
    ...(flags.ranks === undefined ? [['--ranks', '4']] : []),
    ...(flags.microbatches === undefined ? [['--microbatches', '8']] : []),
  ];
  if (missing.length > 0)
    throw new UsageError(
      `${missing.map(([flag]) => flag).join(' and ')} missing${what}; for example ${missing.flat().join(' ')}`,
    );
}

/** The schedule of a name or a file. */
export async function loadSchedule(name: string, flags: SourceFlags, costs?: Costs): Promise<Schedule> {
  if (isFile(name)) {
    const read = await readSchedule(name).catch((error: unknown) => refuseFile(name, error));
    checkShape(name, read, flags);
    return read;
  }
  const { buildSchedule, findSchedule } = await import('@pipewright/schedule');
  const definition = findSchedule(name);
  checkHasShape(flags, ` for ${definition.name}`);
  const options: BuildScheduleOptions = {
    ranks: flags.ranks,
    microbatches: flags.microbatches,
    ...(flags.stagesPerRank === undefined ? {} : { stagesPerRank: flags.stagesPerRank }),
    ...(flags.compat === undefined ? {} : { compat: flags.compat }),
    ...(flags.memoryLimit === undefined ? {} : { memoryLimit: flags.memoryLimit }),
    ...(costs === undefined ? {} : { costs }),
  };
  return buildSchedule(name, options);
}

/** Refuses flags that contradict the file. */
function checkShape(file: string, schedule: Schedule, flags: SourceFlags): void {
  const { ranks, stagesPerRank, microbatches } = flags;
  for (const [flag, wanted, found] of [
    ['--ranks', ranks, schedule.ranks],
    ['--stages-per-rank', stagesPerRank, schedule.stagesPerRank],
    ['--microbatches', microbatches, schedule.microbatches],
  ] as const)
    if (wanted !== undefined && wanted !== found)
      throw new UsageError(
        `${flag} is ${wanted}, but ${file === '-' ? 'the schedule of standard input' : file} has ${found}; leave ${flag} out, or name a schedule to build one`,
      );
}

/** Says which file is not a schedule, since a command may read several. */
function refuseFile(name: string, error: unknown): never {
  if (!(error instanceof Error && error.name === 'ScheduleError')) throw error;
  throw new UsageError(`${name === '-' ? 'standard input' : name}: ${error.message}`);
}

/** A schedule from a CSV or JSON file; `-` is standard input. */
export async function readSchedule(file: string): Promise<Schedule> {
  const text = readText(file);
  const { Schedule, ScheduleError, parseCsv } = await import('@pipewright/schedule');
  const schedule = text.trimStart().startsWith('{') ? Schedule.fromJSON(text) : parseCsv(text);
  if (schedule.stages === 0)
    throw new ScheduleError(
      'BAD_CSV',
      `there is no action in it; a schedule has a line of actions per rank, such as 0F0,0B0`,
    );
  return schedule;
}

/** The text of a file, or of standard input. */
export function readText(file: string): string {
  try {
    return readFileSync(file === '-' ? 0 : file, 'utf8');
  } catch (error) {
    throw new UsageError(`cannot read ${file}: ${describeFileError(error)}`);
  }
}
