/** @file `pipewright inspect`: what is in an exported model. */
import type { Pt2Description, Pt2Tensors } from 'pipewright';
import { writeResult } from '../../shared/output.ts';
import { colors, formatTable } from '../../shared/term.ts';

/** What `inspect` can write. */
const inspectFormats = ['table', 'json', 'graph'] as const;

/** The flags of the command. */
export interface InspectFlags {
  readonly format: (typeof inspectFormats)[number];
  readonly model?: string;
  readonly size?: Readonly<Record<string, number>>;
  readonly out?: string;
  readonly color?: boolean;
}

/** Runs the command; returns the exit code: 1 where the model cannot be run. */
export async function inspect(file: string, flags: InspectFlags): Promise<number> {
  const { describePt2, formatGraph } = await import('pipewright');
  const found = describePt2(file, { model: flags.model, sizes: flags.size ?? {} });
  const { graph, ...description } = found;
  if (flags.format === 'json') await writeResult(`${JSON.stringify(description, null, 2)}\n`, flags.out);
  else if (flags.format === 'graph') await writeResult(`${formatGraph(graph)}\n`, flags.out);
  else await writeResult(describe(found, flags.out === undefined ? flags.color : false), flags.out);
  return found.problems.length === 0 ? 0 : 1;
}

function describe(found: Pt2Description, color: boolean | undefined): string {
  const paint = colors(color);
  const heading = (text: string): string => `\n${paint.bold(text)}\n`;
  const { memory } = found;
  const sizes = Object.entries(memory.sizes).map(([name, size]) => `${name} = ${size}`);
  const at = sizes.length === 0 ? '' : ` at ${sizes.join(', ')}`;
  const unknown = memory.unknown === 0 ? '' : `, without ${memory.unknown} values of unknown size`;
  const facts = [
    ['file', `${bytes(found.bytes)}, model "${found.model}"`],
    ['written by', `PyTorch ${found.torchVersion}, format ${found.schemaVersion} ${found.dialects.join(', ')}`.trim()],
    ['parameters', amount(found.parameters)],
    ['buffers', amount(found.buffers)],
    ['constants', amount(found.constants)],
    ['training adds', `${bytes(3 * found.parameters.bytes)} for gradients and Adam`],
    ['values in between', `${bytes(memory.peak)} at once, ${bytes(memory.total)} in all${at}${unknown}`],
  ];
  const ranges = Object.entries(found.dynamicDims).map(([name, { min, max }]) => [
    name,
    `${min ?? 'any'} to ${max ?? 'any'}`,
  ]);
  const lines = [formatTable(facts, { align: 'll' })];
  const section = (title: string, rows: readonly (readonly string[])[], align = 'll'): void => {
    if (rows.length > 0) lines.push(heading(title), formatTable(rows, { align }));
  };
  const values = (list: Pt2Description['inputs']): string[][] => list.map(({ name, type }) => [name, type]);
  section('Inputs', values(found.inputs));
  section('Outputs', values(found.outputs));
  section('Dynamic sizes', ranges);
  section(
    'Operators',
    found.operators.map(({ op, count }) => [op, String(count)]),
    'lr',
  );
  section(
    'Tensors',
    found.tensors.map(({ name, kind, dtype, shape, bytes: size, sameAs }) => [
      name,
      kind,
      `${dtype}[${shape.join(', ')}]`,
      sameAs === undefined ? bytes(size) : `same as ${sameAs}`,
    ]),
    'lllr',
  );
  if (found.problems.length > 0)
    lines.push(heading('It cannot be run'), found.problems.map((problem) => `${problem}\n`).join(''));
  return lines.join('');
}

function amount({ count, elements, bytes: size }: Pt2Tensors): string {
  return count === 0
    ? 'none'
    : `${elements.toLocaleString('en-US')} in ${count} tensor${count === 1 ? '' : 's'}, ${bytes(size)}`;
}

/** Bytes in a unit that fits. */
function bytes(count: number): string {
  const units = ['B', 'KiB', 'MiB', 'GiB', 'TiB'];
  let unit = 0;
  let size = count;
  while (size >= 1024 && unit < units.length - 1) {
    size /= 1024;
    unit++;
  }
  return `${unit === 0 ? size : size.toFixed(size < 10 ? 2 : 1)} ${units[unit]}`;
}
