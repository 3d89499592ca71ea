/** @file Traces: actions are found by their names, whatever else is in the file. */
import { buildSchedule, dumpChromeTrace, lower, simulate, toChromeTrace } from '@pipewright/schedule';
import { describe, expect, test } from 'vitest';
import { openRun } from './recorded.ts';
import { readTraces } from './trace-reader.ts';

const schedule = buildSchedule('1F1B', { ranks: 3, microbatches: 4 });

describe('traces', () => {
  test('our own trace of a simulated step gives its actions and times back', () => {
    const simulation = simulate(schedule, { F: 1, B: 2, comm: 0.25 });
    const read = readTraces([JSON.stringify(toChromeTrace(simulation))]);
    expect(read.schedule.ranks).toBe(3);
    expect(read.steps).toHaveLength(1);
    const found = read.steps[0]!.filter(({ action }) => action.kind === 'F' || action.kind === 'B');
    expect(found).toHaveLength(simulation.events().length);
    const scale = simulation.makespan / Math.max(...found.map(({ end }) => end));
    const ends = found.map(({ end }) => end * scale).toSorted((a, b) => a - b);
    const wanted = simulation
      .events()
      .map(({ end }) => end)
      .toSorted((a, b) => a - b);
    ends.forEach((end, i) => expect(end).toBeCloseTo(wanted[i]!, 6));
  });

  test("PyTorch's trace of an order", () => {
    const read = readTraces([dumpChromeTrace(lower(schedule))]);
    expect(read.schedule.ranks).toBe(3);
    expect(read.schedule.stageToRank).toEqual([0, 1, 2]);
  });

  test("the profiler's files of two ranks, two steps, among other events", () => {
    const file = (rank: number): string =>
      JSON.stringify({
        distributedInfo: { rank },
        traceEvents: [
          { ph: 'M', name: 'process_name' },
          { ph: 'X', name: 'aten::mm', ts: 1, dur: 2, pid: 4711, tid: 1 },
          ...[0, 1].flatMap((step) => [
            { ph: 'X', name: `PP:${rank}F0`, ts: 1000 + step * 5000 + rank * 100, dur: 90, pid: 4711, tid: 1 },
            { ph: 'X', name: `PP:${rank}B0`, ts: 3000 + step * 5000 - rank * 100, dur: 180, pid: 4711, tid: 1 },
          ]),
          null,
          'nonsense',
        ],
      });
    const run = openRun('two', [file(0), file(1)]);
    expect(run.stepCount).toBe(2);
    expect(run.schedule.toString()).toBe('0F0 0B0\n1F0 1B0');
    expect(run.view(1).recorded.makespan).toBeCloseTo(2.18, 6);
    expect(run.note).toMatch(/clocks/);
  });

  test.each([
    '',
    '{',
    '[]',
    '{"traceEvents":3}',
    '{"traceEvents":[{"ph":"X","name":"PP:0F0","ts":"a","dur":1}]}',
    '{"format":"pipewright-recording"}',
  ])('refused: %s', (text) => expect(() => openRun('x', [text])).toThrow(Error));
});
