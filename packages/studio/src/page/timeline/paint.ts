/**
 * @file Paints lanes into pixels. A column of pixels that lies inside one bar has its colour; a column with several bars, or
 * bars and idle time, shows their shares, stacked: at every zoom the picture adds up to the truth.
 */
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

/** Paints one lane: idle ground, bars, and below them what runs beside compute. */
export function paintLane(pixels: Pixels, lane: Lane, box: LaneBox, { view, theme }: PaintSettings): void {
  const height = box.bottom - box.top;
  const strip = lane.beside !== null && height >= 14 ? Math.max(3, Math.round(height * 0.18)) : 0;
  paintIdle(pixels, { top: box.top, bottom: box.bottom - strip }, theme);
  paintTrack(pixels, lane.main, lane.chunks, { box: { top: box.top, bottom: box.bottom - strip }, view });
  if (strip === 0 || lane.beside === null) return;
  fillRows(pixels, [0, pixels.width], { top: box.bottom - strip, bottom: box.bottom }, word(theme.idle));
  paintTrack(pixels, lane.beside, lane.chunks, { box: { top: box.bottom - strip + 1, bottom: box.bottom }, view });
}

function paintIdle(pixels: Pixels, box: LaneBox, theme: PaintTheme): void {
  const ground = word(theme.idle);
  const line = word(theme.hatch);
  const { width, words } = pixels;
  for (let y = box.top; y < box.bottom; y++) {
    const row = y * width;
    words.fill(ground, row, row + width);
    for (let x = (8 - (y % 8)) % 8; x < width; x += 8) words[row + x] = line;
  }
}

/** Paints the bars of a track. */
function paintTrack(
  pixels: Pixels,
  track: Track,
  chunks: number,
  { box, view }: { readonly box: LaneBox; readonly view: Viewport },
): void {
  const { width } = pixels;
  const { count, start, end } = track;
  if (count === 0) return;
  const perPixel = (view.to - view.from) / width;
  const height = box.bottom - box.top;
  let at = barAt(track, view.from);
  let x = 0;
  while (x < width) {
    const from = view.from + x * perPixel;
    at = barAt(track, from, Math.max(0, at));
    const inside = at >= 0 && from < (end[at] as number);
    const until = inside ? (end[at] as number) : at + 1 < count ? (start[at + 1] as number) : Number.POSITIVE_INFINITY;
    const columns = Math.min(width - x, Math.floor((until - from) / perPixel + 1e-9));
    if (columns >= 1) {
      if (inside) {
        // A bar that is at least three columns wide stands apart from the one before it.
        const begins = (start[at] as number) >= from - perPixel && columns >= 3 ? 1 : 0;
        const color = word(fillOf(track.kind[at] as number, track.chunk[at] as number, chunks));
        fillRows(pixels, [x + begins, x + columns], box, color);
      }
      x += columns;
      continue;
    }
    const to = from + perPixel;
    const last = barAt(track, to, Math.max(0, at));
    let top = box.bottom;
    for (let which = 0; which < track.kinds.length; which++) {
      const share = (busyUntil(track, which, to, last) - busyUntil(track, which, from, at)) / perPixel;
      if (share <= 0) continue;
      const next = Math.max(box.top, top - share * height);
      fillColumn(
        pixels,
        x,
        { top: Math.round(next), bottom: Math.round(top) },
        word(fillOfKind(track.kinds[which] as number)),
      );
      top = next;
    }
    x++;
  }
}

function fillRows({ width, words }: Pixels, [from, to]: readonly [number, number], box: LaneBox, color: number): void {
  for (let y = box.top; y < box.bottom; y++) words.fill(color, y * width + from, y * width + to);
}

function fillColumn({ width, words }: Pixels, x: number, box: LaneBox, color: number): void {
  for (let at = box.top * width + x; at < box.bottom * width; at += width) words[at] = color;
}
