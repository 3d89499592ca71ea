/** @file Memory over time on a canvas: a stepped curve per rank, the limit as a line; every column shows the highest value in it. */
import type { MemoryCurve } from '@pipewright/schedule';
import { CurveField, type CurvePlot, MaxCurve } from './memory-paint.ts';
import { word } from './paint.ts';
import type { TimelineTheme } from './timeline-canvas.ts';
import { gutter } from './timeline-canvas.ts';
import type { Viewport } from './viewport.ts';

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
  private curves: readonly MaxCurve[] = [];
  private shown: MemoryView = { limit: [0], front: -1, textOf: String };
  private field: CurveField | null = null;

  constructor(canvas: HTMLCanvasElement) {
    this.canvas = canvas;
    this.context = canvas.getContext('2d', { alpha: false, willReadFrequently: true })!;
  }

  /** Shows other curves, or others of them in front. */
  show(curves: readonly MemoryCurve[], shown: MemoryView): void {
    this.shown = shown;
    if (curves.length === this.curves.length && curves.every((curve, i) => curve === this.curves[i]?.curve)) return;
    this.curves = curves.map((curve) => new MaxCurve(curve));
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
    this.paintOthers(front, view, theme, { height, scale, y });
    const first = this.curves[front];
    if (first !== undefined) {
      context.strokeStyle = theme.mark;
      context.lineWidth = 2;
      this.trace(first, { view, width: size.width - gutter, y });
    }
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
      context.fillRect(gutter, Math.round(y(limit)), size.width - gutter, 1);
      this.label(`limit ${this.shown.textOf(limit)}`, { right: size.width - 4, y: Math.max(8, y(limit)) }, theme);
    }
  }

  /** A text at the right edge, on a ground of its own: curves do not cross it. */
  private label(text: string, at: { readonly right: number; readonly y: number }, theme: TimelineTheme): void {
    const { context } = this;
    const width = context.measureText(text).width;
    context.fillStyle = theme.ground;
    context.fillRect(at.right - width - 4, at.y - 7, width + 8, 14);
    context.fillStyle = theme.warn;
    context.fillText(text, at.right - width, at.y);
  }

  /** The curves behind the one in front; beyond 16 ranks they are thinned to what still can be told apart. */
  private paintOthers(
    front: number,
    view: Viewport,
    theme: TimelineTheme,
    at: { readonly height: number; readonly scale: number; readonly y: (amount: number) => number },
  ): void {
    const left = Math.round(gutter * at.scale);
    const width = Math.max(1, this.canvas.width - left);
    if (this.field?.width !== width || this.field.height !== at.height) this.field = new CurveField(width, at.height);
    const { field } = this;
    field.clear();
    const plot: CurvePlot = { view, width, y: (amount) => Math.round(at.y(amount) * at.scale) };
    this.curves.forEach((curve, rank) => {
      if (rank !== front) field.add(curve, plot, Math.round(at.scale));
    });
    const pen = { ground: word(theme.ground), color: word(theme.faint), alpha: this.curves.length > 16 ? 0.25 : 0.6 };
    this.context.putImageData(new ImageData(field.pixels(pen), width, at.height), left, 0);
  }

  private trace(curve: MaxCurve, plot: CurvePlot): void {
    const { context } = this;
    context.beginPath();
    let from = Number.NaN;
    curve.columns(plot, (x, before, most, last) => {
      if (Number.isNaN(from)) context.moveTo(gutter, plot.y((from = before)));
      if (most === before && last === before) return;
      context.lineTo(gutter + x, plot.y(before));
      if (most > before && most > last) context.lineTo(gutter + x, plot.y(most));
      context.lineTo(gutter + x, plot.y(last));
      from = last;
    });
    if (!Number.isNaN(from)) context.lineTo(gutter + plot.width, plot.y(from));
    context.stroke();
  }
}
