/** @file The lanes of an SVG picture: bubbles, bars, their texts, and arrows between ranks. */

import type { ActionKind } from '../../model/action.ts';
import { inkOn, toneOf } from '../palette.ts';
import { type BarFace, type Bars, FaceReader, type Picture } from '../picture.ts';
import { quantity } from '../quantity.ts';
import { escapeXml, type Markup, num, textWidth } from './markup.ts';

/** Where things stand in an SVG picture, in pixels. */
export interface SvgPlan {
  readonly left: number;
  readonly right: number;
  readonly top: number;
  readonly laneHeight: number;
  readonly laneGap: number;
  /** Pixels per time unit. */
  readonly scale: number;
  /** Suffix that keeps ids of several pictures in one page apart. */
  readonly theme: string;
}

/** Top edge of a lane. */
export function laneTop(plan: SvgPlan, rank: number): number {
  return plan.top + rank * (plan.laneHeight + plan.laneGap);
}

/** Height of the strip under a lane for what runs beside compute; 0 where lanes are too close for one. */
export function stripHeight(laneGap: number): number {
  return laneGap < 3 ? 0 : Math.min(4, laneGap * 0.4);
}

/** The hatched ground of every lane: what bars leave uncovered is idle time. */
export function drawGround(out: Markup, picture: Picture, plan: SvgPlan): void {
  const width = num(picture.makespan * plan.scale);
  const lanes = Array.from(
    { length: picture.schedule.ranks },
    (_, rank) => `M${num(plan.left)} ${num(laneTop(plan, rank))}h${width}v${num(plan.laneHeight)}h-${width}z`,
  ).join('');
  out.add(`<path d="${lanes}" fill="var(--pw-lane)"/>`);
  out.add(`<path d="${lanes}" fill="url(#pw-hatch-${plan.theme})"/>`);
}

/** Straight arrows from where data leaves a rank to where it arrives. */
export function drawArrows(out: Markup, picture: Picture, plan: SvgPlan): void {
  const head = `marker-end="url(#pw-head-${plan.theme})"`;
  const paths: string[] = [];
  for (const { fromRank, toRank, departure, arrival } of picture.transfers()) {
    const down = toRank > fromRank;
    const x1 = plan.left + departure * plan.scale;
    const x2 = plan.left + arrival * plan.scale;
    const y1 = laneTop(plan, fromRank) + (down ? plan.laneHeight : 0);
    const y2 = laneTop(plan, toRank) + (down ? -1 : plan.laneHeight + 1);
    paths.push(`<path d="M${num(x1)} ${num(y1)}L${num(x2)} ${num(y2)}" ${head}/>`);
  }
  out.add(`<g class="pw-arrow">${paths.join('')}</g>`);
}

/** What may be written on bars. */
export type BarLabels = 'auto' | 'action' | 'microbatch' | 'none';

/** Bars and their texts; a tooltip on each bar where there are few enough. */
export function drawBars(
  out: Markup,
  picture: Picture,
  plan: SvgPlan,
  options: { readonly labels: BarLabels; readonly tooltips: boolean },
): void {
  const painter = new BarPainter(picture, plan, options.tooltips);
  const labels = options.labels === 'auto' ? painter.labelsThatFit() : options.labels;
  painter.paint(labels);
  painter.flush(out);
}

interface Box {
  readonly x: number;
  readonly y: number;
  readonly width: number;
  readonly height: number;
}

/** Sorts bars by tone, so that each tone is written once. */
class BarPainter {
  private readonly faces: FaceReader;
  private readonly bars: Bars;
  private readonly picture: Picture;
  private readonly plan: SvgPlan;
  private readonly tooltips: boolean;
  private readonly shapes: Map<string, string[]> = new Map();
  /** Where each line of dashes has come to, in hundredths of a pixel. */
  private readonly pens: Map<string, { readonly x: number; readonly y: number }> = new Map();
  private readonly rings: string[] = [];
  private readonly texts: { readonly onDark: string[]; readonly onLight: string[] } = { onDark: [], onLight: [] };
  private readonly font: number;

  constructor(picture: Picture, plan: SvgPlan, tooltips: boolean) {
    this.faces = new FaceReader(picture.schedule);
    this.bars = picture.bars;
    this.picture = picture;
    this.plan = plan;
    this.tooltips = tooltips;
    this.font = Math.min(12, plan.laneHeight * 0.62);
  }

  /** Whole actions if nearly all of them fit, else microbatches. */
  labelsThatFit(): BarLabels {
    const { bars, faces, plan } = this;
    const room = this.picture.makespan * plan.scale * this.picture.schedule.ranks;
    if (this.font < 5.5 || bars.count * this.font * 0.57 > room) return 'none';
    let misfits = 0;
    for (let i = 0; i < bars.count; i++) {
      const width = (bars.end[i]! - bars.start[i]!) * plan.scale;
      if (bars.beside[i] === 1) continue;
      const face = faces.face(bars.rank[i]!, bars.slot[i]!);
      const longest =
        face.parts.length > 0 ? face.parts.reduce((n, part) => Math.max(n, part.text.length), 0) : face.text.length;
      if (width > 0 && width < longest * this.font * 0.6 + 5) misfits++;
    }
    return misfits <= bars.count * 0.02 ? 'action' : 'microbatch';
  }

  paint(labels: BarLabels): void {
    const { bars } = this;
    for (let first = 0; first < bars.count; ) {
      const rank = bars.rank[first]!;
      let end = first;
      let shown = 0;
      for (; end < bars.count && bars.rank[end] === rank; end++) {
        if (bars.beside[end] === 0 && bars.end[end]! > bars.start[end]!) shown++;
      }
      const dense = !this.tooltips && shown > this.picture.busy[rank]! * this.plan.scale;
      if (dense) this.paintDense(rank, { first, end });
      else for (let i = first; i < end; i++) this.paintOne(i, labels);
      first = end;
    }
  }

  private paintOne(index: number, labels: BarLabels): void {
    const { bars, plan } = this;
    const rank = bars.rank[index]!;
    const width = (bars.end[index]! - bars.start[index]!) * plan.scale;
    if (width <= 0) return;
    if (bars.beside[index] === 1) {
      this.paintBeside(index, width);
      return;
    }
    const box = {
      x: plan.left + bars.start[index]! * plan.scale,
      y: laneTop(plan, rank),
      width: width > 3 ? width - 1 : width > 2 ? width - 0.4 : width,
      height: plan.laneHeight,
    };
    this.paintBar(this.faces.face(rank, bars.slot[index]!), box, index, labels);
  }

  /** What runs beside compute is a thin strip under the lane; receives only wait, arrows show what they wait for. */
  private paintBeside(index: number, width: number): void {
    const { bars, plan } = this;
    const rank = bars.rank[index]!;
    const kind = this.faces.kind(rank, bars.slot[index]!);
    const height = stripHeight(plan.laneGap);
    if (kind === 'RECV_F' || kind === 'RECV_B' || height === 0) return;
    this.shape(
      toneOf(kind, 0, 1),
      { x: plan.left + bars.start[index]! * plan.scale, y: laneTop(plan, rank) + plan.laneHeight + 0.5, width, height },
      index,
    );
  }

  /** A lane with several bars per pixel: each pixel takes that one of its tones which is most behind its share of time. */
  private paintDense(rank: number, lane: { readonly first: number; readonly end: number }): void {
    const { bars, plan, faces } = this;
    const columns = Math.ceil(this.picture.makespan * plan.scale);
    const owed = new Map<string, number>();
    let next = lane.first;
    let run = { tone: '', from: 0, bar: lane.first };
    const close = (column: number): void => {
      const box = {
        x: plan.left + run.from,
        y: laneTop(plan, rank),
        width: column - run.from,
        height: plan.laneHeight,
      };
      if (run.tone !== '' && column > run.from) this.shape(run.tone, box, run.bar);
    };
    for (let column = 0; column < columns; column++) {
      const shares = new Map<string, number>([['', 1]]);
      for (let i = next; i < lane.end && bars.start[i]! * plan.scale < column + 1; i++) {
        const end = bars.end[i]! * plan.scale;
        if (end <= column + 1) next = i + 1;
        if (bars.beside[i] === 1) continue;
        const share = Math.max(0, Math.min(end, column + 1) - Math.max(bars.start[i]! * plan.scale, column));
        const slot = bars.slot[i]!;
        const tone = toneOf(faces.kind(rank, slot), faces.chunk(rank, slot), faces.chunksOfRank[rank]!);
        shares.set(tone, (shares.get(tone) ?? 0) + share);
        shares.set('', shares.get('')! - share);
      }
      let tone = '';
      let most = Number.NEGATIVE_INFINITY;
      for (const [candidate, share] of shares) {
        const due = Math.min(1, owed.get(candidate) ?? 0) + share;
        owed.set(candidate, due);
        if (share > 1e-6 && due > most) {
          tone = candidate;
          most = due;
        }
      }
      owed.set(tone, (owed.get(tone) ?? 0) - 1);
      if (tone === run.tone) continue;
      close(column);
      run = { tone, from: column, bar: next };
    }
    close(columns);
  }

  private paintBar(face: BarFace, box: Box, index: number, labels: BarLabels): void {
    const rank = this.bars.rank[index]!;
    if (face.parts.length < 2) {
      this.shape(this.toneOf(face, rank), box, index);
      this.label(face, box, this.toneOf(face, rank), labels);
      return;
    }
    const height = box.height / face.parts.length;
    face.parts.forEach((part, i) => {
      const slice = { ...box, y: box.y + i * height, height };
      this.shape(this.toneOf(part, rank), slice, index);
      this.label(part, slice, this.toneOf(part, rank), labels);
    });
    if (box.width > 5)
      this.rings.push(
        `M${num(box.x + 0.6)} ${num(box.y + 0.6)}h${num(box.width - 1.2)}v${num(box.height - 1.2)}h${num(1.2 - box.width)}z`,
      );
  }

  private toneOf(face: { readonly kind: ActionKind; readonly chunk: number }, rank: number): string {
    return toneOf(face.kind, face.chunk, this.faces.chunksOfRank[rank]!);
  }

  private shape(tone: string, box: Box, index: number): void {
    // Without tooltips bars are dashes of one thick line per tone and height: a fraction of the text of rectangles.
    const key = this.tooltips ? tone : `${tone} ${num(box.height)}`;
    let list = this.shapes.get(key);
    if (list === undefined) this.shapes.set(key, (list = []));
    if (!this.tooltips) {
      list.push(this.dash(key, box));
      return;
    }
    const corner = box.width > 6 && box.height > 8 ? ' rx="2"' : '';
    list.push(
      `<rect x="${num(box.x)}" y="${num(box.y)}" width="${num(box.width)}" height="${num(box.height)}"${corner}><title>${escapeXml(this.tooltip(index))}</title></rect>`,
    );
  }

  /** A dash from where the last one of its line ended; positions are rounded before they are subtracted, so that nothing drifts. */
  private dash(key: string, box: Box): string {
    const cents = (value: number): number => Math.round(value * 100);
    const x = cents(box.x);
    const y = cents(box.y + box.height / 2);
    const end = Math.max(x + 1, cents(box.x + box.width));
    const last = this.pens.get(key);
    this.pens.set(key, { x: end, y });
    const move =
      last === undefined || last.y !== y ? `M${x / 100} ${y / 100}` : x === last.x ? '' : `m${(x - last.x) / 100} 0`;
    return `${move}h${(end - x) / 100}`;
  }

  private tooltip(index: number): string {
    const { bars } = this;
    const rank = bars.rank[index]!;
    return `${this.picture.schedule.format(this.picture.schedule.rows[rank]![bars.slot[index]!]!)} on rank ${rank}: ${quantity(bars.start[index]!)} to ${quantity(bars.end[index]!)}`;
  }

  private label(face: BarFace, box: Box, tone: string, labels: BarLabels): void {
    if (labels === 'none') return;
    const font = Math.min(this.font, box.height * 0.78);
    if (font < 5.5) return;
    const text = labels === 'action' ? face.text : face.short;
    const fits = (candidate: string): boolean => candidate !== '' && textWidth(candidate, font) <= box.width - 1;
    const chosen = fits(text) ? text : fits(face.short) ? face.short : '';
    if (chosen === '') return;
    const size = font === this.font ? '' : ` font-size="${num(font)}"`;
    const list = inkOn(tone) === '#ffffff' ? this.texts.onDark : this.texts.onLight;
    list.push(
      `<text x="${num(box.x + box.width / 2)}" y="${num(box.y + box.height / 2 + 0.5)}"${size}>${chosen}</text>`,
    );
  }

  flush(out: Markup): void {
    for (const [key, list] of this.shapes) {
      const [tone, height] = key.split(' ');
      if (this.tooltips) out.add(`<g fill="${tone}">${list.join('')}</g>`);
      else out.add(`<path stroke="${tone}" stroke-width="${height}" fill="none" d="${list.join('')}"/>`);
    }
    if (this.rings.length > 0)
      out.add(
        `<path d="${this.rings.join('')}" fill="none" stroke="${toneOf('OVERLAP_F_B', 0, 1)}" stroke-width="1.4"/>`,
      );
    const { onDark, onLight } = this.texts;
    const group = (name: string, list: readonly string[]): string =>
      `<g class="${name}" font-size="${num(this.font)}" pointer-events="none">${list.join('')}</g>`;
    if (onDark.length > 0) out.add(group('pw-on-dark', onDark));
    if (onLight.length > 0) out.add(group('pw-on-light', onLight));
  }
}
