/** @file Traces: actions are found by their names, whatever else is in the file. */
import { readFileSync } from 'node:fs';
import { buildSchedule, dumpChromeTrace, lower, simulate, toChromeTrace } from '@pipewright/schedule';
import { describe, expect, test } from 'vitest';
import { openRun } from './recorded.ts';
import { readTraces } from './trace-reader.ts';

const schedule = buildSchedule('1F1B', { ranks: 3, microbatches: 4 });
const sample = (name: string): string =>
  readFileSync(new URL(`../../../../../testdata/traces/${name}`, import.meta.url), 'utf8');

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
    ['gpipe', '0F0 0F1 0F2 0F3 0B0 0B1 0B2 0B3\n1F0 1F1 1F2 1F3 1B0 1B1 1B2 1B3'],
    ['interleaved-1f1b', null],
    ['interleaved-zero-bubble', null],
  ])("the profiler's own files of two processes: %s", (name, order) => {
    const run = openRun(name, [sample(`${name}-0.json`), sample(`${name}-1.json`)]);
    expect(run.stepCount).toBe(2);
    expect(run.schedule.ranks).toBe(2);
    if (order !== null) expect(run.schedule.toString()).toBe(order);
    else {
      expect(run.schedule.stageToRank).toEqual([0, 1, 0, 1]);
      const kinds = run.schedule.order.flat().map((action) => action?.kind);
      expect(kinds.filter((kind) => kind === 'F')).toHaveLength(16);
      expect(kinds.filter((kind) => kind === 'B' || kind === 'W')).toHaveLength(16);
    }
    for (const step of [0, 1]) {
      const { recorded } = run.view(step);
      expect(recorded.makespan).toBeGreaterThan(0);
      for (const { main } of recorded.lanes)
        for (let i = 1; i < main.count; i++) expect(main.start[i]!).toBeGreaterThanOrEqual(main.end[i - 1]!);
    }
  });

  test('where a GPU took part, its times count, not those of the processor', () => {
    const range = (cat: string, name: string, ts: number): object => ({
      ph: 'X',
      cat,
      name,
      ts,
      dur: 10,
      pid: 0,
      tid: 1,
    });
    const traceEvents = [
      ...[range('user_annotation', 'PP:0F0', 0), range('gpu_user_annotation', 'PP:0F0', 500)],
      ...[range('user_annotation', 'PP:0B0', 20), range('gpu_user_annotation', 'PP:0B0', 700)],
    ];
    const run = openRun('gpu', [JSON.stringify({ traceEvents })]);
    expect(run.stepCount).toBe(1);
    expect(run.view(0).recorded.makespan).toBeCloseTo(0.21, 9);
  });

  test('more actions than a call takes arguments', () => {
    const traceEvents = Array.from({ length: 150_000 }, (_, i) => ({
      ...{ ph: 'X', name: `PP:0F${i}`, ts: i * 10, dur: 9, pid: 0 },
    }));
    expect(readTraces([JSON.stringify({ traceEvents })]).steps[0]).toHaveLength(150_000);
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
