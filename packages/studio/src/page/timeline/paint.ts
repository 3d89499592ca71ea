/**
 * @file Paints lanes into pixels. A column of pixels that lies inside one bar has its colour; a column with several bars, or
 * bars and idle time, shows their shares, stacked, and a pixel that belongs to two of them mixes their colours: at every zoom
 * each column adds up to the truth. Only where two bars of some width meet, a column is left free as a line between them.
 * What it costs depends on the number of columns, not on the number of bars.
 */
import { visualOrder } from '@pipewright/schedule';
import { barAt, busyUntil, fillOf, fillOfKind, type Lane, type Track } from '../model/lanes.ts';
import type { Viewport } from './viewport.ts';

/** Pixels to paint into, as the bytes of an ImageData read in words. */
export interface Pixels {
  readonly width: number;
  readonly height: number;
  readonly words: Uint32Array;
}

/** Colours that do not depend on the kind of an action. */
export interface PaintTheme {
  readonly ground: string;
  readonly idle: string;
  readonly hatch: string;
}

/** A rectangle of pixels: the place of a lane. */
export interface LaneBox {
  readonly top: number;
  readonly bottom: number;
}

/** How lanes are painted. */
export interface PaintSettings {
  readonly view: Viewport;
  readonly theme: PaintTheme;
}

const wordCache = new Map<string, number>();

/** A colour `#rrggbb` as a word of an ImageData on a little-endian machine. */
export function word(color: string): number {
  let found = wordCache.get(color);
  if (found === undefined) {
    const rgb = Number.parseInt(color.slice(1), 16);
    found = (0xff000000 | ((rgb & 255) << 16) | (rgb & 0xff00) | (rgb >> 16)) >>> 0;
    wordCache.set(color, found);
  }
  return found;
}

/** Fills all pixels. */
export function clear({ words }: Pixels, color: string): void {
  words.fill(word(color));
}

/** Colours of the bars of a lane as words, at `kind * chunks + chunk`, by its number of chunks. */
const tones = new Map<number, Uint32Array>();

function tonesOf(chunks: number): Uint32Array {
  let found = tones.get(chunks);
  if (found === undefined) {
    found = Uint32Array.from({ length: visualOrder.length * chunks }, (_, at) =>
      word(fillOf(Math.floor(at / chunks), at % chunks, chunks)),
    );
    tones.set(chunks, found);
  }
  return found;
}

const kindWords = Uint32Array.from(visualOrder, (_, kind) => word(fillOfKind(kind)));

/** Rows of pixels at the foot of a lane that show what runs beside compute; 0 where there is nothing or no room. */
export function stripOf(lane: Lane, height: number): number {
  return height >= 14 && lane.beside !== null ? Math.max(3, Math.round(height * 0.18)) : 0;
}

/** Paints one lane: idle ground, bars, and below them what runs beside compute. */
export function paintLane(pixels: Pixels, lane: Lane, box: LaneBox, { view, theme }: PaintSettings): void {
  const strip = stripOf(lane, box.bottom - box.top);
  const main = { top: box.top, bottom: box.bottom - strip };
  paintIdle(pixels, main, theme);
  new TrackPainter(pixels, main, lane.main).paint(view, lane.chunks);
  if (strip === 0 || lane.beside === null) return;
  const { width, words } = pixels;
  words.fill(word(theme.idle), main.bottom * width, box.bottom * width);
  new TrackPainter(pixels, { top: main.bottom + 1, bottom: box.bottom }, lane.beside).paint(view, lane.chunks);
}

function paintIdle(pixels: Pixels, box: LaneBox, theme: PaintTheme): void {
  const ground = word(theme.idle);
  const line = word(theme.hatch);
  const { width, words } = pixels;
  words.fill(ground, box.top * width, box.bottom * width);
  for (let y = box.top; y < box.bottom; y++)
    for (let x = (8 - (y % 8)) % 8; x < width; x += 8) words[y * width + x] = line;
}

/** Less of a pixel than can be seen in eight bits. */
const nothing = 1 / 1024;

/** Paints the bars of a track, from left to right. It works on every column of a picture, so it makes no objects there. */
class TrackPainter {
  private readonly words: Uint32Array;
  private readonly width: number;
  private readonly height: number;
  /** Where the first and the last row of pixels begin. */
  private readonly top: number;
  private readonly bottom: number;
  private readonly track: Track;
  private readonly colors: Uint32Array;
  /** Times of the kinds up to the left edge of a column, and up to its right one. */
  private readonly before: Float64Array;
  private readonly until: Float64Array;

  constructor(pixels: Pixels, box: LaneBox, track: Track) {
    this.words = pixels.words;
    this.width = pixels.width;
    this.height = box.bottom - box.top;
    this.top = box.top * pixels.width;
    this.bottom = (box.bottom - 1) * pixels.width;
    this.track = track;
    this.colors = Uint32Array.from(track.kinds, (kind) => kindWords[kind]!);
    this.before = new Float64Array(track.kinds.length);
    this.until = new Float64Array(track.kinds.length);
  }

  paint(view: Viewport, chunks: number): void {
    const { width, track } = this;
    const { count, start, end, kind, chunk } = track;
    if (count === 0) return;
    const tones = tonesOf(chunks);
    const perPixel = (view.to - view.from) / width;
    let known = -1; // the column whose left edge `before` is of
    let at = barAt(track, view.from);
    let x = 0;
    while (x < width) {
      const from = view.from + x * perPixel;
      if (known !== x) at = barAt(track, from, at);
      const inside = at >= 0 && from < end[at]!;
      const next = at + 1 < count ? start[at + 1]! : Number.POSITIVE_INFINITY;
      const until = inside ? end[at]! : next;
      const columns = Math.min(width - x, Math.floor((until - from) / perPixel + 1e-9));
      if (columns >= 1) {
        if (inside) {
          const meets = at > 0 && start[at]! >= from && this.isLine(at - 1, from, perPixel) ? 1 : 0;
          const tone = tones[kind[at]! * chunks + Math.min(chunks - 1, chunk[at]!)]!;
          this.fill(x + meets, x + columns, tone);
        }
        x += columns;
        continue;
      }
      const to = view.from + (x + 1) * perPixel;
      // Wide bars end in columns of one tone; where they meet, the column is a line between them.
      const first = inside ? at : at + 1;
      if (first < count && this.isWide(first, perPixel)) {
        const isAlone = first + 1 >= count || start[first + 1]! >= to;
        if (isAlone) {
          const share = Math.min(to, end[first]!) - Math.max(from, start[first]!);
          const tone = tones[kind[first]! * chunks + Math.min(chunks - 1, chunk[first]!)]!;
          this.tint(x++, share / perPixel, tone);
          continue;
        }
        if (this.isLine(first, from, perPixel)) {
          x++;
          continue;
        }
      }
      if (known !== x) busyUntil(track, from, at, this.before);
      at = barAt(track, to, at);
      busyUntil(track, to, at, this.until);
      this.stack(x, this.height / perPixel);
      known = ++x;
    }
  }

  private isWide(bar: number, perPixel: number): boolean {
    return this.track.end[bar]! - this.track.start[bar]! >= 3 * perPixel;
  }

  /** Whether a bar and the one after it are wide and meet in the column that begins at a time, or at its edge. */
  private isLine(bar: number, from: number, perPixel: number): boolean {
    return (
      this.track.end[bar]! >= from - perPixel * 1e-6 && this.isWide(bar, perPixel) && this.isWide(bar + 1, perPixel)
    );
  }

  /** Fills columns. */
  private fill(from: number, to: number, color: number): void {
    const { words, width, top, bottom } = this;
    for (let row = top; row <= bottom; row += width)
      if (to - from > 16) words.fill(color, row + from, row + to);
      else for (let at = row + from; at < row + to; at++) words[at] = color;
  }

  /** Covers a column by a share. */
  private tint(x: number, share: number, color: number): void {
    const { words, width, top, bottom } = this;
    const free = 1 - share;
    for (let at = top + x; at <= bottom + x; at += width) {
      const under = words[at]!;
      words[at] = wordOf(
        share * (color & 255) + free * (under & 255),
        share * ((color >> 8) & 255) + free * ((under >> 8) & 255),
        share * ((color >> 16) & 255) + free * ((under >> 16) & 255),
      );
    }
  }

  /** Stacks the shares of a column from its foot, so many pixels for a unit of time; above them stays what is there. */
  private stack(x: number, perTime: number): void {
    const { words, width, before, until, colors } = this;
    const top = this.top + x;
    let place = this.bottom + x;
    let covered = 0; // of the pixel at `place`, in `red`, `green` and `blue`
    let red = 0;
    let green = 0;
    let blue = 0;
    for (let k = 0; k < colors.length; k++) {
      let rest = (until[k]! - before[k]!) * perTime;
      before[k] = until[k]!;
      if (rest < nothing) continue;
      const color = colors[k]!;
      if (covered > 0) {
        const part = Math.min(rest, 1 - covered);
        red += part * (color & 255);
        green += part * ((color >> 8) & 255);
        blue += part * ((color >> 16) & 255);
        covered += part;
        rest -= part;
        if (covered < 1 - nothing) continue;
        if (place >= top) words[place] = wordOf(red, green, blue);
        place -= width;
        covered = 0;
      }
      for (; rest >= 1 - nothing; rest--, place -= width) if (place >= top) words[place] = color;
      if (rest < nothing) continue;
      covered = rest;
      red = rest * (color & 255);
      green = rest * ((color >> 8) & 255);
      blue = rest * ((color >> 16) & 255);
    }
    if (covered === 0 || place < top) return;
    const under = words[place]!;
    const free = 1 - covered;
    red += free * (under & 255);
    green += free * ((under >> 8) & 255);
    blue += free * ((under >> 16) & 255);
    words[place] = wordOf(red, green, blue);
  }
}

/** A colour from amounts of 0 to 255, as a word. */
export function wordOf(red: number, green: number, blue: number): number {
  return (0xff000000 | ((blue + 0.5) << 16) | ((green + 0.5) << 8) | (red + 0.5)) >>> 0;
}
