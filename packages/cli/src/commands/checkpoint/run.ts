/** @file `pipewright checkpoint`: what was saved, whether it is sound, and other forms of it. */
import { statSync } from 'node:fs';
import { basename } from 'node:path';
import type { CheckpointSummary, Manifest } from 'pipewright';
import { writeResult } from '../../shared/output.ts';
import { colors, formatTable } from '../../shared/term.ts';
import { UsageError } from '../../shared/usage-error.ts';

/** The flags of `show`. */
export interface ShowFlags {
  readonly format: 'table' | 'json';
  readonly out?: string;
  readonly color?: boolean;
}

/** The flags of `convert`. */
export interface ConvertFlags {
  readonly files?: number;
}

/** The flags of `export-hf`. */
export interface ExportFlags {
  readonly rename?: Readonly<Record<string, string>>;
  readonly transpose?: readonly string[];
  readonly dtype?: string;
  readonly maxBytes?: number;
}

/** Refuses a path that is no folder, before anything is loaded. */
function checkFolder(folder: string): void {
  const entry = statSync(folder, { throwIfNoEntry: false });
  if (entry?.isDirectory() === true) return;
  throw new UsageError(`cannot read ${folder}: ${entry === undefined ? 'no such folder' : 'it is not a folder'}`);
}

/** Shows a folder of checkpoints, or one of them. */
export async function showCheckpoints(folder: string, flags: ShowFlags): Promise<number> {
  checkFolder(folder);
  const { findCheckpoint, listCheckpoints, summarizeCheckpoints } = await import('pipewright');
  const names = listCheckpoints(folder);
  const { path, manifest } = findCheckpoint(folder);
  const all = names.length > 0 ? summarizeCheckpoints(folder) : null;
  if (flags.format === 'json') {
    const { tensors, states, ...rest } = manifest;
    const found = { path, ...rest, tensors: Object.keys(tensors).length, states: Object.keys(states) };
    await writeResult(`${JSON.stringify({ checkpoints: all ?? [], latest: found }, null, 2)}\n`, flags.out);
    return 0;
  }
  const paint = colors(flags.out === undefined ? flags.color : false);
  const lines: string[] = [];
  if (all !== null)
    lines.push(
      formatTable([['checkpoint', 'step', 'size', 'saved at', ''], ...all.map(rowOf)], { align: 'lrrll' }),
      '\n',
    );
  lines.push(`${paint.bold(basename(path))}\n`, describe(manifest));
  await writeResult(lines.join(''), flags.out);
  return 0;
}

function rowOf({ name, step, bytes, ranks, stages, schedule, finite, isWhole }: CheckpointSummary): string[] {
  const notes = [finite ? '' : 'not finite', isWhole ? '' : 'sharded'].filter((note) => note !== '').join(', ');
  return [name, String(step), size(bytes), place(ranks, stages, schedule), notes];
}

function place(ranks: number, stages: number, schedule: string | null): string {
  const name = schedule === null ? '' : `, ${schedule}`;
  return `${plural(ranks, 'rank')}, ${plural(stages, 'stage')}${name}`;
}

function describe(manifest: Manifest): string {
  const { step, finite, layout, schedule, files, tensors, groups, states } = manifest;
  const kinds = { parameter: [0, 0], buffer: [0, 0], optimizer: [0, 0] } as Record<string, [number, number]>;
  for (const { kind, shape } of Object.values(tensors)) {
    const entry = kinds[kind]!;
    entry[0]++;
    entry[1] += shape.reduce((product, length) => product * length, 1);
  }
  const amount = ([count, elements]: readonly [number, number]): string =>
    count === 0 ? 'none' : `${elements.toLocaleString('en-US')} numbers in ${plural(count, 'tensor')}`;
  return formatTable(
    [
      ['step', `${step}${finite ? '' : ', with numbers that are not finite'}`],
      ['saved at', place(layout.ranks, layout.stages, schedule)],
      ['parameters', amount(kinds['parameter']!)],
      ['buffers', amount(kinds['buffer']!)],
      ['optimizer', `${amount(kinds['optimizer']!)}, ${plural(groups.length, 'group')}`],
      ['states', Object.keys(states).join(', ') || 'none'],
      ...Object.entries(files).map(([name, { bytes }], i) => [i === 0 ? 'files' : '', `${name}, ${size(bytes)}`]),
    ],
    { align: 'll' },
  );
}

/** Compares a checkpoint with its manifest; 1 where something differs. */
export async function verify(folder: string): Promise<number> {
  checkFolder(folder);
  const { findCheckpoint, verifyCheckpoint } = await import('pipewright');
  const { path, manifest } = findCheckpoint(folder);
  const problems = verifyCheckpoint(path);
  for (const { message } of problems) process.stderr.write(`pipewright: ${message}\n`);
  const bytes = Object.values(manifest.files).reduce((sum, file) => sum + file.bytes, 0);
  const count = Object.keys(manifest.files).length;
  if (problems.length === 0) process.stdout.write(`${path}: ${plural(count, 'file')}, ${size(bytes)}: as written\n`);
  return problems.length === 0 ? 0 : 1;
}

/** Writes a checkpoint with whole tensors. */
export async function convert(from: string, to: string, flags: ConvertFlags): Promise<number> {
  checkFolder(from);
  const { convertCheckpoint } = await import('pipewright');
  process.stdout.write(`${convertCheckpoint(from, to, flags)}\n`);
  return 0;
}

/** Writes weights for Hugging Face tools. */
export async function exportHf(from: string, to: string, flags: ExportFlags): Promise<number> {
  checkFolder(from);
  const { exportWeights } = await import('pipewright');
  const { rename, transpose = [], dtype, maxBytes } = flags;
  const table = Object.entries(rename ?? {}).sort(([a], [b]) => b.length - a.length);
  exportWeights(from, to, {
    dtype,
    maxBytes,
    rename: (name) => ({
      name: renameBy(table, name),
      transpose: transpose.some((end) => name.endsWith(end)),
    }),
  });
  process.stdout.write(`${to}\n`);
  return 0;
}

function renameBy(table: readonly (readonly [string, string])[], name: string): string {
  for (const [begin, other] of table) {
    if (begin !== '' && name !== begin && !name.startsWith(`${begin}.`)) continue;
    const rest = begin === '' ? name : name.slice(begin.length + 1);
    return [other, rest].filter((part) => part !== '').join('.');
  }
  return name;
}

function plural(count: number, noun: string): string {
  return `${count} ${noun}${count === 1 ? '' : 's'}`;
}

function size(bytes: number): string {
  const units = ['B', 'KiB', 'MiB', 'GiB', 'TiB'];
  const unit = Math.min(units.length - 1, Math.floor(Math.log2(Math.max(1, bytes)) / 10));
  const value = bytes / 1024 ** unit;
  return `${unit === 0 ? value : value.toFixed(value < 10 ? 2 : 1)} ${units[unit]}`;
}
