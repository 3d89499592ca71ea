/** @file A picture of the stages of a pipe: boxes in a row, what travels between them, skips as arcs. SVG as text. */
import { checkArgument, checkOptions } from '../base/checks.ts';
import type { PipeReport, ReportedValue, StageReport } from './report.ts';

const boxWidth = 190;
const gap = 120;
const margin = 24;
const lineHeight = 16;

/** How a picture is drawn. */
export interface PictureOptions {
  /** Pixels; the picture scales to it. Default: as wide as it needs. */
  readonly width?: number | undefined;
  /** A line above it. */
  readonly title?: string | undefined;
}

/** The stage graph as an SVG document. @example writeFileSync('split.svg', drawPipe(describePipe(pipe))) */
export function drawPipe(report: PipeReport, options: PictureOptions = {}): string {
  const isReport =
    typeof report === 'object' &&
    report !== null &&
    Array.isArray(report.ties) &&
    Array.isArray(report.stages) &&
    report.stages.every((stage) => Array.isArray(stage?.inputs));
  checkArgument('drawPipe', isReport, ['the report', report], 'what describePipe returns');
  checkOptions('drawPipe', options, ['width', 'title']);
  const { stages } = report;
  const texts = stages.map(linesOf);
  const height = 34 + Math.max(...texts.map((lines) => lines.length)) * lineHeight;
  const arcs = stepsOf(report).filter(({ from, to }) => to > from + 1);
  const levels = arcLevels(arcs);
  const top =
    margin + (options.title === undefined ? 0 : 28) + Math.max(0, ...levels) * 34 + (arcs.length > 0 ? 44 : 0);
  const left = (stage: number): number => margin + stage * (boxWidth + gap);
  const width = left(stages.length - 1) + boxWidth + margin;
  const bottom = top + height + margin + report.ties.length * 18;
  const parts: string[] = [];
  if (options.title !== undefined) parts.push(text(margin, margin + 6, options.title, 'title'));
  stages.forEach((stage, i) => {
    const shade = 88 - Math.round(38 * (stage.share / Math.max(...stages.map(({ share }) => share), 1e-12)));
    parts.push(
      `<rect class="box" x="${left(i)}" y="${top}" width="${boxWidth}" height="${height}" rx="8" style="--share:${shade}%"/>`,
      text(left(i) + 12, top + 18, `stage ${i}`, 'name'),
      ...texts[i]!.map((line, k) => text(left(i) + 12, top + 38 + k * lineHeight, line)),
    );
  });
  for (const { from, to, label } of stepsOf(report).filter((step) => step.to === step.from + 1)) {
    const [x, y] = [left(from) + boxWidth, top + 34];
    parts.push(
      arrow(`M${x} ${y}H${left(to) - 7}`),
      ...label.map((line, k) => text(x + gap / 2, y - 8 - (label.length - 1 - k) * 13, line, 'label')),
    );
  }
  arcs.forEach(({ from, to, label }, i) => {
    const [start, end] = [left(from) + boxWidth - 24, left(to) + 24];
    const y = top - 22 - levels[i]! * 34;
    parts.push(
      arrow(
        `M${start} ${top}V${y + 8}Q${start} ${y} ${start + 8} ${y}H${end - 8}Q${end} ${y} ${end} ${y + 8}V${top - 7}`,
      ),
      text((start + end) / 2, y - 7, label.join(', '), 'label'),
    );
  });
  report.ties.forEach(({ name, stages: holders }, i) => {
    parts.push(text(margin, top + height + 20 + i * 18, `tied: ${name} in stages ${holders.join(', ')}`, 'soft'));
  });
  const size = options.width === undefined ? `width="${width}" height="${bottom}"` : `width="${options.width}"`;
  return `<svg xmlns="http://www.w3.org/2000/svg" ${size} viewBox="0 0 ${width} ${bottom}" role="img">${style}${parts.join('\n')}</svg>\n`;
}

/** Everything that goes from one stage to another, as one arrow. */
interface Arrow {
  readonly from: number;
  readonly to: number;
  readonly label: string[];
}

function stepsOf({ stages }: PipeReport): Arrow[] {
  const steps = new Map<string, { from: number; to: number; values: ReportedValue[] }>();
  for (const { stage: to, inputs } of stages)
    for (const value of inputs) {
      const from = value.from ?? 0;
      if (to === 0 || from === to) continue;
      const key = `${from} ${to}`;
      const step = steps.get(key) ?? { from, to, values: [] };
      step.values.push(value);
      steps.set(key, step);
    }
  return [...steps.values()].map(({ from, to, values }) => ({
    from,
    to,
    label: values.slice(0, 3).map(({ name, bytes }) => `${shorten(name, 12)} ${formatBytes(bytes)}`),
  }));
}

/** Heights of arcs, so that arcs over the same stages do not lie on each other. */
function arcLevels(arcs: readonly Arrow[]): number[] {
  const levels: number[] = [];
  arcs.forEach((arc, i) => {
    let level = 0;
    while (arcs.slice(0, i).some((other, k) => levels[k] === level && other.from < arc.to && arc.from < other.to))
      level++;
    levels.push(level);
  });
  return levels;
}

function linesOf({ layers, parameters, share, flops }: StageReport): string[] {
  const shown = layers.length > 5 ? [...layers.slice(0, 4), `and ${layers.length - 4} more`] : layers;
  return [
    ...shown.map((layer) => shorten(layer, 26)),
    `${parameters.elements.toLocaleString('en-US')} parameters`,
    `${formatFlops(flops)}, ${(100 * share).toFixed(0)} %`,
  ];
}

/** Bytes in a unit that fits. @example formatBytes(1536) // '1.5 KiB' */
export function formatBytes(bytes: number): string {
  checkArgument('formatBytes', typeof bytes === 'number', ['the number of bytes', bytes], 'a number');
  const units = ['B', 'KiB', 'MiB', 'GiB', 'TiB'];
  const unit = bytes < 1 ? 0 : Math.min(units.length - 1, Math.floor(Math.log2(bytes) / 10));
  const size = bytes / 1024 ** unit;
  return `${unit === 0 || Number.isInteger(size) ? size : size.toFixed(1)} ${units[unit]}`;
}

/** Operations in a unit that fits. @example formatFlops(2.5e9) // '2.5 GFLOP' */
export function formatFlops(flops: number): string {
  checkArgument('formatFlops', typeof flops === 'number', ['the number of operations', flops], 'a number');
  const units = ['', 'K', 'M', 'G', 'T', 'P'];
  const unit = flops < 1 ? 0 : Math.min(units.length - 1, Math.floor(Math.log10(flops) / 3));
  const size = flops / 1000 ** unit;
  return `${unit === 0 ? size : size.toFixed(1)} ${units[unit]}FLOP`;
}

function shorten(name: string, most: number): string {
  return name.length <= most ? name : `…${name.slice(1 - most)}`;
}

function arrow(path: string): string {
  return `<path class="arrow" d="${path}" marker-end="url(#head)"/>`;
}

function text(x: number, y: number, content: string, kind = ''): string {
  const safe = content.replace(/[&<>"]/g, (char) => ({ '&': '&amp;', '<': '&lt;', '>': '&gt;', '"': '&quot;' })[char]!);
  return `<text x="${x}" y="${y}"${kind === '' ? '' : ` class="${kind}"`}>${safe}</text>`;
}

const light = '--paper:#ffffff;--ink:#1c2733;--soft:#5b6875;--line:#3d4a57;--hue:210';
const dark = '--paper:#10171f;--ink:#e8eef4;--soft:#9aa8b5;--line:#c5d0da;--hue:210';
const style = `<style>svg{${light};background:var(--paper);font:12px system-ui,-apple-system,"Segoe UI","Liberation Sans",Arial,sans-serif}
@media (prefers-color-scheme:dark){svg{${dark}}}
text{fill:var(--ink)}.title{font-size:16px;font-weight:600}.name{font-weight:600}.soft{fill:var(--soft)}.label{text-anchor:middle;font-size:11px;fill:var(--soft)}
.box{fill:color-mix(in srgb,hsl(var(--hue) 70% 50%),var(--paper) var(--share));stroke:var(--line)}.arrow{fill:none;stroke:var(--line);stroke-width:1.2}</style>
<defs><marker id="head" viewBox="0 0 8 8" refX="1" refY="4" markerWidth="7" markerHeight="7" orient="auto"><path d="M0 0L8 4L0 8z" fill="var(--line)"/></marker></defs>`;
