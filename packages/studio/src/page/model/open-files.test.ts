/** @file A file that cannot be opened: what is wrong with it is said for the kind of file it seems to be. */
import { describe, expect, test } from 'vitest';
import { openFiles, withoutCaller } from './open-files.ts';

const problemOf = (name: string, text: string): string | null => openFiles([{ name, text }]).problem;

describe('files', () => {
  test('a typo in a schedule: the error of the schedule', () => {
    expect(problemOf('typo.csv', '0F0,0X1\n,1F0')).toMatchInlineSnapshot(
      `"typo.csv: line 1 cell 2: cannot read '0X1': no action at '0X1'; expected a stage, a kind and a microbatch such as '2F0', or '(0F3;3B1)OVERLAP_F_B'"`,
    );
    expect(withoutCaller('1F1B: it has 1 stage')).toBe('1F1B: it has 1 stage');
    expect(problemOf('order.txt', '0F0,0X1\n,1F0')).toContain('0X1');
    expect(problemOf('empty.csv', '')).toBe('empty.csv: The text is empty; paste a schedule as CSV or JSON');
    expect(problemOf('s.json', '{"format":"pipewright-schedule","version":99}')).toMatch(/^s\.json: .*version/s);
  });

  test('JSON of another kind, and JSON cut off', () => {
    const neither = 'junk.json is neither a recording, a plan, a schedule nor a trace.';
    for (const text of ['{"a":1}', '{"a":', '[[[[']) expect(problemOf('junk.json', text)).toBe(neither);
  });

  test('a recording or trace that is damaged says what is wrong with it', () => {
    expect(problemOf('r.json', '{"format":"pipewright-recording","ver')).toContain('is the file complete?');
    const schedule = { format: 'pipewright-schedule', version: 1, ranks: 1, order: [['0F0', '0B0']] };
    const recording = JSON.stringify({ format: 'pipewright-recording', version: 1, schedule, ranks: [], steps: [] });
    expect(problemOf('r.json', recording)).toMatchInlineSnapshot(`"The recording has no steps; record at least one"`);
    expect(problemOf('r.json', recording.slice(0, -5))).toContain('is the file complete?');
    expect(problemOf('t.json', '{"traceEvents":[{"ph":"X","name":"aten::mm","ts":1,"dur":2}]}')).toContain('PP:2F0');
    expect(openFiles([])).toEqual({ run: null, at: 0, problem: null });
  });
});
