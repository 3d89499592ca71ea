/** @file A schedule as a text grid: one line per step, one column per rank. */

import { checkChoice, checkCount, checkOptions, ScheduleError, show } from '../model/errors.ts';
import { Schedule, type ScheduleData, type ScheduleOrder } from '../model/schedule.ts';

/** A step of the table to point at. */
export interface TableMark {
  readonly slot: number;
  /** Named beside the mark. */
  readonly rank?: number;
  /** Default: `ERROR HERE`. */
  readonly note?: string;
}

/** What `renderTable` shows. */
export interface TableOptions {
  /** The step to mark. */
  readonly mark?: number | TableMark;
  /** Ranks to show, in this order; default: all. */
  readonly ranks?: readonly number[];
  /** First step to show; default: 0. */
  readonly from?: number;
  /** One past the last step to show; default: all. */
  readonly to?: number;
  /** `'torch'`: exactly PyTorch's table, where a rank label longer than its column shifts the labels after it. */
  readonly compat?: 'torch';
}

/**
 * A schedule as a text grid, one line per step, one column per rank. Never throws on the shape of a schedule: no ranks, no
 * steps and fewer steps than ranks are drawn too.
 * @example console.log(renderTable(buildSchedule('1F1B', { ranks: 2, microbatches: 2 }), { mark: 3 }))
 */
export function renderTable(schedule: Schedule | ScheduleData, options: TableOptions = {}): string {
  checkOptions('renderTable', options, ['mark', 'ranks', 'from', 'to', 'compat']);
  checkChoice('renderTable', 'compat', options.compat, ['torch']);
  const source = Schedule.from(schedule);
  const ranks = options.ranks ?? source.rows.map((_, rank) => rank);
  for (const rank of ranks) {
    if (source.rows[rank] === undefined) {
      throw new ScheduleError(
        'BAD_OPTION',
        `renderTable: ranks names rank ${show(rank)}; this schedule has ranks 0 to ${source.ranks - 1}`,
        { rank },
      );
    }
  }
  const mark = readMark(options.mark);
  const steps = Math.max(0, ...source.rows.map((row) => row.length));
  const from = Math.min(steps, checkCount('renderTable', 'from', options.from ?? 0, 0));
  const to = Math.min(steps, checkCount('renderTable', 'to', options.to ?? steps, 0));
  const columns = ranks.map((rank) =>
    Array.from({ length: Math.max(0, to - from) }, (_, i) => source.format(source.rows[rank]![from + i] ?? 0)),
  );
  const labels = ranks.map((rank, i) => `Rank ${options.compat === 'torch' ? i : rank}`);
  return grid({ columns, labels, from, steps, mark, labelsCount: options.compat !== 'torch' });
}

/**
 * An order as PyTorch's text table; `errorStep` is marked.
 * @example formatPipelineOrder(schedule.order, 3)
 */
export function formatPipelineOrder(order: ScheduleOrder, errorStep?: number): string {
  return renderTable({ order }, { compat: 'torch', ...(errorStep === undefined ? {} : { mark: errorStep }) });
}

interface Grid {
  readonly columns: readonly (readonly string[])[];
  readonly labels: readonly string[];
  readonly from: number;
  /** Steps of the whole schedule: they give the number of digits. */
  readonly steps: number;
  readonly mark: TableMark | null;
  /** Whether rank labels widen their columns. */
  readonly labelsCount: boolean;
}

function grid({ columns, labels, from, steps, mark, labelsCount }: Grid): string {
  const digits = String(Math.max(0, steps - 1)).length;
  const stepLabel = (step: number): string => `Step ${String(step).padStart(digits, '0')}`;
  const least = stepLabel(0).length;
  const widths = columns.map((cells, i) =>
    cells.reduce((w, cell) => Math.max(w, cell.length), Math.max(least, labelsCount ? labels[i]!.length : 0)),
  );
  const line = (cells: readonly string[]): string => cells.map((cell, i) => cell.padEnd(widths[i]!)).join(' ');
  const lines = [`${' '.repeat(least + 2)}${line(labels)}`];
  for (let i = 0; i < (columns[0]?.length ?? 0); i++) {
    const here =
      mark !== null && mark.slot === from + i
        ? ` <-- ${mark.rank === undefined ? '' : `rank ${mark.rank}: `}${mark.note ?? 'ERROR HERE'}`
        : '';
    lines.push(`${stepLabel(from + i)}: ${line(columns.map((cells) => cells[i]!))}${here}`);
  }
  return `${lines.join('\n')}\n`;
}

function readMark(mark: number | TableMark | undefined): TableMark | null {
  if (mark === undefined) return null;
  if (typeof mark === 'number') return { slot: mark };
  checkOptions('renderTable', mark, ['slot', 'rank', 'note']);
  return mark;
}
