import { expect, test } from 'vitest';
import { actionKinds } from '../model/action.ts';
import { computationVisuals, inkOn, mix, terminalColor, toneOf, visualOrder } from './palette.ts';

test('every kind has a look of its own', () => {
  expect([...visualOrder].sort()).toEqual([...actionKinds].sort());
  for (const field of ['letter', 'color', 'label'] as const) {
    expect(new Set(actionKinds.map((kind) => computationVisuals[kind][field])).size, field).toBe(actionKinds.length);
  }
});

test('widths are those of the reference', () => {
  expect(['F', 'I', 'W', 'B', 'OVERLAP_F_B'].map((kind) => computationVisuals[kind as 'F'].width)).toEqual([
    1, 1, 1, 2, 3,
  ]);
});

test('later stages of a rank are lighter, and text on every tone has contrast', () => {
  expect(toneOf('F', 0, 4)).toBe('#3f7fd6');
  expect([1, 2, 3].map((chunk) => toneOf('F', chunk, 4))).toMatchInlineSnapshot(`
    [
      "#5c92dc",
      "#79a5e2",
      "#95b9e8",
    ]
  `);
  const light = (color: string): number =>
    [1, 3, 5].reduce(
      (sum, at, i) => sum + [0.2126, 0.7152, 0.0722][i]! * (Number.parseInt(color.slice(at, at + 2), 16) / 255) ** 2.2,
      0,
    );
  for (const kind of actionKinds) {
    for (const chunk of [0, 1, 2, 3]) {
      const tone = toneOf(kind, chunk, 4);
      const [high, low] = [light(tone), light(inkOn(tone))].sort((a, b) => b - a) as [number, number];
      expect((high + 0.05) / (low + 0.05), `${kind} ${chunk}`).toBeGreaterThan(3);
    }
  }
});

test('colours mix, and find their place in the terminal palette', () => {
  expect(mix('#000000', '#ffffff', 0.5)).toBe('#808080');
  expect(['#000000', '#ffffff', '#ff0000', '#808080'].map(terminalColor)).toEqual([16, 231, 196, 244]);
});
