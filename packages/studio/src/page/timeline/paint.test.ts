/** @file What is painted is true: at every zoom each column of a lane has the shares that its actions have in that time. */

import { fc, test } from '@fast-check/vitest';
import {
  buildSchedule,
  computationVisuals,
  lower,
  pictureOf,
  type SimulatedAction,
  simulate,
  toneOf,
  visualOrder,
} from '@pipewright/schedule';
import { describe, expect } from 'vitest';
import { lanesOf, sharesOf } from '../model/lanes.ts';
import { clear, type Pixels, paintLane, stripOf, word } from './paint.ts';
import type { Viewport } from './viewport.ts';

const theme = { ground: '#ffffff', idle: '#eeeeee', hatch: '#eeeeee' };

/** The three channels of a colour as a word. */
function channels(color: number): readonly [number, number, number] {
  return [color & 255, (color >> 8) & 255, (color >> 16) & 255];
}

/** Columns of pixels and what the actions of a rank do in their time, added up action by action. */
class DirectColumns {
  private readonly actions: readonly SimulatedAction[];
  private readonly view: Viewport;
  private readonly perPixel: number;

  constructor(actions: readonly SimulatedAction[], view: Viewport, width: number) {
    this.actions = actions;
    this.view = view;
    this.perPixel = (view.to - view.from) / width;
  }

  /** Actions with a part of a column, each with its share of it. */
  at(x: number): { action: SimulatedAction; share: number }[] {
    const from = this.view.from + x * this.perPixel;
    const to = this.view.from + (x + 1) * this.perPixel;
    return this.actions
      .map((action) => ({
        action,
        share: Math.max(0, Math.min(to, action.end) - Math.max(from, action.start)) / this.perPixel,
      }))
      .filter(({ share }) => share > 0);
  }

  /** Whether two actions of at least three columns meet in a column: it may be left free as a line between them. */
  isLine(x: number): boolean {
    const from = this.view.from + x * this.perPixel;
    const to = this.view.from + (x + 1) * this.perPixel;
    const near = this.perPixel * 1e-5;
    const wide = this.actions.filter(({ start, end }) => end - start >= 3 * this.perPixel - near);
    return (
      wide.some(({ end }) => end >= from - near && end <= to + near) &&
      wide.some(({ start }) => start >= from - near && start <= to + near)
    );
  }
}

describe('paint', () => {
  test.prop(
    [
      fc.record({
        name: fc.constantFrom('1F1B', 'ZB1P', 'GPipe'),
        width: fc.integer({ min: 20, max: 160 }),
        height: fc.integer({ min: 3, max: 40 }),
        microbatches: fc.integer({ min: 3, max: 120 }),
        lowered: fc.boolean(),
        at: fc.double({ min: 0, max: 0.99, noNaN: true }),
        // From the whole step down to a few actions on the screen.
        zoom: fc.double({ min: 0, max: 3, noNaN: true }),
        F: fc.double({ min: 0.2, max: 2, noNaN: true }),
        W: fc.double({ min: 0.2, max: 2, noNaN: true }),
        comm: fc.double({ min: 0, max: 0.5, noNaN: true }),
      }),
    ],
    { numRuns: 120 },
  )('every column has the shares of its time, at any zoom', (drawn) => {
    const { name, width, height, microbatches, F, W, comm } = drawn;
    const built = buildSchedule(name, { ranks: 3, microbatches });
    const simulation = simulate(drawn.lowered ? lower(built) : built, { F, I: 1.3, W, comm });
    const { lanes, makespan } = lanesOf(pictureOf(simulation));
    const from = drawn.at * makespan;
    const view = { from, to: from + (makespan - from) * 10 ** -drawn.zoom };
    const pixels: Pixels = { width, height, words: new Uint32Array(width * height) };
    for (const lane of lanes) {
      clear(pixels, theme.ground);
      paintLane(pixels, lane, { top: 0, bottom: height }, { view, theme });
      const rows = height - stripOf(lane, height);
      const compute = simulation
        .events()
        .filter(({ rank, action }) => rank === lane.rank && computationVisuals[action.kind].role === 'compute');
      const direct = new DirectColumns(compute, view, width);
      let worst = { column: -1, error: 0 };
      for (let x = 0; x < width; x++) {
        const parts = direct.at(x);
        if (pixels.words[x] === word(theme.idle) && direct.isLine(x)) continue;
        const idle = 1 - parts.reduce((sum, { share }) => sum + share, 0);
        for (const channel of [0, 1, 2] as const) {
          const expected = parts.reduce(
            (sum, { action, share }) =>
              sum + share * channels(word(computationVisuals[action.action.kind].color))[channel],
            idle * channels(word(theme.idle))[channel],
          );
          let painted = 0;
          for (let y = 0; y < rows; y++) painted += channels(pixels.words[y * width + x] as number)[channel] / rows;
          const error = Math.abs(painted - expected);
          if (error > worst.error) worst = { column: x, error };
        }
      }
      // Channels are whole numbers.
      expect(worst.error, `column ${worst.column} of rank ${lane.rank}`).toBeLessThanOrEqual(0.6);
    }
  });

  test('what is under the least lane is seen in it: a share of 3% in lanes of 3 pixels', () => {
    const schedule = buildSchedule('1F1B', { ranks: 1, microbatches: 3000 });
    const { lanes, makespan } = lanesOf(pictureOf(simulate(schedule, { F: 0.03, B: 0.97 })));
    const [lane] = lanes;
    expect(sharesOf(lane!.main, 0, makespan)[0]).toBeCloseTo(0.03, 6);
    const pixels: Pixels = { width: 60, height: 3, words: new Uint32Array(180) };
    paintLane(pixels, lane!, { top: 0, bottom: 3 }, { view: { from: 0, to: makespan }, theme });
    const [f, b] = [channels(word(computationVisuals.F.color)), channels(word(computationVisuals.B.color))];
    const blue = pixels.words.reduce((sum, one) => sum + channels(one)[2], 0) / 180;
    expect((blue - b[2]) / (f[2] - b[2])).toBeCloseTo(0.03, 2);
  });

  test('far out, a lane of many actions shows every kind', () => {
    const schedule = buildSchedule('1F1B', { ranks: 2, microbatches: 4000 });
    const { lanes, makespan } = lanesOf(pictureOf(simulate(schedule, { F: 1, B: 2 })));
    const pixels: Pixels = { width: 300, height: 30, words: new Uint32Array(9000) };
    paintLane(pixels, lanes[0]!, { top: 0, bottom: 30 }, { view: { from: 0, to: makespan }, theme });
    const count = (color: string): number => pixels.words.reduce((sum, one) => sum + (one === word(color) ? 1 : 0), 0);
    expect(count(computationVisuals.F.color) / 9000).toBeCloseTo(1 / 3, 1);
    expect(count(computationVisuals.B.color) / 9000).toBeCloseTo(2 / 3, 1);
  });

  test('later stages of a rank have lighter tones where an action has columns of its own', () => {
    const schedule = buildSchedule('Interleaved1F1B', { ranks: 2, stagesPerRank: 2, microbatches: 2 });
    const { lanes, makespan, kinds } = lanesOf(pictureOf(schedule));
    const pixels: Pixels = { width: 600, height: 10, words: new Uint32Array(6000) };
    paintLane(pixels, lanes[0]!, { top: 0, bottom: 10 }, { view: { from: 0, to: makespan }, theme });
    expect(Array.from(kinds, (kind) => visualOrder[kind])).toEqual(['F', 'B']);
    expect(new Set(pixels.words).has(word(computationVisuals.F.color))).toBe(true);
    expect(new Set(pixels.words).has(word(toneOf('F', 1, 2)))).toBe(true);
  });
});
