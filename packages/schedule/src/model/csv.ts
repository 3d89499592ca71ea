/**
 * @file Schedules as CSV: a line per rank, a cell per slot, an empty cell for a bubble.
 *
 * Three formats: PyTorch's `compute_only` (compute and bubbles) and `compute_comms` (lowered, no bubbles), which have no
 * header, and `pipewright`, either of them below one line that names the schedule and its numbers. PyTorch 2.15 also writes
 * where a rank waits for its sends (`2WAIT_SEND_F0`, `2WAIT_REDUCE_GRAD`): such cells are passed over, as our runtime reaps what
 * it sent by itself, and written with `compat: 'torch-2.15'`.
 */

import { type Action, parseAction } from './action.ts';
import { checkChoice, checkOptions, ScheduleError, show } from './errors.ts';
import { Code, isComposite, wordCode } from './packed.ts';
import { Schedule, type ScheduleData, type StageEdge } from './schedule.ts';
import { rowsWithTorchWaits } from './torch-waits.ts';

/** How a schedule stands in CSV. */
export type CsvFormat = 'compute_only' | 'compute_comms' | 'pipewright';

/** How `formatCsv` writes. */
export interface FormatCsvOptions {
  /** Default: `compute_only` or `compute_comms`, whichever the schedule is. */
  readonly format?: CsvFormat;
  /** `torch-2.15`: with the waits for sends and reductions that PyTorch wants from 2.15 on in a lowered file. */
  readonly compat?: 'torch-2.15';
}

/** How `parseCsv` reads; numbers that are left out are read off the cells or the header. */
export interface ParseCsvOptions {
  /** What the text must be; default: any, told by its header. */
  readonly format?: CsvFormat;
  /** Read cells as PyTorch does, ignoring text after an action. */
  readonly lenient?: boolean;
  readonly name?: string;
  readonly stages?: number;
  readonly microbatches?: number;
  readonly stageToRank?: readonly number[];
}

const formats = ['compute_only', 'compute_comms', 'pipewright'];
const magic = '#pipewright-schedule';
const waiting = /^\s*\d+WAIT_(?:SEND_[FB]\d+|REDUCE_GRAD\d*)\s*$/;

/**
 * A schedule as CSV; lines end with CR LF as in PyTorch.
 * @example formatCsv(Schedule.from({ order: [['0F0', null, '0B0']] })) // '0F0,,0B0\r\n'
 */
export function formatCsv(input: Schedule | ScheduleData, options: FormatCsvOptions = {}): string {
  checkOptions('formatCsv', options, ['format', 'compat']);
  checkChoice('formatCsv', 'format', options.format, formats);
  checkChoice('formatCsv', 'compat', options.compat, ['torch-2.15']);
  const schedule = Schedule.from(input);
  if (options.format !== undefined) checkContent('formatCsv', schedule, options.format);
  if (options.compat !== undefined) {
    if (options.format === 'pipewright')
      throw new ScheduleError(
        'BAD_OPTION',
        `formatCsv: compat is for PyTorch's formats; leave format: 'pipewright' out`,
      );
    return rowsWithTorchWaits(schedule)
      .map((texts) => `${texts.length === 1 && texts[0] === '' ? '""' : texts.join(',')}\r\n`)
      .join('');
  }
  const lines = schedule.rows.map((row) =>
    row.length === 1 && row[0] === 0 ? '""' : Array.from(row, (word) => schedule.format(word)).join(','),
  );
  if (options.format === 'pipewright') lines.unshift(formatHeader(schedule));
  return lines.map((line) => `${line}\r\n`).join('');
}

/**
 * Reads a schedule from CSV in any of the formats.
 * @example parseCsv('0F0,,0B0\n').order[0].length // 3
 */
export function parseCsv(text: string, options: ParseCsvOptions = {}): Schedule {
  checkOptions('parseCsv', options, ['format', 'lenient', 'name', 'stages', 'microbatches', 'stageToRank']);
  checkChoice('parseCsv', 'format', options.format, formats);
  if (typeof text !== 'string') throw new ScheduleError('BAD_CSV', `parseCsv: expected text, got ${show(text)}`);
  if (text.trim() === '')
    throw new ScheduleError(
      'BAD_CSV',
      'parseCsv: the text is empty; write one line per rank, with a cell such as 0F0 for every action',
    );
  const lines = text.split(/\r\n|\n|\r/);
  if (lines.at(-1) === '') lines.pop();
  const hasHeader = lines[0]?.startsWith(magic) === true;
  if (options.format === 'pipewright' && !hasHeader) {
    throw new ScheduleError(
      'BAD_CSV',
      `parseCsv: the first line does not start with ${magic}; leave format out to read PyTorch's formats`,
    );
  }
  const header: Partial<ScheduleData> = hasHeader ? parseHeader(splitLine(lines.shift()!, 1)) : {};
  const offset = hasHeader ? 2 : 1;
  const order = lines.map((line, rank) =>
    line === ''
      ? []
      : splitLine(line, rank + offset).flatMap((cell, slot) =>
          waiting.test(cell)
            ? []
            : [parseCell(cell, options.lenient === true, `line ${rank + offset} cell ${slot + 1}`)],
        ),
  );
  const { name, stages, microbatches, stageToRank } = options;
  const schedule = Schedule.from({
    ...header,
    ...(name === undefined ? {} : { name }),
    ...(stages === undefined ? {} : { stages }),
    ...(microbatches === undefined ? {} : { microbatches }),
    ...(stageToRank === undefined ? {} : { stageToRank }),
    order,
  });
  if (options.format !== undefined) checkContent('parseCsv', schedule, options.format);
  return schedule;
}

function parseCell(cell: string, lenient: boolean, where: string): Action | null {
  try {
    return parseAction(cell, { lenient });
  } catch (error) {
    if (!(error instanceof ScheduleError)) throw error;
    throw new ScheduleError(
      'BAD_CSV',
      `parseCsv: ${where}: ${error.message.replace(/^parseAction: /, '')}`,
      error.details,
    );
  }
}

/** Cells of a line; a cell in double quotes may hold commas and doubled quotes. */
function splitLine(line: string, number: number): string[] {
  if (!line.includes('"')) return line.split(',');
  const cells: string[] = [];
  const pattern = /\s*"((?:[^"]|"")*)"\s*(,|$)|([^",][^,]*|)(,|$)/y;
  while (pattern.lastIndex <= line.length) {
    const match = pattern.exec(line);
    if (match === null)
      throw new ScheduleError('BAD_CSV', `parseCsv: line ${number}: a quoted cell does not end; close it with "`, {
        line: number,
      });
    cells.push(match[1] === undefined ? match[3]! : match[1].replaceAll('""', '"'));
    if ((match[2] ?? match[4]) === '') break;
  }
  return cells;
}

function formatHeader(schedule: Schedule): string {
  const fields = [
    `version=1`,
    `name=${schedule.name}`,
    `ranks=${schedule.ranks}`,
    `stages=${schedule.stages}`,
    `microbatches=${schedule.microbatches}`,
    `stageToRank=${schedule.stageToRank.join(' ')}`,
    ...(schedule.edges === null ? [] : [`edges=${schedule.edges.map(([from, to]) => `${from}>${to}`).join(' ')}`]),
  ];
  return [
    magic,
    ...fields.map((field) =>
      /[",\r\n]/.test(field) ? `"${field.replaceAll('"', '""').replaceAll(/[\r\n]/g, ' ')}"` : field,
    ),
  ].join(',');
}

function parseHeader(cells: readonly string[]): Partial<ScheduleData> {
  const fields = new Map(
    cells
      .slice(1)
      .map((cell): [string, string] => [cell.slice(0, cell.indexOf('=')), cell.slice(cell.indexOf('=') + 1)]),
  );
  const refuse = (field: string, wanted: string): never => {
    throw new ScheduleError('BAD_CSV', `parseCsv: line 1: ${field}=${fields.get(field) ?? ''} should be ${wanted}`, {
      field,
    });
  };
  const integer = (field: string, text: string): number =>
    /^-?\d+$/.test(text) ? Number(text) : refuse(field, 'made of integers');
  const count = (field: string): number => integer(field, fields.get(field) ?? '');
  const list = (field: string): string[] => (fields.get(field) ?? '').split(' ').filter((item) => item !== '');
  for (const field of fields.keys()) {
    if (!['version', 'name', 'ranks', 'stages', 'microbatches', 'stageToRank', 'edges'].includes(field))
      throw new ScheduleError('BAD_CSV', `parseCsv: line 1: unknown field '${field}'; remove it`, { field });
  }
  if (fields.get('version') !== '1') refuse('version', '1, the only version known here');
  const edges = list('edges').map((item): StageEdge => {
    const [from, to] = item.split('>');
    return [integer('edges', from ?? ''), integer('edges', to ?? '')];
  });
  return {
    name: fields.get('name') ?? 'custom',
    ranks: count('ranks'),
    stages: count('stages'),
    microbatches: count('microbatches'),
    stageToRank: list('stageToRank').map((item) => integer('stageToRank', item)),
    ...(fields.has('edges') ? { edges } : {}),
  };
}

/** Refuses content a format does not allow. */
function checkContent(caller: string, schedule: Schedule, format: CsvFormat): void {
  if (format === 'pipewright') return;
  schedule.rows.forEach((row, rank) => {
    const wrong = row.findIndex((word) =>
      format === 'compute_comms'
        ? word === 0
        : wordCode(word) > Code.B && !isComposite(word) && wordCode(word) !== Code.ReduceGrad,
    );
    if (wrong < 0) return;
    const says =
      format === 'compute_comms'
        ? 'is a bubble, which compute_comms does not have'
        : `is ${schedule.format(row[wrong]!)}, which compute_only does not have`;
    const other = format === 'compute_comms' ? 'lower the schedule first or use compute_only' : 'use compute_comms';
    throw new ScheduleError('BAD_CSV', `${caller}: rank ${rank} slot ${wrong} ${says}; ${other}`, {
      rank,
      slot: wrong,
    });
  });
}
