/** @file The timeline on a canvas: paints lanes, writes texts, draws what is selected, and turns the pointer into places. */
import { FaceReader, formatAction, inkOn, quantity } from '@pipewright/schedule';
import { barAt, fillOf, type Track } from '../model/lanes.ts';
import type { CellPlace } from '../model/links.ts';
import { axisHeight, type LaneGroup, type LaneLayout, layOut, type PlacedLane } from './layout.ts';
import { clear, type PaintTheme, type Pixels, paintLane, stripOf } from './paint.ts';
import { axisTicks, fit, pan, type Viewport, zoom } from './viewport.ts';

/** Colours of the page that the canvas uses. */
export interface TimelineTheme extends PaintTheme {
  readonly text: string;
  readonly faint: string;
  readonly mark: string;
  readonly warn: string;
}

/** A cell of one of the groups. */
export interface GroupCell extends CellPlace {
  readonly group: number;
}

/** An arrow between two cells of one group. */
export interface Arrow {
  readonly group: number;
  readonly from: CellPlace;
  readonly to: CellPlace;
  readonly warn?: boolean;
  /** Whether it leads from the middle of the one to the middle of the other: times do not say which is first. */
  readonly betweenMiddles?: boolean;
}

/** What is drawn over the bars. */
export interface Overlay {
  readonly selected: GroupCell | null;
  readonly hovered: GroupCell | null;
  readonly arrows: readonly Arrow[];
  /** Cells with something wrong. */
  readonly marks: readonly GroupCell[];
  /** Cells that took longer than planned, and those that began late. */
  readonly longer?: readonly CellPlace[];
  readonly late?: readonly CellPlace[];
  /** Cells to outline: the critical path. */
  readonly critical: readonly GroupCell[];
  /** A thin line across a lane: where a dragged cell would go. */
  readonly drop: { readonly group: number; readonly rank: number; readonly time: number } | null;
  /** Ranks that have failed. */
  readonly failed?: readonly number[];
}

/** Width of the labels on the left, in pixels. */
export const gutter = 86;

const noOverlay: Overlay = { selected: null, hovered: null, arrows: [], marks: [], critical: [], drop: null };

/** The timeline of several groups on one time axis. */
export class TimelineCanvas {
  view: Viewport = fit(1);
  overlay: Overlay = noOverlay;
  private groups: readonly LaneGroup[] = [];
  private readers: FaceReader[] = [];
  private layout: LaneLayout = { height: 0, titles: [], lanes: [] };
  private theme: TimelineTheme;
  private readonly canvas: HTMLCanvasElement;
  private readonly context: CanvasRenderingContext2D;
  private pixels: ImageData | null = null;
  /** Width of the element in CSS pixels. */
  width = 0;
  private available = 300;
  private scale = 1;
  private queued = 0;
  /** Widths of letters by font. */
  private readonly letters: Map<string, Map<string, number>> = new Map();
  private spans: ReadonlyMap<string, readonly [number, number]>[] = [];
  /** Draws what stands below on the same time axis, in every frame. */
  below: (() => void) | null = null;
  /** Times that the last frames took to draw, in milliseconds; the newest last. */
  readonly frameTimes: number[] = [];

  constructor(canvas: HTMLCanvasElement, theme: TimelineTheme) {
    this.canvas = canvas;
    this.theme = theme;
    this.context = canvas.getContext('2d', { alpha: false, willReadFrequently: true })!;
  }

  /** The longest step of all groups. */
  get makespan(): number {
    return this.groups.reduce((most, { lanes, planned }) => Math.max(most, lanes.makespan, planned?.makespan ?? 0), 0);
  }

  /** Shows other groups; the view stays where it fits, else the whole is shown. */
  show(groups: readonly LaneGroup[], keepView: boolean): void {
    const before = this.makespan;
    const whole = this.view.from === 0 && this.view.to >= fit(before).to * 0.999;
    this.groups = groups;
    this.readers = groups.map(({ lanes }) => new FaceReader(lanes.picture.schedule));
    this.spans = groups.map(() => new Map());
    if (!keepView || whole || this.view.to > fit(this.makespan).to) this.view = fit(this.makespan);
    this.place();
  }

  setTheme(theme: TimelineTheme): void {
    this.theme = theme;
    this.redraw();
  }

  /** The size of the element in CSS pixels. */
  resize(width: number, available: number): void {
    this.width = Math.max(gutter + 50, Math.floor(width));
    this.available = available;
    this.place();
  }

  private place(): void {
    this.layout = layOut(this.groups, this.available);
    this.scale = Math.min(2, globalThis.devicePixelRatio || 1);
    const { canvas, scale, width, layout } = this;
    const pixelWidth = Math.round(width * scale);
    const pixelHeight = Math.max(1, Math.round(layout.height * scale));
    if (canvas.width !== pixelWidth || canvas.height !== pixelHeight) {
      canvas.width = pixelWidth;
      canvas.height = pixelHeight;
      canvas.style.width = `${width}px`;
      canvas.style.height = `${layout.height}px`;
      this.pixels = null;
    }
    this.redraw();
  }

  /** Draws before the next frame. */
  redraw(): void {
    if (this.queued === 0)
      this.queued = requestAnimationFrame(() => {
        this.queued = 0;
        this.draw();
      });
  }

  zoomBy(factor: number, x: number): void {
    this.view = zoom(this.view, factor, this.timeAt(x), this.makespan);
    this.redraw();
  }

  panBy(pixels: number): void {
    this.view = pan(this.view, (pixels * (this.view.to - this.view.from)) / this.plotWidth, this.makespan);
    this.redraw();
  }

  fit(): void {
    this.view = fit(this.makespan);
    this.redraw();
  }

  /** Moves the view so that a cell is on screen. */
  reveal(cell: GroupCell): void {
    const span = this.spanOf(cell);
    if (span === null) return;
    const width = this.view.to - this.view.from;
    if (span[0] < this.view.from) this.view = pan(this.view, span[0] - this.view.from - width * 0.1, this.makespan);
    else if (span[1] > this.view.to) this.view = pan(this.view, span[1] - this.view.to + width * 0.1, this.makespan);
    this.redraw();
  }

  timeAt(x: number): number {
    return this.view.from + ((x - gutter) / this.plotWidth) * (this.view.to - this.view.from);
  }

  /** The lane at a height. */
  laneAt(y: number): PlacedLane | null {
    return this.layout.lanes.find(({ top, bottom }) => y >= top && y < bottom + 3) ?? null;
  }

  /** The cell at a point. */
  cellAt(x: number, y: number): GroupCell | null {
    const placed = this.laneAt(y);
    if (placed === null || x < gutter) return null;
    const time = this.timeAt(x);
    const height = (placed.bottom - placed.top) * (placed.planned === null ? 1 : 2 / 3);
    const low = y >= placed.bottom - stripOf(placed.lane, height * this.scale) / this.scale;
    const track = (low ? placed.lane.beside : null) ?? placed.lane.main;
    const at = barAt(track, time);
    if (at < 0 || time > track.end[at]!) return null;
    return { group: placed.group, rank: placed.lane.rank, slot: track.slot[at]! };
  }

  /** A cell in words. */
  textOf(cell: GroupCell): string {
    const action = this.groups[cell.group]?.lanes.picture.schedule.at(cell.rank, cell.slot) ?? null;
    const span = this.spanOf(cell);
    if (action === null || span === null) return '';
    const [start, end] = span;
    if (!this.isTimed) return `${formatAction(action)} on rank ${cell.rank}`;
    return `${formatAction(action)} on rank ${cell.rank}: ${quantity(start)} to ${quantity(end)} ms`;
  }

  /** Whether what is shown has times: rows of an order that cannot run have none. */
  private get isTimed(): boolean {
    return this.groups.some(({ lanes }) => lanes.picture.bubble !== null);
  }

  private get plotWidth(): number {
    return Math.max(1, this.width - gutter);
  }

  private draw(): void {
    const begin = performance.now();
    this.paint();
    const { context, scale } = this;
    context.setTransform(scale, 0, 0, scale, 0, 0);
    this.drawLabels();
    this.drawTexts();
    this.drawOverlay();
    this.below?.();
    this.frameTimes.push(performance.now() - begin);
    if (this.frameTimes.length > 240) this.frameTimes.shift();
  }

  private paint(): void {
    const { canvas, context, theme, scale } = this;
    const left = Math.round(gutter * scale);
    const width = Math.max(1, canvas.width - left);
    if (this.pixels === null || this.pixels.width !== width || this.pixels.height !== canvas.height)
      this.pixels = context.createImageData(width, canvas.height);
    const pixels: Pixels = {
      width,
      height: canvas.height,
      words: new Uint32Array(this.pixels.data.buffer as ArrayBuffer),
    };
    clear(pixels, theme.ground);
    for (const { lane, planned, top, bottom } of this.layout.lanes) {
      const box = {
        top: Math.round(top * scale),
        bottom: Math.max(Math.round(top * scale) + 1, Math.round(bottom * scale)),
      };
      if (planned === null) {
        paintLane(pixels, lane, box, { view: this.view, theme });
        continue;
      }
      const border = box.top + Math.round((box.bottom - box.top) / 3);
      paintLane(
        pixels,
        planned,
        { top: box.top, bottom: Math.max(box.top + 1, border - 1) },
        { view: this.view, theme },
      );
      paintLane(pixels, lane, { top: border, bottom: box.bottom }, { view: this.view, theme });
    }
    context.setTransform(1, 0, 0, 1, 0, 0);
    context.fillStyle = theme.ground;
    context.fillRect(0, 0, left, canvas.height);
    context.putImageData(this.pixels, left, 0);
  }

  private drawLabels(): void {
    const { context, theme, layout, view } = this;
    context.font = '11px system-ui, sans-serif';
    context.textBaseline = 'middle';
    context.textAlign = 'left';
    let last = Number.NEGATIVE_INFINITY;
    for (const { lane, top, bottom } of layout.lanes) {
      const middle = (top + bottom) / 2;
      if (middle - last < 12) continue;
      last = middle;
      const failed = this.overlay.failed?.includes(lane.rank) === true;
      context.fillStyle = failed ? theme.warn : theme.text;
      context.fillText(`rank ${lane.rank}${failed ? ' failed' : ''}`, 6, middle);
    }
    context.fillStyle = theme.text;
    context.font = '600 11px system-ui, sans-serif';
    for (const { text, top } of layout.titles) context.fillText(text, 6, top + 11, this.width - 12);
    context.font = '11px system-ui, sans-serif';
    context.fillStyle = theme.faint;
    if (!this.isTimed) {
      context.fillText('in order, without times', gutter + 2, 9);
      return;
    }
    context.textAlign = 'right';
    context.fillText('ms', gutter - 6, 9);
    context.textAlign = 'center';
    for (const tick of axisTicks(view, this.plotWidth)) {
      const x = gutter + ((tick - view.from) / (view.to - view.from)) * this.plotWidth;
      context.fillRect(Math.round(x), axisHeight - 5, 1, 4);
      context.fillText(quantity(tick), Math.max(gutter + 8, Math.min(this.width - 14, x)), 9);
    }
  }

  /** Texts of bars that have room for them. */
  private drawTexts(): void {
    const { context, view } = this;
    const perTime = this.plotWidth / (view.to - view.from);
    context.textAlign = 'center';
    context.textBaseline = 'middle';
    for (const { group, lane, planned, top, bottom } of this.layout.lanes) {
      const height = bottom - top;
      if (height < 11) continue;
      const y =
        planned === null ? (top + bottom - (lane.beside === null ? 0 : height * 0.18)) / 2 : top + (height * 2) / 3;
      context.font = `${Math.min(12, Math.floor(height * 0.7))}px system-ui, sans-serif`;
      this.drawTrackTexts(lane.main, { group, rank: lane.rank, chunks: lane.chunks, y, perTime });
    }
  }

  private drawTrackTexts(
    track: Track,
    at: {
      readonly group: number;
      readonly rank: number;
      readonly chunks: number;
      readonly y: number;
      readonly perTime: number;
    },
  ): void {
    const { context, view } = this;
    const first = Math.max(0, barAt(track, view.from));
    const last = barAt(track, view.to, first);
    if ((last - first) * 12 > this.plotWidth) return; // no room on average
    const reader = this.readers[at.group]!;
    for (let i = first; i <= last; i++) {
      const x0 = Math.max(gutter, gutter + (track.start[i]! - view.from) * at.perTime);
      const x1 = Math.min(this.width, gutter + (track.end[i]! - view.from) * at.perTime);
      if (x1 - x0 < 12) continue;
      const face = reader.face(at.rank, track.slot[i]!);
      const room = x1 - x0 - 4;
      const text = this.widthOf(face.text) <= room ? face.text : this.widthOf(face.short) <= room ? face.short : '';
      if (text === '') continue;
      context.fillStyle = inkOn(fillOf(track.kind[i]!, track.chunk[i]!, at.chunks));
      context.fillText(text, (x0 + x1) / 2, at.y + 0.5);
    }
  }

  /** Width of a text in the font in use, from the widths of its letters. */
  private widthOf(text: string): number {
    const { context } = this;
    let known = this.letters.get(context.font);
    if (known === undefined) this.letters.set(context.font, (known = new Map()));
    let width = 0;
    for (const letter of text) {
      let own = known.get(letter);
      if (own === undefined) known.set(letter, (own = context.measureText(letter).width));
      width += own;
    }
    return width;
  }

  private drawOverlay(): void {
    const { context, theme, overlay } = this;
    context.lineWidth = 1;
    context.strokeStyle = theme.text;
    context.save();
    context.beginPath();
    context.rect(gutter, 0, this.plotWidth, this.layout.height);
    context.clip();
    for (const cell of overlay.critical) {
      const box = this.boxOf(cell);
      if (box === null || box.width < 2) continue;
      context.fillStyle = theme.text;
      context.fillRect(box.x, box.y, box.width, 2);
    }
    context.fillStyle = theme.warn;
    for (const cell of overlay.longer ?? []) {
      const box = this.boxOf({ group: 0, ...cell });
      if (box !== null) context.fillRect(box.x, box.y + box.height - 2, Math.max(2, box.width), 2);
    }
    for (const cell of overlay.late ?? []) {
      const box = this.boxOf({ group: 0, ...cell });
      if (box !== null) context.fillRect(box.x - 1, box.y + box.height / 3, 2, (box.height * 2) / 3);
    }
    for (const arrow of overlay.arrows) this.drawArrow(arrow);
    for (const cell of overlay.marks) this.outline(cell, theme.warn, 2);
    if (overlay.hovered !== null) {
      this.outline(overlay.hovered, theme.text, 1);
      this.outlinePlanned(overlay.hovered, theme.text);
    }
    if (overlay.selected !== null) this.outline(overlay.selected, theme.mark, 2.5);
    if (overlay.drop !== null) {
      const { group, rank, time } = overlay.drop;
      const placed = this.layout.lanes.find((one) => one.group === group && one.lane.rank === rank);
      if (placed !== undefined) {
        context.fillStyle = theme.mark;
        context.fillRect(this.xOf(time) - 1.5, placed.top - 3, 3, placed.bottom - placed.top + 6);
      }
    }
    context.restore();
  }

  private outline(cell: GroupCell, color: string, width: number): void {
    const box = this.boxOf(cell);
    if (box === null) return;
    this.context.strokeStyle = color;
    this.context.lineWidth = width;
    this.context.strokeRect(box.x, box.y, Math.max(2, box.width), box.height);
  }

  /** The planned counterpart of a cell, in the lane above. */
  private outlinePlanned(cell: GroupCell, color: string): void {
    const track = this.groups[cell.group]?.planned?.lanes[cell.rank]?.main;
    const at = track?.slot.indexOf(cell.slot) ?? -1;
    const placed = this.layout.lanes.find((one) => one.group === cell.group && one.lane.rank === cell.rank);
    if (track === undefined || at < 0 || placed === undefined) return;
    const x = this.xOf(track.start[at]!);
    this.context.strokeStyle = color;
    this.context.lineWidth = 1.5;
    const width = Math.max(2, this.xOf(track.end[at]!) - x);
    this.context.strokeRect(x, placed.top, width, (placed.bottom - placed.top) / 3);
  }

  private drawArrow({ group, from, to, warn, betweenMiddles }: Arrow): void {
    const a = this.boxOf({ group, ...from });
    const b = this.boxOf({ group, ...to });
    if (a === null || b === null) return;
    const { context, theme } = this;
    const [x0, y0] = [a.x + a.width / (betweenMiddles === true ? 2 : 1), a.y + a.height / 2];
    const [x1, y1] = [b.x + (betweenMiddles === true ? b.width / 2 : 0), b.y + b.height / 2];
    context.strokeStyle = warn === true ? theme.warn : theme.text;
    context.fillStyle = context.strokeStyle;
    context.lineWidth = warn === true ? 2 : 1.2;
    const angle = betweenMiddles === true ? Math.atan2(y1 - y0, x1 - x0) : 0;
    context.beginPath();
    context.moveTo(x0, y0);
    if (betweenMiddles === true) context.lineTo(x1, y1);
    else context.bezierCurveTo(x0 + 14, y0, x1 - 14, y1, x1, y1);
    context.stroke();
    context.save();
    context.translate(x1, y1);
    context.rotate(angle);
    context.beginPath();
    context.moveTo(0, 0);
    context.lineTo(-7, -4);
    context.lineTo(-7, 4);
    context.fill();
    context.restore();
  }

  private xOf(time: number): number {
    return gutter + ((time - this.view.from) / (this.view.to - this.view.from)) * this.plotWidth;
  }

  /** Start and end of a cell. */
  spanOf({ group, rank, slot }: GroupCell): readonly [number, number] | null {
    const lane = this.groups[group]?.lanes.lanes[rank];
    if (lane === undefined) return null;
    const known = this.spans[group] as Map<string, readonly [number, number]>;
    const key = `${rank}/${slot}`;
    const cached = known.get(key);
    if (cached !== undefined) return cached;
    for (const track of [lane.main, lane.beside]) {
      const at = track?.slot.indexOf(slot) ?? -1;
      if (track === null || at < 0) continue;
      const span = [track.start[at]!, track.end[at]!] as const;
      if (known.size < 10_000) known.set(key, span);
      return span;
    }
    return null;
  }

  private boxOf(cell: GroupCell): { x: number; y: number; width: number; height: number } | null {
    const span = this.spanOf(cell);
    const placed = this.layout.lanes.find((one) => one.group === cell.group && one.lane.rank === cell.rank);
    if (span === null || placed === undefined) return null;
    const x = this.xOf(span[0]);
    return { x, y: placed.top, width: this.xOf(span[1]) - x, height: placed.bottom - placed.top };
  }
}
