/** @file Memory over time on a canvas: a stepped curve per rank, the limit as a line; every column shows the highest value in it. */
import type { MemoryCurve } from '@pipewright/schedule';
import type { TimelineTheme } from './timeline-canvas.ts';
import { gutter } from './timeline-canvas.ts';
import type { Viewport } from './viewport.ts';

const block = 32;

/** A curve with the highest value of every block of entries. */
interface Blocks {
  readonly curve: MemoryCurve;
  readonly highest: Float64Array;
}

/** What is shown of the curves. */
export interface MemoryView {
  /** Limits, one for all ranks or one for each; 0: none. */
  readonly limit: readonly number[];
  /** The rank in front, -1: the one with the highest peak. */
  readonly front: number;
  /** An amount as text. */
  readonly textOf: (amount: number) => string;
}

/** The memory panel. */
export class MemoryCanvas {
  private readonly canvas: HTMLCanvasElement;
  private readonly context: CanvasRenderingContext2D;
  private curves: readonly Blocks[] = [];
  private shown: MemoryView = { limit: [0], front: -1, textOf: String };

  constructor(canvas: HTMLCanvasElement) {
    this.canvas = canvas;
    this.context = canvas.getContext('2d', { alpha: false }) as CanvasRenderingContext2D;
  }

  /** Shows other curves, or others of them in front. */
  show(curves: readonly MemoryCurve[], shown: MemoryView): void {
    this.shown = shown;
    if (curves.length === this.curves.length && curves.every((curve, i) => curve === this.curves[i]?.curve)) return;
    this.curves = curves.map((curve) => {
      const highest = new Float64Array(Math.ceil(curve.amount.length / block));
      for (let i = 0; i < curve.amount.length; i++)
        highest[i >> 5] = Math.max(highest[i >> 5] as number, curve.amount[i] as number);
      return { curve, highest };
    });
  }

  draw(view: Viewport, size: { width: number; height: number }, theme: TimelineTheme): void {
    const { canvas, context } = this;
    const scale = Math.min(2, globalThis.devicePixelRatio || 1);
    const [width, height] = [Math.round(size.width * scale), Math.round(size.height * scale)];
    if (canvas.width !== width || canvas.height !== height) {
      canvas.width = width;
      canvas.height = height;
      canvas.style.width = `${size.width}px`;
      canvas.style.height = `${size.height}px`;
    }
    context.setTransform(scale, 0, 0, scale, 0, 0);
    context.fillStyle = theme.ground;
    context.fillRect(0, 0, size.width, size.height);
    const peaks = this.curves.map(({ curve }) => curve.peak);
    const front = this.shown.front >= 0 ? this.shown.front : peaks.indexOf(Math.max(...peaks));
    const limits = this.shown.limit;
    const limit = limits[Math.min(Math.max(0, front), limits.length - 1)] ?? 0;
    // A limit far above all curves is not worth flattening them.
    const most = Math.max(...peaks, 1e-12);
    const highest = (limit <= most * 4 ? Math.max(limit, most) : most) * 1.08;
    const y = (amount: number): number => size.height - 4 - (amount / highest) * (size.height - 10);
    const plot = { left: gutter, width: size.width - gutter, y };
    // Beyond 16 ranks the others are thinned to what still can be told apart.
    this.curves.forEach((blocks, rank) => {
      if (rank !== front)
        this.trace(blocks, view, plot, { color: theme.faint, alpha: this.curves.length > 16 ? 0.25 : 0.6, width: 1 });
    });
    const first = this.curves[front];
    if (first !== undefined) this.trace(first, view, plot, { color: theme.mark, alpha: 1, width: 2 });
    context.globalAlpha = 1;
    context.font = '11px system-ui, sans-serif';
    context.textBaseline = 'middle';
    context.textAlign = 'left';
    context.fillStyle = theme.text;
    context.fillText('memory', 6, 10);
    if (first !== undefined) {
      context.fillStyle = theme.faint;
      context.fillText(`rank ${front}:`, 6, 25);
      context.fillText(this.shown.textOf(first.curve.peak), 6, 39);
    }
    if (limit > 0 && limit <= highest) {
      context.fillStyle = theme.warn;
      context.fillRect(gutter, Math.round(y(limit)), plot.width, 1);
      context.fillText(`limit ${this.shown.textOf(limit)}`, gutter + 4, Math.max(8, y(limit) - 7));
    }
  }

  private trace(
    { curve, highest }: Blocks,
    view: Viewport,
    plot: { left: number; width: number; y: (amount: number) => number },
    pen: { color: string; alpha: number; width: number },
  ): void {
    const { context } = this;
    const { time, amount } = curve;
    const count = time.length;
    if (count === 0) return;
    context.globalAlpha = pen.alpha;
    context.strokeStyle = pen.color;
    context.lineWidth = pen.width;
    context.beginPath();
    const perPixel = (view.to - view.from) / plot.width;
    let at = lastAtOrBefore(time, view.from);
    let value = at < 0 ? 0 : (amount[at] as number);
    context.moveTo(plot.left, plot.y(value));
    for (let x = 0; x < plot.width; x++) {
      const to = view.from + (x + 1) * perPixel;
      let most = value;
      while (at + 1 < count && (time[at + 1] as number) <= to) {
        const next = at + 1;
        const end = next + block - 1;
        if ((next & (block - 1)) === 0 && end < count && (time[end] as number) <= to) {
          most = Math.max(most, highest[next >> 5] as number);
          at = end;
        } else {
          most = Math.max(most, amount[next] as number);
          at = next;
        }
      }
      const last = at < 0 ? 0 : (amount[at] as number);
      if (most === value && last === value && x < plot.width - 1) continue;
      context.lineTo(plot.left + x, plot.y(value));
      if (most > value && most > last) context.lineTo(plot.left + x, plot.y(most));
      context.lineTo(plot.left + x, plot.y(last));
      value = last;
    }
    context.lineTo(plot.left + plot.width, plot.y(value));
    context.stroke();
  }
}

function lastAtOrBefore(times: ArrayLike<number>, time: number): number {
  let low = -1;
  let high = times.length;
  while (high - low > 1) {
    const middle = (low + high) >> 1;
    if ((times[middle] as number) <= time) low = middle;
    else high = middle;
  }
  return low;
}
