/** @file A schedule or a simulated step in one of the output formats. */
import { extname } from 'node:path';
import type { Costs, Schedule, Simulation } from '@pipewright/schedule';
import { lineWidth, wantsColor } from './term.ts';
import { UsageError } from './usage-error.ts';

/** What `schedule` can write. */
export const formats = ['table', 'timeline', 'csv', 'json', 'svg', 'trace'] as const;

/** One of the output formats. */
export type Format = (typeof formats)[number];

/** The flags of `addOutputFlags` and the format. */
export interface OutputFlags {
  readonly format?: string;
  readonly out?: string;
  readonly color?: boolean;
  readonly width?: number;
  /** Write CSV with a first line that names the schedule and its numbers. */
  readonly header?: boolean;
}

/** The format asked for; else the one the file name says; else `otherwise`. */
export function chooseFormat<F extends string>(flags: OutputFlags, otherwise: F): F {
  if (flags.format !== undefined) return flags.format as F;
  const { out } = flags;
  if (out === undefined || out === '-') return otherwise;
  if (/trace[^/]*\.json$/i.test(out)) return 'trace' as F;
  const byEnding: Record<string, string> = { '.csv': 'csv', '.json': 'json', '.svg': 'svg', '.txt': otherwise };
  const found = byEnding[extname(out).toLowerCase()];
  if (found === undefined)
    throw new UsageError(
      `--out ${out} does not say the format; add --format or end the name in .csv, .json, .svg or .txt`,
    );
  return found as F;
}

/** The text of a picture of a simulated step. */
export async function renderStep(
  format: 'timeline' | 'svg' | 'trace',
  step: Simulation,
  flags: OutputFlags,
): Promise<string> {
  const { renderSvg, renderTimeline, toChromeTrace } = await import('@pipewright/schedule');
  if (format === 'svg') return renderSvg(step, flags.width === undefined ? {} : { width: flags.width });
  if (format === 'trace') return eventLines(toChromeTrace(step));
  const toFile = flags.out !== undefined && flags.out !== '-';
  return renderTimeline(step, {
    width: Math.max(40, lineWidth(flags.width)),
    color: toFile ? flags.color === true : wantsColor(flags.color),
  });
}

/** The text of a schedule in any format; `costs` matter for those that are to scale. */
export async function renderSchedule(
  format: Format,
  schedule: Schedule,
  costs: Costs | undefined,
  flags: OutputFlags,
): Promise<string> {
  const { formatCsv, renderTable, simulate } = await import('@pipewright/schedule');
  if (format === 'table') return renderTable(schedule);
  if (format === 'csv') return formatCsv(schedule, flags.header === true ? { format: 'pipewright' } : {});
  if (format === 'json') return scheduleJson(schedule);
  return renderStep(format, simulate(schedule, costs), flags);
}

/** JSON with one row of the order per line: as short as a table, and it diffs. */
function scheduleJson(schedule: Schedule): string {
  const { order, ...head } = schedule.toJSON();
  const fields = Object.entries(head).map(([key, value]) => `  ${JSON.stringify(key)}: ${JSON.stringify(value)}`);
  const rows = order.map((row) => `    ${JSON.stringify(row)}`);
  return `{\n${[...fields, `  "order": [\n${rows.join(',\n')}\n  ]`].join(',\n')}\n}\n`;
}

/** A trace with one event per line. */
function eventLines(trace: { readonly traceEvents: readonly unknown[] }): string {
  const { traceEvents, ...head } = trace;
  return `{${Object.entries(head)
    .map(([key, value]) => `${JSON.stringify(key)}:${JSON.stringify(value)},`)
    .join('')}"traceEvents":[\n${traceEvents.map((event) => JSON.stringify(event)).join(',\n')}\n]}\n`;
}
