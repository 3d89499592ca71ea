/** @file `pipewright split`: how a model would be split into stages, in numbers or as a picture. */
import type { PipeReport, ReportedValue, SharedValues, SplitPoint, StageReport } from 'pipewright';
import { writeResult } from '../../shared/output.ts';
import { colors, formatTable, lineWidth, wrapWords } from '../../shared/term.ts';
import { UsageError } from '../../shared/usage-error.ts';

/** The flags of the command. */
export interface SplitFlags {
  readonly stages?: number;
  readonly at?: readonly string[];
  readonly multiUse?: 'replicate' | 'transmit';
  readonly shared?: SharedValues;
  readonly format: 'table' | 'json' | 'svg';
  readonly model?: string;
  readonly size?: Readonly<Record<string, number>>;
  readonly out?: string;
  readonly color?: boolean;
  readonly width?: number;
}

/** Runs the command; returns the exit code. */
export async function split(file: string, flags: SplitFlags): Promise<number> {
  if (flags.stages !== undefined && flags.at !== undefined)
    throw new UsageError('--stages and --at exclude each other; give a number of stages or the borders');
  const { describePipe, drawPipe, loadPt2, pipeline } = await import('pipewright');
  const pipe = pipeline(loadPt2(file, { model: flags.model }), {
    stages: flags.stages,
    splitSpec: flags.at === undefined ? undefined : Object.fromEntries(flags.at.map(readBorder)),
    multiUse: flags.multiUse,
    shared: flags.shared,
  });
  if (flags.stages === undefined && flags.at === undefined && pipe.numStages === 1)
    throw new UsageError('no split points in the model; give --stages N or --at');
  const report = describePipe(pipe, flags.size ?? {});
  const title = `${file.replace(/^.*[/\\]/, '')} in ${pipe.numStages} ${pipe.numStages === 1 ? 'stage' : 'stages'}`;
  if (flags.format === 'json') await writeResult(`${JSON.stringify(report, null, 2)}\n`, flags.out);
  else if (flags.format === 'svg') await writeResult(drawPipe(report, { title, width: flags.width }), flags.out);
  else await writeResult(await describe(title, report, flags), flags.out);
  return 0;
}

/** `layers.4:beginning` as a name and a split point. */
function readBorder(text: string): [string, SplitPoint] {
  const match = /^(.+):(beginning|end)$/.exec(text);
  if (match === null)
    throw new UsageError(`--at ${text}: write a module and beginning or end, as in --at layers.4:beginning`);
  return [match[1]!, match[2] as SplitPoint];
}

/** What the columns mean. */
const legend =
  'in, out: bytes of activations per microbatch; forward: floating-point operations of one microbatch; time: its share of the forward time of all stages, estimated from operations, bytes and calls (equal shares make the smallest bubble)';

async function describe(title: string, report: PipeReport, flags: SplitFlags): Promise<string> {
  const paint = colors(flags.out === undefined ? flags.color : false);
  const width = lineWidth(flags.width);
  const { formatBytes, formatFlops } = await import('pipewright');
  const head = ['stage', 'layers', 'parameters', 'memory', 'in', 'out', 'forward', 'time'];
  const row = (stage: StageReport): string[] => [
    String(stage.stage),
    stage.layers.join(' '),
    stage.parameters.elements.toLocaleString('en-US'),
    formatBytes(stage.parameters.bytes),
    formatBytes(stage.bytesIn),
    formatBytes(stage.bytesOut),
    formatFlops(stage.flops),
    `${(100 * stage.share).toFixed(1)} %`,
  ];
  const sizes = Object.entries(report.sizes).map(([name, size]) => `${name} = ${size}`);
  const lines = [
    `${paint.bold(title)}${sizes.length === 0 ? '' : ` at ${sizes.join(', ')}`}\n`,
    formatTable([head.map((text) => ({ text, paint: paint.dim })), ...report.stages.map(row)], {
      align: 'llrrrrrr',
      width,
      wrap: 1,
    }),
    ...wrapWords(legend, width).map((line) => `${paint.dim(line)}\n`),
  ];
  const section = (name: string, rows: readonly (readonly string[])[]): void => {
    if (rows.length > 0) lines.push(`\n${paint.bold(name)}\n`, formatTable(rows, { align: 'lllr' }));
  };
  const from = (value: ReportedValue): string => (value.from === null ? 'input' : `stage ${value.from}`);
  section(
    'Sent further than to the next stage',
    report.skips.map((value) => [
      value.name,
      `${from(value)} to ${value.to.filter((stage) => stage !== value.from).join(', ')}`,
      value.type,
      formatBytes(value.bytes),
    ]),
  );
  section(
    'Parameters used by several stages',
    report.ties.map(({ name, stages }) => [name, `stages ${stages.join(', ')}`]),
  );
  section(
    'Notes',
    report.notes.map((note) => [note]),
  );
  return lines.join('');
}
