/** @file Curves of memory are true at every zoom: no column is lower than the highest value in its time. */

import { fc, test } from '@fast-check/vitest';
import { describe, expect } from 'vitest';
import { CurveField, MaxCurve } from './memory-paint.ts';
import { word } from './paint.ts';

const curves = fc
  .array(fc.tuple(fc.double({ min: 0, max: 2, noNaN: true }), fc.integer({ min: 0, max: 50 })), {
    minLength: 1,
    maxLength: 400,
  })
  .map((steps) => {
    let at = 0;
    const time = steps.map(([gap]) => (at += gap));
    const amount = steps.map(([, value]) => value);
    return { time, amount, peak: Math.max(...amount) };
  });
const share = fc.double({ min: 0, max: 1, noNaN: true });

describe('memory curves', () => {
  test.prop([curves, share, share, fc.integer({ min: 1, max: 200 })], { numRuns: 200 })(
    'columns tell what a look at every entry tells',
    (curve, a, b, width) => {
      const end = curve.time.at(-1)!;
      const view = { from: Math.min(a, b) * end, to: Math.max(a, b) * end + 0.001 };
      const perPixel = (view.to - view.from) / width;
      const valueAt = (time: number): number => curve.amount[curve.time.findLastIndex((one) => one <= time)] ?? 0;
      const told: number[][] = [];
      new MaxCurve(curve).columns({ view, width, y: Number }, (...column) => told.push(column));
      const direct = Array.from({ length: width }, (_, x) => {
        const from = view.from + x * perPixel;
        const to = view.from + (x + 1) * perPixel;
        const within = curve.amount.filter(
          (__, i) => (curve.time[i] as number) > from && (curve.time[i] as number) <= to,
        );
        return [x, valueAt(from), Math.max(valueAt(from), ...within), valueAt(to)];
      });
      expect(told).toEqual(direct);
    },
  );

  test('curves that lie on each other are darker than one alone', () => {
    const flat = (amount: number): MaxCurve => new MaxCurve({ time: [0], amount: [amount], peak: amount });
    const field = new CurveField(4, 10);
    const plot = { view: { from: 0, to: 1 }, width: 4, y: (amount: number) => 9 - amount };
    for (const amount of [2, 7, 7]) field.add(flat(amount), plot, 1);
    const words = new Uint32Array(field.pixels({ ground: word('#ffffff'), color: word('#000000'), alpha: 0.5 }).buffer);
    const rows = Array.from({ length: 10 }, (_, y) => words[y * 4]);
    expect(rows[9 - 2]).toBe(word('#808080'));
    expect(rows[9 - 7]).toBe(word('#404040'));
    expect(rows.filter((one) => one === word('#ffffff'))).toHaveLength(8);
    field.clear();
    field.add(flat(0), plot, 1);
    expect(
      new Uint32Array(field.pixels({ ground: word('#ffffff'), color: word('#000000'), alpha: 0.5 }).buffer)[4 * 2],
    ).toBe(word('#ffffff'));
  });
});
