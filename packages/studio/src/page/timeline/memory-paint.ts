/** @file Curves of memory as pixels: every column of every curve spans what it begins and ends with, up to its highest value. */
import type { MemoryCurve } from '@pipewright/schedule';
import { wordOf } from './paint.ts';
import type { Viewport } from './viewport.ts';

const blockBits = 5;
const block = 1 << blockBits;

/** Where curves are drawn: a stretch of time over columns, and the height of an amount. */
export interface CurvePlot {
  readonly view: Viewport;
  readonly width: number;
  readonly y: (amount: number) => number;
}

/** A stepped curve with the highest value of every block of entries. */
export class MaxCurve {
  readonly curve: MemoryCurve;
  private readonly highest: Float64Array;

  constructor(curve: MemoryCurve) {
    this.curve = curve;
    this.highest = new Float64Array(Math.ceil(curve.amount.length / block)).fill(Number.NEGATIVE_INFINITY);
    for (let i = 0; i < curve.amount.length; i++)
      this.highest[i >> blockBits] = Math.max(this.highest[i >> blockBits]!, curve.amount[i]!);
  }

  /** Tells of every column the value at its left edge, the highest one in it, and the one at its right edge. */
  columns({ view, width }: CurvePlot, tell: (x: number, before: number, most: number, last: number) => void): void {
    const { time, amount } = this.curve;
    const { highest } = this;
    const count = time.length;
    if (count === 0) return;
    const perPixel = (view.to - view.from) / width;
    let at = lastAtOrBefore(time, view.from);
    let value = at < 0 ? 0 : amount[at]!;
    for (let x = 0; x < width; x++) {
      const to = view.from + (x + 1) * perPixel;
      let most = value;
      while (at + 1 < count && time[at + 1]! <= to) {
        const next = at + 1;
        const end = next + block - 1;
        if ((next & (block - 1)) === 0 && end < count && time[end]! <= to) {
          most = Math.max(most, highest[next >> blockBits]!);
          at = end;
        } else {
          most = Math.max(most, amount[next]!);
          at = next;
        }
      }
      const last = at < 0 ? 0 : amount[at]!;
      tell(x, value, most, last);
      value = last;
    }
  }
}

/** Many faint curves on one ground: how many of them cover each pixel. */
export class CurveField {
  readonly width: number;
  readonly height: number;
  private readonly covered: Uint16Array;
  private readonly data: Uint8ClampedArray<ArrayBuffer>;
  private most = 0;

  constructor(width: number, height: number) {
    this.width = width;
    this.height = height;
    this.covered = new Uint16Array(width * height);
    this.data = new Uint8ClampedArray(new ArrayBuffer(width * height * 4));
  }

  clear(): void {
    this.covered.fill(0);
    this.most = 0;
  }

  /** Adds a curve with a line of so many pixels. */
  add(curve: MaxCurve, plot: CurvePlot, thick: number): void {
    const { covered, width, height } = this;
    const { y } = plot;
    this.most++;
    let value = Number.NaN;
    let row = 0;
    curve.columns(plot, (x, before, most, last) => {
      if (before !== value) row = y(before);
      let top = row;
      let foot = row;
      if (most !== before) top = y(most);
      if (last !== before) {
        row = y(last);
        top = Math.min(top, row);
        foot = Math.max(foot, row);
      }
      value = last;
      const end = Math.min(height, foot + thick);
      for (let at = Math.max(0, top) * width + x; at < end * width; at += width) covered[at]!++;
    });
  }

  /** The curves in a colour that covers the ground by so much, each over those before it; words as of an ImageData. */
  pixels(pen: {
    readonly ground: number;
    readonly color: number;
    readonly alpha: number;
  }): Uint8ClampedArray<ArrayBuffer> {
    const mixed = (shift: number, count: number): number => {
      const [ground, color] = [(pen.ground >> shift) & 255, (pen.color >> shift) & 255];
      return color + (ground - color) * (1 - pen.alpha) ** count;
    };
    const shades = Uint32Array.from({ length: this.most + 1 }, (_, count) =>
      wordOf(mixed(0, count), mixed(8, count), mixed(16, count)),
    );
    const words = new Uint32Array(this.data.buffer);
    const { covered } = this;
    for (let i = 0; i < words.length; i++) words[i] = shades[covered[i]!]!;
    return this.data;
  }
}

function lastAtOrBefore(times: ArrayLike<number>, time: number): number {
  let low = -1;
  let high = times.length;
  while (high - low > 1) {
    const middle = (low + high) >> 1;
    if (times[middle]! <= time) low = middle;
    else high = middle;
  }
  return low;
}
