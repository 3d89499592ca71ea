/** @file The lines of a live run give the same steps, in whatever order the files of its ranks are read. */
import { describe, expect, test } from 'vitest';
import { buildSchedule } from '../generate/build-schedule.ts';
import type { LiveLine } from './live-line.ts';
import { LiveRunReader } from './live-run.ts';

const schedule = buildSchedule('1F1B', { ranks: 2, microbatches: 3 });

/** The file of one rank: its run, then its steps. */
function fileOf(rank: number, steps: readonly number[], process = `host:${rank}`): LiveLine[] {
  const head = { device: 'cpu', process, origin: 1000, tokensPerStep: 8 };
  return [
    { kind: 'run', version: 1, rank, ...head, schedule: rank === 0 ? schedule.toJSON() : null },
    ...steps.map((step): LiveLine => {
      const times = { step, begin: 10 * step + rank, end: 10 * step + 9 };
      if (step % 3 === 2)
        return { kind: 'steps', ...{ step: [step], begin: [times.begin], end: [times.end], loss: [null] } };
      const memory = { processBytes: 100 + rank, deviceBytes: null, heldBytes: null };
      return { kind: 'step', ...times, training: true, loss: rank === 1 ? step : null, ...memory, actions: null };
    }),
  ];
}

const range = (from: number, to: number): number[] => Array.from({ length: to - from }, (_, i) => from + i);

function read(lines: readonly (readonly [rank: number, line: LiveLine])[], kept?: number): LiveRunReader {
  const reader = new LiveRunReader(kept);
  for (const [rank, line] of lines) reader.add(rank, line);
  return reader;
}

const tagged = (rank: number, lines: readonly LiveLine[]): [number, LiveLine][] => lines.map((line) => [rank, line]);

describe('a live run', () => {
  const files = [fileOf(0, range(0, 7)), fileOf(1, range(0, 7))] as const;

  test('files one after the other, and line by line in turn: the same steps', () => {
    const apart = read([...tagged(0, files[0]), ...tagged(1, files[1])]);
    const inTurn = read(files[0].flatMap((line, i) => [...tagged(0, [line]), ...tagged(1, [files[1][i]!])]));
    expect(apart.steps.map(({ step }) => step)).toEqual(range(0, 7));
    expect(apart.steps).toEqual(inTurn.steps);
    expect(apart.steps[3]).toMatchObject({ begin: 1030, end: 1039, loss: 3, memoryBytes: 101 });
  });

  test('of long files only the last steps are kept, in both orders', () => {
    const long = [fileOf(0, range(0, 500)), fileOf(1, range(0, 500))] as const;
    const reader = read([...tagged(0, long[0]), ...tagged(1, long[1])], 20);
    expect(reader.steps.map(({ step }) => step)).toEqual(range(480, 500));
  });

  test('a rank that begins its file again keeps the steps of the others', () => {
    const again = read([
      ...tagged(0, fileOf(0, [0, 1, 2])),
      ...tagged(1, fileOf(1, [0])),
      ...tagged(1, fileOf(1, [1, 2])), // the file had grown too large
    ]);
    expect(again.steps.map(({ step }) => step)).toEqual([0, 1, 2]);
  });

  test('what a failed run had not finished is not mixed with the next run', () => {
    const reader = read([
      ...tagged(0, fileOf(0, [0, 1])),
      ...tagged(1, fileOf(1, [0, 1, 2])), // rank 0 fails in step 2
      ...tagged(0, fileOf(0, [1, 2, 3], 'host:10')),
    ]);
    expect(reader.steps.map(({ step }) => step)).toEqual([0, 1]);
    for (const [rank, line] of tagged(1, fileOf(1, [1, 2, 3], 'host:11'))) reader.add(rank, line);
    expect(reader.steps.map(({ step }) => step)).toEqual([0, 1, 1, 2, 3]);
  });
});
