import { describe, expect, test } from 'vitest';
import { HeldChunks } from './held-chunks.ts';
import { ImpliedWeights } from './implied-weights.ts';
import { Cell, isForward, isGradient, VRow } from './row.ts';

const cellText = '.fbidW'; // by cell: empty, DownF, UpF, UpI, DownI, W

/** A row from its text, one character for each slot. */
function rowOf(text: string): VRow {
  const filled = [...text].map((c, slot) => ({ slot, cell: cellText.indexOf(c) })).filter(({ cell }) => cell > 0);
  return new VRow(
    Int32Array.from(filled, ({ slot }) => slot),
    Uint8Array.from(filled, ({ cell }) => cell),
  );
}

function textOf(row: VRow): string {
  const text = new Array<string>((row.slots.at(-1) ?? -1) + 1).fill('.');
  row.slots.forEach((slot, i) => {
    text[slot] = cellText[row.cells[i]!]!;
  });
  return text.join('');
}

/** The chunks held after each slot of a row's text; weight work that is not in it is done in empty slots. */
function heldAfter(text: string): number[] {
  const implied = !text.includes('W');
  let held = 0;
  let pending = 0;
  return [...text].map((c) => {
    const cell = cellText.indexOf(c);
    if (isForward(cell)) held++;
    else if (cell === Cell.W) held--;
    else if (isGradient(cell)) pending++;
    else if (implied && pending > 0) {
      held--;
      pending--;
    }
    return held;
  });
}

/** Moves the cell in `slot` to the first empty slot from `from` on with which no F finds the cap reached: every slot is tried. */
function moved(text: string, slot: number, from: number, cap: number): string {
  for (let to = from; to < slot; to++) {
    if (text[to] !== '.') continue;
    const cells = [...text];
    cells[to] = text[slot]!;
    cells[slot] = '.';
    const held = heldAfter(cells.join(''));
    const before = heldAfter(text);
    const over = (i: number): boolean => isForward(cellText.indexOf(cells[i]!)) && held[i]! > cap;
    const holds = (i: number): boolean => text.includes('W') && held[i]! > cap && held[i]! > before[i]!;
    if (!cells.some((_, i) => over(i) || holds(i))) return cells.join('');
  }
  return text;
}

function randomSource(seed: number): () => number {
  let state = seed;
  return () => {
    state = (Math.imul(state, 1664525) + 1013904223) >>> 0;
    return state / 2 ** 32;
  };
}

describe('cells move as if every slot had been tried', () => {
  for (const kind of ['HeldChunks', 'ImpliedWeights'] as const) {
    test(kind, () => {
      const random = randomSource(7);
      let moves = 0;
      for (let round = 0; round < 400; round++) {
        const kinds = kind === 'HeldChunks' ? '....fbidWW' : '.....fbid';
        let text = Array.from({ length: 40 }, () => kinds[Math.floor(random() * kinds.length)]!).join('');
        if (kind === 'HeldChunks') text += 'W';
        const row = rowOf(text);
        const cap = Math.max(1, ...heldAfter(text));
        const mover = kind === 'HeldChunks' ? new HeldChunks(row, cap) : new ImpliedWeights(row, cap);
        const slots = [...row.slots];
        slots.forEach((slot, index) => {
          const from = Math.floor(random() * (slot + 1));
          const expected = moved(text, slot, from, cap);
          mover.move(index, from);
          if (expected !== text) moves++;
          text = expected;
          expect(textOf(row)).toBe(text.replace(/\.+$/, ''));
        });
      }
      expect(moves).toBeGreaterThan(1000);
    });
  }
});

test('a row takes room for its cells, not for its slots', () => {
  const row = VRow.repeat([0, 500_000_000, 1_000_000_000, 1_500_000_000], 2).withWeights();
  expect(row.size).toBe(12);
  expect([...row.slots].slice(0, 5)).toEqual([0, 6, 500_000_000, 500_000_006, 1_000_000_000]);
  expect(row.peak).toBe(4);
  expect(row.withoutWeights().peak).toBe(4);
  expect(row.lastSlotOf(Cell.W)).toBe(1_500_000_007);
  expect(row.lastSlotOf(Cell.DownI)).toBe(1_500_000_006);
});

test('weight work fills empty slots behind its I, the rest stands at the end', () => {
  expect(textOf(rowOf('fb.id.f..').withWeights())).toBe('fb.idWfW');
  expect(textOf(rowOf('fbid').withWeights())).toBe('fbidWW');
  expect(textOf(rowOf('fbi.d...f').withWeights(6))).toBe('fbi.d.WWf');
  expect(textOf(rowOf('fbiWdW').withoutWeights())).toBe('fbi.d');
});

test('cells are taken from the end and put into the first empty slot', () => {
  const row = rowOf('fbidWidW').withoutLast(
    new Map([
      [Cell.UpI, 1],
      [Cell.W, 1],
    ]),
  );
  expect(textOf(row)).toBe('fbidW.d');
  expect(textOf(row.withCell(-3, Cell.UpI))).toBe('fbidWid');
  expect(textOf(row.withCell(6, Cell.W))).toBe('fbidW.dW');
});
