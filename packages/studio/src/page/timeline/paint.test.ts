/** @file What is painted is true: at every zoom the pixels of a lane have the shares of the simulated time. */

import { fc, test } from '@fast-check/vitest';
import { buildSchedule, computationVisuals, pictureOf, simulate, visualOrder } from '@pipewright/schedule';
import { expect } from 'vitest';
import { lanesOf, sharesOf } from '../model/lanes.ts';
import { clear, type Pixels, paintLane, word } from './paint.ts';

const theme = { ground: '#ffffff', idle: '#eeeeee', hatch: '#dddddd' };

test.prop(
  [
    fc.integer({ min: 20, max: 700 }),
    fc.integer({ min: 4, max: 90 }),
    fc.double({ min: 0, max: 0.9, noNaN: true }),
    fc.double({ min: 0.02, max: 1, noNaN: true }),
  ],
  { numRuns: 80 },
)('the pixels of a lane show the shares of its time', (width, microbatches, at, size) => {
  const schedule = buildSchedule('ZB1P', { ranks: 3, microbatches });
  const { lanes, makespan } = lanesOf(pictureOf(simulate(schedule, { F: 1, I: 1.3, W: 0.6, comm: 0.1 })));
  const height = 40;
  const pixels: Pixels = { width, height, words: new Uint32Array(width * height) };
  const view = { from: at * makespan, to: Math.min(1, at + size) * makespan };
  for (const lane of lanes) {
    clear(pixels, theme.ground);
    paintLane(pixels, lane, { top: 0, bottom: height }, { view, theme });
    const shares = sharesOf(lane.main, view.from, view.to);
    lane.main.kinds.forEach((kind, which) => {
      const color = word(computationVisuals[visualOrder[kind] as 'F'].color);
      const painted = pixels.words.reduce((sum, one) => sum + (one === color ? 1 : 0), 0) / (width * height);
      // A column is rounded to whole pixels, and wide bars give one column to the line before them.
      const bars = Array.from(lane.main.kind).filter((one) => one === kind).length;
      const limit = 1.5 / height + (bars + 2) / width;
      expect(Math.abs(painted - (shares[which] as number))).toBeLessThanOrEqual(limit);
    });
  }
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
