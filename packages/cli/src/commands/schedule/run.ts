/** @file `pipewright schedule`: builds a schedule, lowers it if asked, and writes it. */
import { readCosts } from '../../shared/costs.ts';
import type { CostFlags } from '../../shared/flags.ts';
import { writeResult } from '../../shared/output.ts';
import { chooseFormat, type Format, type OutputFlags, renderSchedule } from '../../shared/render.ts';
import { loadSchedule, type SourceFlags } from '../../shared/source.ts';
import { colors, formatTable, lineWidth } from '../../shared/term.ts';
import { UsageError } from '../../shared/usage-error.ts';

/** The flags of the command. */
export interface ScheduleFlags extends SourceFlags, CostFlags, OutputFlags {
  readonly list?: boolean;
  readonly lower?: boolean;
  readonly merge?: boolean;
}

/** Runs the command; returns the exit code. */
export async function schedule(name: string | undefined, flags: ScheduleFlags): Promise<number> {
  if (flags.list === true) {
    await writeResult(await listSchedules(flags), flags.out);
    return 0;
  }
  if (name === undefined)
    throw new UsageError(
      'which schedule? Name one, for example: pipewright schedule 1F1B --ranks 4 --microbatches 8; --list shows all',
    );
  const { lower, mergeBackward } = await import('@pipewright/schedule');
  const costs = readCosts(flags);
  let built = await loadSchedule(name, flags, costs);
  for (const [cost, value] of Object.entries(costs ?? {}))
    if (Array.isArray(value) && value.length !== built.stages)
      throw new UsageError(
        `${cost} has ${value.length} values for ${built.stages} stages; give one number, or one per stage`,
      );
  if (flags.merge === true) built = mergeBackward(built);
  if (flags.lower === true) built = lower(built, flags.compat === undefined ? {} : { compat: flags.compat });
  await writeResult(await renderSchedule(chooseFormat<Format>(flags, 'table'), built, costs, flags), flags.out);
  return 0;
}

/** All schedules, with what they are. */
async function listSchedules(flags: ScheduleFlags): Promise<string> {
  const { scheduleDefinitions } = await import('@pipewright/schedule');
  const paint = colors(flags.out === undefined ? flags.color : false);
  const rows = scheduleDefinitions.map((definition) => {
    const { least, most } = definition.stagesPerRank;
    const stages = least === most ? String(least) : Number.isFinite(most) ? `${least}-${most}` : `${least}+`;
    return [
      { text: definition.name, paint: paint.bold },
      stages,
      definition.inTorch ? 'yes' : 'no',
      definition.summary,
    ];
  });
  const head = ['name', 'stages/rank', 'PyTorch', 'what it is'].map((text) => ({ text, paint: paint.dim }));
  return formatTable([head, ...rows], { align: 'llll', width: lineWidth(flags.width) });
}
