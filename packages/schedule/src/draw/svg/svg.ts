/** @file A schedule as an SVG picture, to scale: lanes per rank, bubbles, arrows, legend, memory over time. */

import { checkChoice, checkOptions, ScheduleError, show } from '../../model/errors.ts';
import { computationVisuals, toneOf, visualOrder } from '../palette.ts';
import { type Drawable, FaceReader, type Picture, pictureOf } from '../picture.ts';
import { percent, plural, quantity, ticks } from '../quantity.ts';
import { type BarLabels, drawArrows, drawBars, drawGround, laneTop, type SvgPlan, stripHeight } from './lanes.ts';
import { escapeXml, Markup, num, styleSheet, textWidth } from './markup.ts';
import { drawMemory } from './memory.ts';

/** How `renderSvg` draws. */
export interface SvgOptions {
  /** Width in pixels; default 1200. */
  readonly width?: number;
  /** Height of a lane in pixels; default by the number of ranks. */
  readonly laneHeight?: number;
  /** `auto` (default) follows the reader's preference. The picture brings its own ground, so it stands on any page. */
  readonly theme?: 'auto' | 'light' | 'dark';
  /** Default: name and shape of the schedule. */
  readonly title?: string;
  /** What stands on the bars; `auto` (default): the action if it fits, else its microbatch. */
  readonly labels?: BarLabels;
  /** Arrows for data crossing ranks; default: up to 16 ranks and 600 arrows. */
  readonly arrows?: boolean;
  /** The memory panel; default: where memory is known. */
  readonly memory?: boolean;
  /** Default true. */
  readonly legend?: boolean;
  /** Name of the time unit on the axis, such as `ms`. */
  readonly timeUnit?: string;
  /** Name of the memory unit, such as `GB`. */
  readonly memoryUnit?: string;
}

const optionNames = [
  'width',
  'laneHeight',
  'theme',
  'title',
  'labels',
  'arrows',
  'memory',
  'legend',
  'timeUnit',
  'memoryUnit',
];
const mostTooltips = 2500;

/**
 * A schedule or a simulated step as an SVG picture, to scale.
 * @example writeFileSync('1f1b.svg', renderSvg(simulate(schedule, { F: 1, I: 1, W: 1, comm: 0.1 })))
 */
export function renderSvg(source: Drawable, options: SvgOptions = {}): string {
  return drawSvg(pictureOf(source), options, 'renderSvg');
}

/** Draws a picture; `renderSvg` makes the picture first. */
export function drawSvg(picture: Picture, options: SvgOptions, caller: string): string {
  checkOptions(caller, options, optionNames);
  checkChoice(caller, 'theme', options.theme, ['auto', 'light', 'dark']);
  checkChoice(caller, 'labels', options.labels, ['auto', 'action', 'microbatch', 'none']);
  const width = checkSize(caller, 'width', options.width ?? 1200, 320);
  const { schedule } = picture;
  const theme = options.theme ?? 'auto';
  const arrows = options.arrows ?? (schedule.ranks <= 16 && picture.transferCount <= 600);
  const memory = picture.memory !== null && (options.memory ?? true);
  const lane = laneSize(schedule.ranks, arrows && picture.transferCount > 0);
  const laneHeight =
    options.laneHeight === undefined ? lane.height : checkSize(caller, 'laneHeight', options.laneHeight, 1);

  const left = 24 + Math.max(46, textWidth(`rank ${schedule.ranks - 1}`, lane.font) + 8);
  const right = width - (picture.memory === null ? 92 : 132);
  const legend =
    options.legend === false
      ? []
      : legendLines(legendItems(picture, { arrows, strips: stripHeight(lane.gap) > 0, theme }), width - 48);
  const top = 78 + legend.length * 20 + 14;
  const plan: SvgPlan = {
    left,
    right,
    top,
    laneHeight,
    laneGap: lane.gap,
    scale: picture.makespan > 0 ? (right - left) / picture.makespan : 0,
    theme,
  };
  const bottom = laneTop(plan, schedule.ranks) - lane.gap;
  const panel = { top: bottom + 72, height: 110 };
  const height = memory ? panel.top + panel.height + 26 : bottom + 46;

  const out = new Markup();
  const title = options.title ?? defaultTitle(picture);
  out.add(
    `<svg xmlns="http://www.w3.org/2000/svg" class="pw-${theme}" width="${num(width)}" height="${num(height)}" viewBox="0 0 ${num(width)} ${num(height)}" role="img">`,
  );
  out.add(`<title>${escapeXml(title)}</title><desc>${escapeXml(numbersLine(picture))}</desc>`);
  out.add(styleSheet(theme));
  out.add(definitions(theme));
  out.add(`<rect width="100%" height="100%" rx="8" fill="var(--pw-paper)"/>`);
  out.text(24, 30, title, 'font-size="18" font-weight="600"');
  out.text(24, 56, numbersLine(picture), 'class="pw-soft" font-size="13"');
  legend.forEach((items, line) => drawLegendLine(out, items, 86 + line * 20));
  drawAxis(out, picture, {
    plan,
    bottom: memory ? panel.top + panel.height : bottom,
    labels: bottom,
    unit: options.timeUnit ?? '',
  });
  drawGround(out, picture, plan);
  if (arrows) drawArrows(out, picture, plan);
  drawBars(out, picture, plan, { labels: options.labels ?? 'auto', tooltips: picture.bars.count <= mostTooltips });
  drawSides(out, picture, plan, lane.font);
  if (memory) drawMemory(out, picture, { ...plan, ...panel, unit: options.memoryUnit ?? picture.memoryUnit });
  out.add('</svg>');
  return `${out.toString()}\n`;
}

/** Lane height, gap and label font by the number of ranks. */
function laneSize(
  ranks: number,
  arrows: boolean,
): { readonly height: number; readonly gap: number; readonly font: number } {
  if (ranks <= 4) return { height: 34, gap: arrows ? 15 : 8, font: 13 };
  if (ranks <= 8) return { height: 28, gap: arrows ? 12 : 6, font: 12 };
  if (ranks <= 16) return { height: 20, gap: arrows ? 9 : 4, font: 11 };
  if (ranks <= 32) return { height: 15, gap: 2, font: 10 };
  if (ranks <= 64) return { height: 10, gap: 1.5, font: 9 };
  return { height: Math.max(1, 680 / ranks), gap: ranks <= 160 ? 0.75 : 0, font: 9 };
}

function defaultTitle({ schedule }: Picture): string {
  return `${schedule.name}: ${plural(schedule.ranks, 'rank')}, ${plural(schedule.stages, 'stage')}, ${plural(schedule.microbatches, 'microbatch', 'microbatches')}`;
}

function numbersLine(picture: Picture): string {
  const parts = [`makespan ${quantity(picture.makespan)}`];
  if (picture.bubble !== null)
    parts.push(
      `bubble ${percent(picture.bubble.makespan)} of the makespan, ${percent(picture.bubble.span)} of the span`,
    );
  if (picture.memory !== null && picture.memory.length > 0) {
    const peaks = picture.memory.map((curve) => curve.peak);
    const peak = Math.max(...peaks);
    parts.push(`peak memory ${quantity(peak)} (rank ${peaks.indexOf(peak)})`);
  }
  return parts.join('   ·   ');
}

/** Hatch and arrow head. */
function definitions(theme: string): string {
  return [
    '<defs>',
    `<pattern id="pw-hatch-${theme}" width="6" height="6" patternUnits="userSpaceOnUse" patternTransform="rotate(45)"><path d="M0 0V6" stroke="var(--pw-hatch)" stroke-width="1.4"/></pattern>`,
    `<marker id="pw-head-${theme}" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="6" markerHeight="6" orient="auto"><path d="M0 0.8L8 4L0 7.2z" fill="var(--pw-arrow)"/></marker>`,
    '</defs>',
  ].join('');
}

/** Time marks under the lanes and lines through them. */
function drawAxis(
  out: Markup,
  picture: Picture,
  at: { readonly plan: SvgPlan; readonly bottom: number; readonly labels: number; readonly unit: string },
): void {
  const { plan } = at;
  const marks = ticks(picture.makespan, Math.max(2, Math.round((plan.right - plan.left) / 90)));
  const lines = marks
    .map((mark) => `M${num(plan.left + mark * plan.scale)} ${num(plan.top - 6)}V${num(at.bottom + 5)}`)
    .join('');
  out.add(`<path class="pw-grid" d="${lines}"/>`);
  for (const mark of marks)
    out.text(plan.left + mark * plan.scale, at.labels + 18, quantity(mark), 'class="pw-soft pw-mid" font-size="11"');
  out.text(plan.right + 24, at.labels + 18, at.unit === '' ? 'time' : at.unit, 'class="pw-soft" font-size="11"');
}

/** Rank names on the left, busy share and peak memory on the right. */
function drawSides(out: Markup, picture: Picture, plan: SvgPlan, font: number): void {
  const every = Math.max(1, Math.ceil((font + 1) / (plan.laneHeight + plan.laneGap)));
  out.text(plan.right + 10, plan.top - 14, 'busy', 'class="pw-soft" font-size="11"');
  if (picture.memory !== null) out.text(plan.right + 66, plan.top - 14, 'peak', 'class="pw-soft" font-size="11"');
  for (let rank = 0; rank < picture.schedule.ranks; rank += every) {
    const y = laneTop(plan, rank) + plan.laneHeight / 2;
    out.text(plan.left - 8, y, `rank ${rank}`, `class="pw-end" font-size="${font}"`);
    const share = picture.makespan > 0 ? picture.busy[rank]! / picture.makespan : 0;
    out.text(plan.right + 10, y, percent(share), `class="pw-soft" font-size="${font}"`);
    if (picture.memory !== null)
      out.text(plan.right + 66, y, quantity(picture.memory[rank]!.peak), `class="pw-soft" font-size="${font}"`);
  }
}

interface LegendItem {
  readonly label: string;
  readonly swatch: (x: number, y: number) => string;
}

/** Kinds that occur, then bubbles, then arrows, then the meaning of tones. */
function legendItems(
  picture: Picture,
  shown: { readonly arrows: boolean; readonly strips: boolean; readonly theme: string },
): LegendItem[] {
  const { arrows, strips, theme } = shown;
  const { schedule, bars } = picture;
  const faces = new FaceReader(schedule);
  const present = new Set<string>();
  for (let i = 0; i < bars.count; i++) {
    const kind = faces.kind(bars.rank[i]!, bars.slot[i]!);
    if (bars.end[i]! > bars.start[i]! && (bars.beside[i] === 0 || (strips && !kind.startsWith('RECV'))))
      present.add(kind);
  }
  const square =
    (fill: string) =>
    (x: number, y: number): string =>
      `<rect x="${num(x)}" y="${num(y - 6)}" width="18" height="12" rx="2" fill="${fill}"/>`;
  const items: LegendItem[] = [];
  for (const kind of visualOrder) {
    if (!present.has(kind)) continue;
    const { label } = computationVisuals[kind];
    items.push({ label, swatch: kind === 'OVERLAP_F_B' ? overlapSwatch : square(toneOf(kind, 0, 1)) });
  }
  items.push({
    label: 'Idle (bubble)',
    swatch: (x, y) =>
      `<rect x="${num(x)}" y="${num(y - 6)}" width="18" height="12" fill="var(--pw-lane)"/><rect x="${num(x)}" y="${num(y - 6)}" width="18" height="12" fill="url(#pw-hatch-${theme})"/>`,
  });
  if (arrows && picture.transferCount > 0) {
    items.push({
      label: 'Data to another rank',
      swatch: (x, y) => `<path class="pw-arrow" d="M${num(x)} ${num(y)}h17" marker-end="url(#pw-head-${theme})"/>`,
    });
  }
  const chunks = Math.max(0, ...faces.chunksOfRank);
  if (chunks > 1) items.push({ label: 'Lighter: later stage of the rank', swatch: (x, y) => toneSwatch(x, y, chunks) });
  return items;
}

function overlapSwatch(x: number, y: number): string {
  const half = (dy: number, kind: 'F' | 'B'): string =>
    `<rect x="${num(x)}" y="${num(y + dy)}" width="18" height="6" fill="${toneOf(kind, 0, 1)}"/>`;
  return `${half(-6, 'F')}${half(0, 'B')}<rect x="${num(x + 0.7)}" y="${num(y - 5.3)}" width="16.6" height="10.6" fill="none" stroke="${toneOf('OVERLAP_F_B', 0, 1)}" stroke-width="1.4"/>`;
}

function toneSwatch(x: number, y: number, chunks: number): string {
  const shown = Math.min(chunks, 3);
  return Array.from({ length: shown }, (_, i) => {
    const chunk = Math.round((i * (chunks - 1)) / (shown - 1));
    return `<rect x="${num(x + (i * 18) / shown)}" y="${num(y - 6)}" width="${num(18 / shown)}" height="12" fill="${toneOf('F', chunk, chunks)}"/>`;
  }).join('');
}

/** Breaks legend items into lines that fit. */
function legendLines(items: readonly LegendItem[], room: number): LegendItem[][] {
  const lines: LegendItem[][] = [[]];
  let used = 0;
  for (const item of items) {
    const wide = legendWidth(item);
    if (used > 0 && used + wide > room) {
      lines.push([]);
      used = 0;
    }
    lines.at(-1)!.push(item);
    used += wide;
  }
  return lines;
}

function legendWidth(item: LegendItem): number {
  return 24 + textWidth(item.label, 12) + 18;
}

function drawLegendLine(out: Markup, items: readonly LegendItem[], y: number): void {
  let x = 24;
  for (const item of items) {
    out.add(item.swatch(x, y));
    out.text(x + 24, y, item.label, 'font-size="12"');
    x += legendWidth(item);
  }
}

function checkSize(caller: string, option: string, value: number, least: number): number {
  if (typeof value === 'number' && Number.isFinite(value) && value >= least) return value;
  throw new ScheduleError(
    'BAD_OPTION',
    `${caller}: ${option} must be a number of at least ${least}, got ${show(value)}`,
    { option, value },
  );
}
