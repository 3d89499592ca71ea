/** @file Editing: changes, what the rules say of them, undo. */

import { fc, test } from '@fast-check/vitest';
import { buildSchedule, parseCsv, Schedule } from '@pipewright/schedule';
import { describe, expect } from 'vitest';
import { deskFor, Editor, judge, putOnDesk, readSchedule, sayViolations } from './edit.ts';
import { defaults } from './settings.ts';

const start = buildSchedule('1F1B', { ranks: 2, microbatches: 3 });

describe('desk', () => {
  test('edits stay while other views are shown; without edits the settings decide', () => {
    const first = deskFor(null, defaults);
    expect(first.editor.schedule.name).toBe('1F1B');
    expect(deskFor(first, { ...defaults, view: 'live' })).toBe(first);
    const other = deskFor(first, { ...defaults, schedule: 'GPipe' });
    expect(other.editor.schedule.name).toBe('GPipe');
    other.editor.remove(0, 0);
    expect(deskFor(other, { ...defaults, ranks: 2 })).toBe(other);
  });

  test('a text with too many cells is refused before it is read', () => {
    const row = Array.from({ length: 500_000 }, () => 'what is this').join();
    expect(() => readSchedule(`${row}\n0F0`)).toThrow('About 500,001 cells are too many to edit here; at most 500,000');
  });

  test('a shape with too many actions is not built: a small schedule takes its place, and that is said', () => {
    const { editor } = deskFor(null, { ...defaults, ranks: 1024, stagesPerRank: 64, microbatches: 4096 });
    expect(editor.schedule.ranks).toBe(4);
    expect(editor.lastChange).toBe('opened in place of 1F1B, whose 12,582,912 actions are too many to edit here');
    expect(deskFor(null, { ...defaults, schedule: 'nothing' }).editor.lastChange).toMatch(/which cannot be built/);
  });

  test('a schedule that is handed over replaces one without edits; undo comes back to edits', () => {
    const fresh = putOnDesk(deskFor(null, defaults), start);
    expect(fresh.editor.canUndo).toBe(false);
    expect(deskFor(fresh, { ...defaults, ranks: 7 }).editor.schedule.equals(start)).toBe(true);
    fresh.editor.remove(0, 0);
    const next = putOnDesk(fresh, buildSchedule('GPipe', { ranks: 2, microbatches: 2 }));
    expect(next.editor.lastChange).toBe('GPipe opened');
    next.editor.undo();
    expect(next.editor.schedule.name).toBe('1F1B (edited)');
  });
});

describe('editor', () => {
  test('a moved backward breaks a rule, and undo repairs it', () => {
    const editor = new Editor(start);
    const row = start.toJSON().order[0]!;
    const at = row.indexOf('0B0');
    expect(editor.move(0, at, 0)).toBe(true);
    const { violations } = judge(editor.schedule, defaults.costs);
    expect(violations.map(({ rule }) => rule)).toContain('forward-first');
    expect(editor.undo()).toBe(true);
    expect(editor.schedule.equals(start)).toBe(true);
    expect(judge(editor.schedule, defaults.costs).violations).toEqual([]);
    expect(editor.redo()).toBe(true);
    expect(editor.lastChange).toBe('0B0 moved on rank 0');
  });

  test('a deleted action is missed by name', () => {
    const editor = new Editor(start);
    editor.remove(1, start.toJSON().order[1]!.indexOf('1B2'));
    const { violations } = judge(editor.schedule, defaults.costs);
    expect(violations.some(({ rule, explanation }) => rule === 'missing' && explanation.includes('1B2'))).toBe(true);
  });

  test('ranks that wait for each other: the cycle is told', () => {
    const { violations, simulation, problem } = judge(
      Schedule.from({ stageToRank: [0, 1, 0], order: [['2F0', '0F0'], ['1F0']] }),
      defaults.costs,
    );
    expect(violations.length).toBeGreaterThan(0);
    expect(simulation).toBeNull();
    expect(problem).not.toBe('');
  });

  test.prop([
    fc.array(fc.tuple(fc.constantFrom('move', 'remove', 'insert', 'undo', 'redo'), fc.nat(1), fc.nat(12), fc.nat(12)), {
      maxLength: 30,
    }),
  ])('any changes can be undone to the beginning, and never throw', (changes) => {
    const editor = new Editor(start);
    for (const [what, rank, a, b] of changes) {
      if (what === 'move') editor.move(rank, a, b);
      else if (what === 'remove') editor.remove(rank, a);
      else if (what === 'insert') editor.insert(rank, a, b % 2 === 0 ? '' : '0F0');
      else if (what === 'undo') editor.undo();
      else editor.redo();
      judge(editor.schedule, defaults.costs);
      expect(readSchedule(editor.toCsv()).equals(editor.schedule)).toBe(true);
    }
    while (editor.undo());
    expect(editor.schedule.equals(start)).toBe(true);
  });

  test('an action that no schedule can hold is refused, and the schedule stays as it is', () => {
    const editor = new Editor(start);
    expect(() => editor.insert(0, 0, '70000F70000')).toThrow(/use fewer stages or microbatches/);
    expect(editor.schedule).toBe(start);
    expect(editor.canUndo).toBe(false);
  });

  test('how many rules are broken is counted up to the most that is listed', () => {
    const broken = (count: number): string =>
      sayViolations(judge(parseCsv(`0F0,0B0,${Array.from({ length: count }, () => '0F0').join()}`), defaults.costs));
    expect(broken(0)).toBe('The schedule is valid.');
    expect(broken(1)).toBe('1 rule is broken.');
    expect(broken(50)).toBe('50 rules are broken.');
    expect(broken(51)).toBe('More than 50 rules are broken; the first 50 are listed.');
  });

  test('text is read as CSV or JSON', () => {
    expect(readSchedule('0F0,0B0\n').microbatches).toBe(1);
    expect(readSchedule(JSON.stringify(start)).equals(start)).toBe(true);
    expect(() => readSchedule('  ')).toThrow(/empty/);
    expect(() => readSchedule('0X0')).toThrow(/0X0/);
  });
});
